"""LongMem as a state machine: segments are read with the bank of earlier segments, then enter the bank.

Where segments start cold, keys are cached before rotary encoding and queries attend to them before rotary encoding: a
retrieved token has no position in the local window, and the paper's memory attention has no distance term either.

Legend: B rows, t tokens of a block, T tokens of a pass, C width.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from contextlab import attention
from contextlab.accounting.formulas import Model, update_flops
from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone import Backbone, steps
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.kernels.chunk_topk import check_index
from contextlab.method import AnyMethod, Capabilities, Lengths
from contextlab.methods.longmem.bank import add
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.longmem.formula import LongMemFormula
from contextlab.methods.longmem.reader import MemoryReader
from contextlab.methods.longmem.side import SideNetwork
from contextlab.methods.longmem.state import LongMemState
from contextlab.methods.parts.banks import leaving
from contextlab.methods.parts.few_bits import BITS
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.packed_banks import Bank, empty_bank
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.sliding import local_twin, local_view
from contextlab.tensors import Derived


class LongMem(SegmentMethod[LongMemConfig, LongMemState]):
    """Reads segments of N tokens; one side layer attends to chunks of earlier segments through a gate per head."""

    Config = LongMemConfig

    def __init__(self, backbone: Backbone, config: LongMemConfig | None = None) -> None:
        super().__init__(backbone, config)
        config = self.config
        if backbone.slopes_H is not None and (config.local == "sliding" or config.softmax == "joint"):
            raise UserError("An ALiBi model has no place for memory in its view: use local=cold and softmax=gate.")
        self.parts = attention.anatomy(backbone.model)
        self.view = local_view(backbone, config.local, config.N, config.sinks, config.cache)
        self.local = self.view.local
        if config.csz > self.local.segment:
            raise UserError(
                f"A chunk of csz={config.csz} tokens does not fit a segment of {self.local.segment}, nothing would "
                "be stored: use a smaller csz or a larger N."
            )
        check_index(config.index, backbone.device)
        self.side = SideNetwork(backbone, config)
        self.memory_block, self.memory_layer = next(iter(self.side.reading.items()))
        self.learns(self.side.learned, config.weights)
        self.side.eval()
        self._bos_hidden = Derived[Tensor]()

    def baseline(self) -> AnyMethod | None:
        """The local view alone, which an untrained network equals exactly that starts as the identity, or that starts
        from differences and has no memory.
        """
        silent = self.config.init == "identity" or (self.config.init != "paper" and not self.config.M)
        return self.view if silent and self.untrained else None

    @property
    def capabilities(self) -> Capabilities:
        """Those of its local context; rows that share a bank find each other's tokens in it."""
        config = self.config
        view, apart = super().capabilities, config.bank_scope != "shared"
        few_bits = view.few_bits or config.storage_dtype in BITS
        return dataclasses.replace(view, independent_rows=apart, few_bits=few_bits)

    @property
    def twin(self) -> str:
        """The local view with an update of the rank of the side network's, in all linear layers too."""
        return local_twin(self.config.local, self.config.N, self.config.rank, "all")

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Both networks and the bank; None where rows share one."""
        model = Model.of(self.backbone)
        if model is None or self.config.bank_scope == "shared":
            return None
        return LongMemFormula(
            model,
            self.local,
            self.first_segment(ahead),
            self.config,
            blocks=len(self.side.blocks),
            reading=list(self.side.reading.values()),
            update=update_flops(None if self.side.update is None else self.side.update.blocks),
        )

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> LongMemState:
        """An empty bank and an empty segment."""
        empty = super().start(batch_size, ahead=ahead)
        return dataclasses.replace(empty, pending_BC=self._bos_hidden_C.expand(batch_size, -1))

    def begin(self, empty: LocalState, ahead: Lengths | None) -> LongMemState:
        """With an empty cache of the side network and an empty bank."""
        backbone, banked, rows = self.backbone, self.side.banked, empty.batch_size
        raw = frozenset(banked) if self.config.local == "cold" else frozenset[int]()
        banks, config = backbone.empty_kv(rows, len(banked)), self.config
        return LongMemState(
            empty.length_B,
            empty.pending_BC,
            empty.kv.with_raw(raw),
            empty.left_B,
            side_kv=self.local.stored(backbone.empty_kv(rows, len(self.side.blocks))),
            bank=empty_bank(banks, config.csz, config.storage_dtype, config.stored_in),
        )

    @torch.no_grad()
    def score(self, state: LongMemState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score several continuations; those that cannot share a pass, one after the other after a shared bank, or
        they would enter each other's.
        """
        longest = max(map(len, candidates), default=0)
        if not self._enter_each_other(state, longest):
            return super().score(state, candidates)
        parts = [super(LongMem, self).score(state, [candidate]) for candidate in candidates]
        return torch.cat([functional.pad(part, (0, longest - part.shape[-1])) for part in parts], dim=1)

    @torch.no_grad()
    def generate(
        self, state: LongMemState, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[int]]:
        """Continue every row after its prompt; many prompts after one row as `score` does."""
        longest = max(map(len, prompts), default=0) + max_new_tokens - 1  # the last one is not read
        alone = state.batch_size == 1 and self._enter_each_other(state, longest)
        parts = [[prompt] for prompt in prompts] if alone else [prompts]
        write = super().generate
        return [row for part in parts for row in write(state, part, max_new_tokens=max_new_tokens, **options)]

    def _enter_each_other(self, state: LongMemState, longest: int) -> bool:
        """Whether copies of a state that read so many tokens share a bank that these enter."""
        return self.config.bank_scope == "shared" and longest > int(self.room(state).min())

    def side_reader(self, state: LongMemState, layout: Layout) -> MemoryReader:
        """The side network's attention of one forward pass."""
        return MemoryReader(self.backbone, self.config, self.side, state, layout)

    def step(self, state: LongMemState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[LongMemState, Tensor]:
        """Backbone and side network; see `SegmentMethod.step`.

        Raises:
            UserError: when rows that share a bank are not equally long.
        """
        self._check_level(state, lengths_B)
        return super().step(state, tokens_Bt, lengths_B)

    def close(self, state: LongMemState, ended_B: Tensor) -> LongMemState:
        """Tokens that leave the view enter the bank."""
        outgoing = leaving(state, self.local, self.side.banked, self.backbone)
        return dataclasses.replace(super().close(state, ended_B), bank=self._added(state, outgoing))

    def forward(self, state: LongMemState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[CacheReader]]:
        """`hidden_BTC` of backbone and side network, after the side network's norm, and the readers of their caches."""
        readers = CacheReader(self.backbone, state.kv, layout), self.side_reader(state, layout)
        position_BT = self.local.input_positions(state, layout)
        run = self._compiled_networks if self.backbone.compiles(position_BT) else self._networks
        with attention.seam(self.backbone.config, self.backbone.rotary_scale), self.side.seam():
            return run(tokens_BT, position_BT, *readers), readers

    def _networks(
        self, tokens_BT: Tensor, position_BT: Tensor, reader: CacheReader, side_reader: MemoryReader
    ) -> Tensor:
        """`hidden_BTC` of `forward`, inside the seams of both networks."""
        states, final_BTC = self._backbone_states(tokens_BT, position_BT, reader)
        hidden_BTC: Tensor = self.side.norm(self.side.states(states, final_BTC, side_reader)[-1])
        return hidden_BTC

    @functools.cached_property
    def _compiled_networks(self) -> Callable[[Tensor, Tensor, CacheReader, MemoryReader], Tensor]:
        return steps.compiled(self._networks)

    def check_state(self, state: LongMemState) -> None:
        """The bank holds no more than it may."""
        super().check_state(state)
        state.bank.check("bank", self.config.M)

    def skim(self, state: LongMemState, tokens_Bt: Tensor, lengths_B: Tensor) -> LongMemState | None:
        """Read blocks that complete their segments and are not scored: a bank needs the cached layers, no more; what
        stays in view needs all of the step.
        """
        if not self.local.forgets:
            return None
        self._check_level(state, lengths_B)
        layout, layers = self.local.layout(state, tokens_Bt.shape[1]), self.side.banked
        reader = CacheReader(self.backbone, state.kv, layout)
        self.run_backbone(tokens_Bt, layout.position_BT, reader, layers=max(layers) + 1)
        view = reader.grown(lengths_B)
        outgoing = KV(tuple(view.k[i] for i in layers), tuple(view.v[i] for i in layers), view.used_B)
        fresh, bank = self._empty(state.batch_size), self._added(state, outgoing)
        return dataclasses.replace(fresh, length_B=state.length_B, pending_BC=state.pending_BC, bank=bank)

    def run_backbone(
        self, tokens_BT: Tensor, position_BT: Tensor, attend: attention.Attend, layers: int | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Frozen backbone states as `SideNetwork.forward` takes them, and the last after the final norm.

        Args:
            tokens_BT: of one pass.
            position_BT: for models that learn positions.
            attend: attention of the backbone's layers.
            layers: how many of them run; all when not given.
        """
        with attention.seam(self.backbone.config, self.backbone.rotary_scale):
            return self._backbone_states(tokens_BT, position_BT, attend, layers)

    @torch.no_grad()
    def _backbone_states(
        self, tokens_BT: Tensor, position_BT: Tensor, attend: attention.Attend, layers: int | None = None
    ) -> tuple[list[Tensor], Tensor]:
        every = 1 if self.config.init == "difference" else self.config.reduction
        hidden_BTC = self.parts.embed(tokens_BT, position_BT % self.backbone.max_positions)
        states = [hidden_BTC]
        for i, layer in enumerate(self.parts.layers[:layers], start=1):
            hidden_BTC = attention.run_layer(layer, hidden_BTC, attend, self.backbone.rotary_scale)
            if i % every == 0:
                states.append(hidden_BTC)
        return states, self.parts.norm(hidden_BTC)

    def _check_level(self, state: LongMemState, lengths_B: Tensor) -> None:
        if self.config.bank_scope == "shared" and bool(
            (lengths_B != lengths_B[0]).any() or (state.left_B != state.left_B[0]).any()
        ):
            raise UserError(
                "Rows that share a bank (bank_scope=shared) end their segments together: give rows of equal length, or "
                "use bank_scope=per_row."
            )

    def _added(self, state: LongMemState, outgoing: KV) -> Bank:
        """The bank with what has left the view after what it holds."""
        return add(state.bank, outgoing, self.config) if self.config.M else state.bank

    def _empty(self, rows: int) -> LongMemState:
        return self.begin(self.local.empty(self.backbone, rows), None)

    @property
    def _bos_hidden_C(self) -> Tensor:
        """The side network's final state after BOS alone; computed again when weights have changed."""
        with torch.no_grad():
            return self._bos_hidden.of(self._after_bos, self.side, self.backbone.model)

    def with_graph(self, state: LongMemState) -> LongMemState:
        """An empty state whose hidden state is the side network's after BOS, with its graph."""
        pending_BC = torch.where((state.length_B == 0).to(state.device)[:, None], self._after_bos(), state.pending_BC)
        return dataclasses.replace(state, pending_BC=pending_BC)

    def _after_bos(self) -> Tensor:
        tokens_BT = torch.tensor([[self.backbone.bos]], device=self.backbone.device)
        return self.forward(self._empty(1), tokens_BT, Layout(tokens_BT * 0))[0][0, 0]
