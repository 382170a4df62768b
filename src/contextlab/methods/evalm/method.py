"""EVALM as a method: exact local attention with sinks, and one softmax over it and summaries of all that has left it.

Legend: B rows, t tokens of a block, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from contextlab import attention, states
from contextlab.accounting.formulas import Model
from contextlab.attention import Layout, empty_kv
from contextlab.backbone import Backbone, wrap
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Capabilities, Lengths
from contextlab.methods.evalm.config import EVALMConfig
from contextlab.methods.evalm.formula import EVALMFormula
from contextlab.methods.evalm.parallel import ParallelEVA
from contextlab.methods.evalm.reader import EVALMState, EvaReader
from contextlab.methods.evalm.summary import Summary, summaries
from contextlab.methods.parts.branches import Branches
from contextlab.methods.parts.few_bits import BITS, Vectors
from contextlab.methods.parts.local_cache import LocalCache, LocalState, reserved
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.sliding import Local, Sliding, SlidingConfig, local_twin
from contextlab.tensors import require

SUMMARIES, UPDATES = "summaries", "updates"


class EVALM(SegmentMethod[EVALMConfig, EVALMState]):
    """Local windows of W tokens with sinks; every chunk of c tokens that has left them stays as one key and value.

    Untrained, summaries have attention weight 0 and the method is its baseline; `remote_bias` opens them, `weights`
    brings trained ones. With a `rank` the backbone's projections carry a low-rank update, and with rank=full all of its
    weights are the method's own.
    """

    Config = EVALMConfig
    # A head with a bias of minus infinity gives summaries a weight of 0.
    unbounded = ("remote_bias_H",)

    def __init__(self, backbone: Backbone, config: EVALMConfig | None = None) -> None:
        super().__init__(backbone, config)
        if backbone.slopes_H is not None:
            raise UserError("EVALM needs rotary or learned positions: use longmem with an ALiBi model.")
        self.geometry = self.config.geometry(backbone.max_positions)
        self.local = LocalCache(
            self.geometry.window,
            keep_first=self.geometry.sinks,
            keep_last=self.geometry.recent,
            storage=self.config.cache,
        )
        self.vectors = Vectors.of(self.config.storage_dtype, backbone.attention_dtype, backbone.head_width)
        self.summaries = summaries(backbone, self.config)
        learned: nn.Module = self.summaries
        self.updates: nn.Module | None = None
        if self.config.rank:
            self.network = updated = self.config.updated(backbone)
            self.updates, self.head_alone = updated.updates, self.config.rank != "full"
            learned = nn.ModuleDict({SUMMARIES: self.summaries, UPDATES: updated.updates})
        self.learns(learned, self.config.weights)

    @property
    def capabilities(self) -> Capabilities:
        """Of the local context; summaries may be in few bits."""
        view = super().capabilities
        return dataclasses.replace(view, few_bits=view.few_bits or self.config.storage_dtype in BITS)

    def baseline(self) -> Sliding | None:
        """Local attention with sinks, while summaries have attention weight 0."""
        if self.config.remote_bias is not None or not self.untrained:
            return None
        recent = None if self.config.overlap else 0
        return Sliding(self.backbone, SlidingConfig(N=self.local.segment, sinks=self.local.keep_first, recent=recent))

    @property
    def twin(self) -> str:
        """The local context with an update of the same rank."""
        local: Local = "sliding" if self.config.overlap else "cold"
        return local_twin(local, self.config.W, self.config.rank, self.config.targets)

    def renamed_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of this rank; to those of rank 0, which are summaries alone, the update as it starts is added."""
        if not self.config.rank or any(name.startswith((f"{SUMMARIES}.", f"{UPDATES}.")) for name in weights):
            return weights
        assert self.learned is not None
        initial = {name: tensor for name, tensor in self.learned.state_dict().items() if name.startswith(f"{UPDATES}.")}
        return {**{f"{SUMMARIES}.{name}": tensor for name, tensor in weights.items()}, **initial}

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Local attention and the summaries."""
        model, chunk = Model.of(self.backbone), self.geometry.chunk
        if model is None:
            return None
        first = self.first_segment(ahead)
        whole = (first + chunk - 1) // chunk * chunk
        update = self.config.update_flops(self.updates)
        return EVALMFormula(model, self.local, whole, self.config, self.geometry, update, self.vectors)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> EVALMState:
        """Without summaries; a first window that is shortened for what is ahead still holds whole chunks."""
        backbone, chunk, rows = self.backbone, self.geometry.chunk, empty.batch_size
        sum_BKD = torch.zeros(
            rows,
            backbone.kv_heads,
            backbone.head_width,
            dtype=torch.promote_types(backbone.attention_dtype, torch.float32),
            device=backbone.device,
        )
        stored_BKx = (rows, backbone.kv_heads, self.vectors.width(backbone.head_width))
        return EVALMState(
            empty.length_B,
            empty.pending_BC,
            # Chunks are summarised from keys without RoPE.
            empty.kv.with_raw(frozenset(range(backbone.layers))),
            (empty.left_B + chunk - 1) // chunk * chunk,
            chunks=empty_kv(backbone.layers, stored_BKx, sum_BKD.to(self.vectors.dtype)),
            query_sum=(sum_BKD,) * (backbone.layers if self.config.pooling == "eva" else 0),
        )

    def reserve(self, state: EVALMState, lengths_B: Tensor) -> EVALMState:
        """Free slots for tokens, as far as the window goes, and for the summaries of all chunks that they complete."""
        new_B = (state.length_B + lengths_B) // self.geometry.chunk - state.chunks.used_B
        chunks = reserved(state.chunks, new_B, torch.full_like(new_B, states.MOST))
        return dataclasses.replace(super().reserve(state, lengths_B), chunks=chunks)

    def step(self, state: EVALMState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[EVALMState, Tensor]:
        """Attend, roll up finished chunks; at a window's end cut the local cache back."""
        opened = self.local.opened(state)
        reader = self.reader(opened, self.local.layout(opened, tokens_Bt.shape[1]), lengths_B)
        hidden_BtC = self.local.hidden(self.network, opened, tokens_Bt, reader)
        finite = hidden_BtC.isfinite().all()
        require(finite, "The model's hidden states are no longer finite: use a wider dtype or other weights.")
        grown = self.local.grown(opened, (reader,), lengths_B)
        rolled_up = dataclasses.replace(grown, chunks=reader.chunks(), query_sum=tuple(reader.query_sum))
        return self.local.packed(state, self.closed(rolled_up, lengths_B), grown.left_B == 0), hidden_BtC

    def reader(self, state: EVALMState, layout: Layout, lengths_B: Tensor | None = None) -> EvaReader:
        """The attention of one forward pass, which rolls up the chunks that `lengths_B` tokens complete."""
        layers = cast(Sequence[Summary], self.summaries)
        return EvaReader(self.backbone, self.geometry, layers, self.vectors, state, layout, lengths_B)

    def packs_beside(self, state: EVALMState) -> bool:
        """Never: which summaries are seen follows from the tokens in the cache."""
        return False

    def continuations(self, state: EVALMState, longest: int) -> Branches[EVALMState] | None:
        """Side by side, but where one would see its own beginning as a summary."""
        chunk = self.geometry.chunk
        sees_itself = self.geometry.own and bool((state.length_B % chunk + longest > chunk).any())
        return None if sees_itself else super().continuations(state, longest)

    def check_state(self, state: EVALMState) -> None:
        """Every whole chunk has left a summary."""
        super().check_state(state)
        state.chunks.check("chunks", states.MOST)
        if self.vectors.bits is not None:
            for shared in map(self.vectors.ranges, (*state.chunks.k, *state.chunks.v)):
                states.finite({"A range of chunks": shared.lowest + shared.step})
        whole_B = state.length_B // self.geometry.chunk
        states.within("chunks.used_B", state.chunks.used_B, whole_B, whole_B)
        states.within("kv.used_B", state.kv.used_B, state.length_B % self.geometry.chunk, state.length_B)

    def with_graph(self, state: EVALMState) -> EVALMState:
        """The state that learning starts from; see `BlockMethod.with_graph`.

        Raises:
            UserError: where summaries are stored in another type than they are computed in.
        """
        if self.vectors.dtype != self.backbone.attention_dtype:
            raise UserError(
                f"No exact gradient passes summaries that are stored in {self.config.storage_dtype}: learn without "
                "storage_dtype, and read with it."
            )
        return super().with_graph(state)

    def whole_attention(self) -> ParallelEVA:
        """Attention of whole texts at once; it equals reading them piece by piece where storage does not round."""
        return ParallelEVA(self.backbone, self.summaries, self.geometry)

    @contextmanager
    def as_attention(self) -> Iterator[None]:
        """Let the transformers model attend like this method wherever it is called on whole sequences.

        The model is the backbone's, or with a rank the one with the update, `network.model`. Differentiable, also in
        the summaries' weights; padding on the right. Afterwards the model is what it was.

        Raises:
            UserError: in a call with padding on the left, position ids, or a cache.
        """
        with attention.attending(self.network.model, self.whole_attention(), self._parallel_positions):
            yield

    def _parallel_positions(self, length: int) -> Tensor:
        positions_T = torch.arange(length)
        if not self.backbone.learned_positions:
            return positions_T * 0
        local = self.local
        if not local.keep_last:
            begin_T = positions_T // local.segment * local.segment
            positions_T = positions_T - begin_T + begin_T.clamp(max=local.keep_first)
        return positions_T % self.backbone.max_positions


@contextmanager
def eva_attention_of(model: Any, config: EVALMConfig | None = None) -> Iterator[EVALM]:
    """Give a Llama-, GPT-2- or OPT-style model of transformers EVALM's attention for the duration of a block.

    Args:
        model: a causal language model; weights, attention setting and training mode are what they were afterwards.
        config: of the method, which is handed back.

    Raises:
        UserError: for a model whose attention is out of reach, a config with a rank, and as `EVALM.as_attention` does.
    """
    if config is not None and config.rank:
        raise UserError("A low-rank update needs a separate model: use rank=0, or EVALM.as_attention.")
    training = {module: module.training for module in model.modules()}
    try:
        method = EVALM(wrap(model), config)
    finally:
        for module, mode in training.items():
            module.training = mode
    with method.as_attention():
        yield method
