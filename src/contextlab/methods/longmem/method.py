"""LongMem as a state machine: segments are read with the bank as it stood before them, then enter the bank.

Keys are cached before rotary encoding and met by queries before rotation: a retrieved token has no place in the local
window, and the paper's memory attention has no distance term either.

Legend: B rows, t tokens of a block, C width, H query heads, K key/value heads, S keys in view, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from contextlab import attention, states
from contextlab.attention import KV, CacheReader, Layout, rotate, sdpa
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.kernels.joint_memory_attention import fuse_memory, joint_memory_attention
from contextlab.method import Ahead, Capabilities, State, Writer
from contextlab.methods.blocks import BlockMethod
from contextlab.methods.branches import Branches
from contextlab.methods.local_cache import reserved
from contextlab.methods.longmem.bank import Bank
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.longmem.side import SideNetwork
from contextlab.methods.window import Window, WindowConfig
from contextlab.tensors import Derived


@dataclasses.dataclass(frozen=True)
class LongMemState(State):
    """The bank, and the caches of the segment that is being read.

    Attributes:
        kv: backbone keys and values of the current segment.
        side_kv: side network keys and values of the current segment.
        bank: chunks of the segments before it.
        left_B: tokens until the end of the segment, per row.
    """

    kv: KV
    side_kv: KV
    bank: Bank
    left_B: Tensor

    @property
    def cached(self) -> int:
        """Tokens of the open segment; of the bank a question meets K more."""
        return int(self.kv.used_B.sum())


class LongMem(BlockMethod[LongMemConfig, LongMemState]):
    """Reads segments of N tokens; one side layer attends to chunks of earlier segments through a gate per head."""

    Config = LongMemConfig

    def __init__(self, backbone: Backbone, config: LongMemConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.segment = self.config.length(backbone.max_positions)
        self.parts = attention.anatomy(backbone.model)
        depth = backbone.layers
        given = self.config.memory_layer
        self.memory_layer = given if given is not None else max(3 * depth // 4 - 1, 0)
        if self.config.csz > self.segment:
            raise UserError(
                f"A chunk of csz={self.config.csz} tokens does not fit a segment of {self.segment}, nothing would "
                "be stored: use a smaller csz or a larger N."
            )
        if self.memory_layer >= depth:
            raise UserError(
                f"memory_layer={self.memory_layer} does not exist: the backbone has layers 0 to {depth - 1}."
            )
        self.memory_block = self.memory_layer // self.config.reduction
        self.side = self.learns(SideNetwork(backbone, self.config), self.config.weights)
        self._bos_hidden = Derived[Tensor]()

    @property
    def capabilities(self) -> Capabilities:
        """Segments start cold but for the bank; trainable."""
        return Capabilities(segment=self.segment)

    def baseline(self) -> Window | None:
        """The window, which an untrained network that starts as the identity equals exactly."""
        silent = self.config.init == "identity" and self.untrained
        return Window(self.backbone, WindowConfig(N=self.segment)) if silent else None

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> LongMemState:
        """An empty bank and an empty segment."""
        backbone = self.backbone
        zeros_B = torch.zeros(batch_size, dtype=torch.int64, device=backbone.device)
        kv = dataclasses.replace(backbone.empty_kv(batch_size), raw=frozenset({self.memory_layer}))
        side_kv = backbone.empty_kv(batch_size, len(self.side.blocks))
        bank = Bank.empty(batch_size, backbone.kv_heads, backbone.head_width, self.config, backbone.device)
        return LongMemState(
            zeros_B,
            self._bos_hidden_C.expand(batch_size, -1),
            kv,
            side_kv,
            bank,
            zeros_B + (ahead.first_segment(self.segment) if ahead else self.segment),
        )

    @torch.no_grad()
    def score(self, state: LongMemState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score several continuations, behind the bank and the caches that they share where no segment ends inside
        one of them; else from copies, with a shared bank one after the other, or they would enter each other's.
        """
        longest = max(map(len, candidates), default=0)
        if longest and self.side_by_side(state, longest):
            return self.branches.score(state, candidates)
        if self.config.bank_scope != "shared":
            return super().score(state, candidates)
        parts = [super(LongMem, self).score(state, [one]) for one in candidates]
        return torch.cat([functional.pad(part, (0, longest - part.shape[-1])) for part in parts], dim=1)

    @torch.no_grad()
    def generate(
        self,
        state: LongMemState,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue every row after its prompt; many prompts behind one row as `score` does."""
        longest = max(map(len, prompts), default=0) + max_new_tokens - 1  # the last one is not read
        if state.batch_size == 1 < len(prompts) and self.side_by_side(state, longest):
            return self.branches.generate(state, prompts, Writer(max_new_tokens, stop, temperature, seed))
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop, "temperature": temperature}
        alone = self.config.bank_scope == "shared" and state.batch_size == 1
        parts = [[prompt] for prompt in prompts] if alone else [prompts]
        written = (super(LongMem, self).generate(state, part, seed=seed, **options) for part in parts)
        return [row for part in written for row in part]

    def side_by_side(self, state: LongMemState, longest: int) -> bool:
        """Whether continuations of at most `longest` tokens may lie side by side behind the state's caches."""
        return int(state.left_B.min()) >= longest

    @property
    def branches(self) -> Branches[LongMemState]:
        """Continuations that lie side by side behind a state's caches."""
        return Branches(self.backbone, self.branch)

    def branch(
        self, state: LongMemState, tokens_BT: Tensor, steps_T: Tensor, layout: Layout, *, keep: bool
    ) -> tuple[Tensor, LongMemState]:
        """Read tokens that lie side by side; see `Branch`."""
        if keep:
            kv, side_kv = (part.reserve(len(steps_T), states.MOST) for part in (state.kv, state.side_kv))
            state = dataclasses.replace(state, kv=kv, side_kv=side_kv)
        reader, side_reader = CacheReader(self.backbone, state.kv, layout), MemoryReader(self, state, layout)
        hidden_BTC = self._hidden(tokens_BT, layout, reader, side_reader)
        if keep:
            state = dataclasses.replace(state, kv=reader.side_by_side(), side_kv=side_reader.side_by_side())
        return hidden_BTC, state

    def room(self, state: LongMemState) -> Tensor:
        """Up to the end of the segment."""
        return state.left_B

    def reserve(self, state: LongMemState, lengths_B: Tensor) -> LongMemState:
        """Room for the tokens of the call in both caches, as far as the segment goes."""
        kv, side_kv = (reserved(part, lengths_B, state.left_B) for part in (state.kv, state.side_kv))
        return dataclasses.replace(state, kv=kv, side_kv=side_kv)

    def step(self, state: LongMemState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[LongMemState, Tensor]:
        """Backbone, side network, and at a segment's end its entry into the bank.

        Raises:
            UserError: when rows that share a bank are not equally long.
        """
        self._check_level(state, lengths_B)
        state = self.reserve(state, lengths_B)
        layout = self._layout(state, tokens_Bt)
        reader, side_reader = CacheReader(self.backbone, state.kv, layout), MemoryReader(self, state, layout)
        hidden_BtC = self._hidden(tokens_Bt, layout, reader, side_reader)
        state = dataclasses.replace(
            state, kv=reader.grown(lengths_B), side_kv=side_reader.grown(lengths_B), left_B=state.left_B - lengths_B
        )
        return self._commit(state), hidden_BtC

    def check_state(self, state: LongMemState) -> None:
        """Both caches hold the open segment, and the bank no more chunks than it has."""
        super().check_state(state)
        state.kv.check("kv", self.segment)
        state.side_kv.check("side_kv", self.segment)
        states.within("side_kv.used_B", state.side_kv.used_B, state.kv.used_B, state.kv.used_B)
        states.within("left_B", state.left_B, 1, self.segment - state.kv.used_B)
        bank = state.bank
        states.same_slots("bank", (bank.k_BKncD, bank.v_BKncD, bank.mean_BKnD), bank.count_B)

    def skim(self, state: LongMemState, tokens_Bt: Tensor, lengths_B: Tensor) -> LongMemState:
        """Read blocks that complete their segments and are not scored: the bank needs the cached layer, no more."""
        self._check_level(state, lengths_B)
        layout = self._layout(state, tokens_Bt)
        reader = CacheReader(self.backbone, state.kv, layout)
        self.run_backbone(tokens_Bt, layout, reader, layers=self.memory_layer + 1)
        segment = reader.grown(lengths_B)
        bank = state.bank.add(segment.k[-1], segment.v[-1], segment.used_B, self.config)
        fresh = self.start(state.batch_size)
        return dataclasses.replace(fresh, length_B=state.length_B, pending_BC=state.pending_BC, bank=bank)

    def run_backbone(
        self, tokens_Bt: Tensor, layout: Layout, attend: attention.Attend, layers: int | None = None
    ) -> tuple[list[Tensor], Tensor]:
        """Frozen backbone states after every r-th block (the embeddings first), and the last after the final norm."""
        position_Bt = layout.position_BT.clamp(max=self.backbone.max_positions - 1)
        hidden_BtC = self.parts.embed(tokens_Bt, position_Bt)
        states = [hidden_BtC]
        with torch.no_grad(), attention.seam(self.backbone.config):
            for i, layer in enumerate(self.parts.layers[:layers], start=1):
                hidden_BtC = attention.run_layer(layer, hidden_BtC, attend)
                if i % self.config.reduction == 0:
                    states.append(hidden_BtC)
            return states, self.parts.norm(hidden_BtC)

    def _hidden(self, tokens_BT: Tensor, layout: Layout, reader: CacheReader, side_reader: CacheReader) -> Tensor:
        """`hidden_BTC` of backbone and side network, after the side network's norm."""
        states, final_BTC = self.run_backbone(tokens_BT, layout, reader)
        hidden_BTC: Tensor = self.side.norm(self.side(states, final_BTC, side_reader)[-1])
        return hidden_BTC

    def _check_level(self, state: LongMemState, lengths_B: Tensor) -> None:
        if self.config.bank_scope == "shared" and bool(
            (lengths_B != lengths_B[0]).any() or (state.left_B != state.left_B[0]).any()
        ):
            raise UserError(
                "Rows that share a bank (bank_scope=shared) end their segments together: give rows of equal length, or "
                "use bank_scope=per_row."
            )

    def _commit(self, state: LongMemState) -> LongMemState:
        """Put the finished segments into the bank and empty their caches."""
        ended_B = state.left_B == 0
        if not bool(ended_B.any()):
            return state
        k, v = state.kv.k[self.memory_layer], state.kv.v[self.memory_layer]
        bank = state.bank.add(k, v, torch.where(ended_B, state.kv.used_B, 0), self.config)
        return dataclasses.replace(
            state,
            bank=bank,
            kv=state.kv.cut(0, ended_B),
            side_kv=state.side_kv.cut(0, ended_B),
            left_B=torch.where(ended_B, self.segment, state.left_B),
        )

    def _layout(self, state: LongMemState, tokens_Bt: Tensor) -> Layout:
        steps = torch.arange(tokens_Bt.shape[1], device=tokens_Bt.device)
        return Layout(state.kv.used_B[:, None] + steps)

    @property
    def _bos_hidden_C(self) -> Tensor:
        """The side network's final state after BOS alone; computed again when weights have changed."""
        with torch.no_grad():
            return self._bos_hidden.of(self._after_bos, self.side, self.backbone.model)

    def with_graph(self, state: LongMemState) -> LongMemState:
        """In front of a text stands what the side network makes of BOS."""
        pending_BC = torch.where((state.length_B == 0)[:, None], self._after_bos(), state.pending_BC)
        return dataclasses.replace(state, pending_BC=pending_BC)

    def _after_bos(self) -> Tensor:
        tokens = torch.tensor([[self.backbone.bos]], device=self.backbone.device)
        layout = Layout(torch.zeros_like(tokens))
        reader = CacheReader(self.backbone, self.backbone.empty_kv(1), layout)
        side_reader = CacheReader(self.backbone, self.backbone.empty_kv(1, len(self.side.blocks)), layout)
        return self._hidden(tokens, layout, reader, side_reader)[0, 0]


class MemoryReader(CacheReader):
    """Local attention of the side network, with memory attention fused in at the memory layer (equations 3 and 4)."""

    def __init__(self, method: LongMem, state: LongMemState, layout: Layout) -> None:
        super().__init__(method.backbone, state.side_kv, layout)
        self.method, self.bank = method, state.bank
        self._level = layout.plain and state.side_kv.level
        self.ids_BHtm: Tensor | None = None

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attend locally; in the memory layer also to the retrieved chunks."""
        block = len(self.k)
        if block != self.method.memory_block or self.bank.mean_BKnD.shape[2] == 0:
            return super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        memory = (q_BHTD, *self._retrieved(q_BHTD), self.method.side.gate_H)
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        local = (rotate(q_BHTD, self._q_rotary), k_BKSD, v_BKSD)
        if self._level and (window is None or window >= k_BKSD.shape[2]):
            return joint_memory_attention(*local, *memory, scale=scale, slopes_H=self.positions.slopes_H)
        # Rows that are not equally long have padding between their cache and the new tokens, which only a mask hides.
        return fuse_memory(sdpa(*local, self.mask(window, q_BHTD.dtype), scale), *memory, scale=scale)

    def _retrieved(self, q_BHTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys and values of the bank, the chunks that every query takes of it, and which of these exist."""
        self.ids_BHtm, found_BHtm = self.bank.search(q_BHTD, self.method.config)
        k_BKncD, v_BKncD, ids_BHtm = self.bank.k_BKncD, self.bank.v_BKncD, self.ids_BHtm
        if self.method.config.short_bank == "zero_slot":
            k_BKncD, v_BKncD = self.bank.with_zero_slot()
            ids_BHtm = ids_BHtm.masked_fill(~found_BHtm, k_BKncD.shape[2] - 1)
            found_BHtm = found_BHtm.any(-1, keepdim=True).expand_as(found_BHtm)
        return k_BKncD, v_BKncD, ids_BHtm, found_BHtm
