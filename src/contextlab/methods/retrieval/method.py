"""Retrieval as a state machine: a sliding window, and a bank that takes what leaves it at the end of every window.

Legend: B rows, t tokens of a block, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.attention import KV, Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.kernels.chunk_topk import check_index
from contextlab.method import Capabilities, Lengths
from contextlab.methods.parts.banks import leaving
from contextlab.methods.parts.few_bits import BITS
from contextlab.methods.parts.local_cache import Appended, LocalState
from contextlab.methods.parts.packed_banks import empty_bank
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.retrieval.config import RetrievalConfig
from contextlab.methods.retrieval.formula import RetrievalFormula
from contextlab.methods.retrieval.learned import MemoryQuery
from contextlab.methods.retrieval.reader import Reach, RetrievalReader, RetrievalState
from contextlab.methods.sliding import Sliding, SlidingConfig, local_twin


class Retrieval(SegmentMethod[RetrievalConfig, RetrievalState]):
    """Sinks, the previous and the current window exactly; of everything older the best chunks, in the same softmax.

    In the layers that retrieve, every query and head takes the chunks whose mean key has the highest inner product with
    it. All retrieved tokens have the position of the oldest local token, the first one after the sinks.
    With `representatives` and `shared` blocks are found as InfLLM finds them (Xiao et al. 2024).
    """

    Config = RetrievalConfig

    def __init__(self, backbone: Backbone, config: RetrievalConfig | None = None) -> None:
        super().__init__(backbone, config)
        config = self.config
        if backbone.slopes_H is not None:
            raise UserError("Retrieval needs rotary or learned positions: use longmem with an ALiBi model.")
        self.view = Sliding(backbone, SlidingConfig(N=config.N, sinks=config.sinks, cache=config.cache))
        self.local = self.view.local
        first = config.first_layer if config.first_layer is not None else backbone.layers // 3
        if first >= backbone.layers:
            raise UserError(f"first_layer={first} does not exist: the backbone has layers 0 to {backbone.layers - 1}.")
        check_index(config.index, backbone.device)
        width = self.local.keep_last + self.local.segment
        following = None if config.representatives is None else self.local.segment
        self.packs_inside = following is None
        layers = range(first, backbone.layers, config.every)
        self.reach = Reach(layers, config.K // config.csz, width, config.index, config.shared, following)
        self.queries: nn.ModuleList | None = None
        if config.rank is not None:
            queries = (MemoryQuery(backbone, config.rank) for _ in layers)
            self.queries = self.learns(nn.ModuleList(queries), config.weights)

    @property
    def capabilities(self) -> Capabilities:
        """Of the view, whose windows or bank may be in few bits."""
        view = super().capabilities
        return dataclasses.replace(view, few_bits=view.few_bits or self.config.storage_dtype in BITS)

    @property
    def twin(self) -> str:
        """The local view with an update of the rank of what is learned."""
        return local_twin("sliding", self.config.N, self.config.rank)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """The sliding window, and what the upper layers retrieve; none with scores of representatives."""
        model = Model.of(self.backbone)
        if model is None or self.config.representatives is not None:
            return None
        return RetrievalFormula(
            model, self.local, self.config, layers=len(self.reach.layers), packs_inside=self.packs_inside
        )

    def begin(self, empty: LocalState, ahead: Lengths | None) -> RetrievalState:
        """With an empty bank."""
        backbone, config = self.backbone, self.config
        kv = backbone.empty_kv(empty.batch_size, len(self.reach.layers))
        bank = empty_bank(kv, config.csz, config.storage_dtype, config.stored_in, config.representatives)
        return RetrievalState(empty.length_B, empty.pending_BC, empty.kv, empty.left_B, bank, bank.open_scores)

    def grown(self, opened: RetrievalState, readers: Sequence[Appended], lengths_B: Tensor) -> RetrievalState:
        """The scores of tokens in view too, where blocks are found by them."""
        (reader,) = readers
        scores = cast(RetrievalReader, reader).scores(lengths_B)
        return dataclasses.replace(super().grown(opened, readers, lengths_B), scores=scores)

    def close(self, state: RetrievalState, ended_B: Tensor) -> RetrievalState:
        """Tokens that leave the view enter the bank; the scores of what stays are kept."""
        outgoing = leaving(state, self.local, self.reach.layers, self.backbone)
        scored = KV(state.scores, (), state.kv.used_B, raw=frozenset(range(len(self.reach.layers))))
        slots_S = self.local.keep_first + torch.arange(outgoing.slots)
        outgoing_scores = scored.take(slots_S.expand(len(outgoing.used_B), -1), outgoing.used_B).k
        bank = state.bank.add(outgoing, self.config.M, scores=outgoing_scores)
        kept_scores = self.local.cut(scored, ended_B, self.backbone)
        return dataclasses.replace(super().close(state, ended_B), bank=bank, scores=kept_scores.k)

    def reader(self, state: RetrievalState, layout: Layout) -> RetrievalReader:
        """The attention of one forward pass."""
        learned = cast(Sequence[MemoryQuery] | None, self.queries)
        return RetrievalReader(self.backbone, state, layout, self.reach, learned)

    def check_state(self, state: RetrievalState) -> None:
        """The bank holds what has left the view, and no more than it may."""
        super().check_state(state)
        self.local.check(state)
        state.bank.check("bank", self.config.M)
        if state.scores:
            states.same_slots("kv and scores", (*state.kv.k, *state.scores), state.kv.used_B)
