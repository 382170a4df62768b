"""A press of kvpress at the end of a context, or at the end of every window.

Legend: B rows, t tokens of a block, T tokens whose inputs are kept, S slots of the cache, K key/value heads, C width of
the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.attention import KV, CacheReader, Layout, after, per_head
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Capabilities, Lengths
from contextlab.methods.parts.local_cache import LocalCache, LocalState, reserved
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.press.config import PressConfig
from contextlab.methods.press.formula import PressFormula
from contextlab.methods.press.presses import LayerPress


@dataclasses.dataclass(frozen=True)
class PressState(LocalState):
    """A local cache, and what the press will need.

    Attributes:
        due_B: tokens until the press runs; 0 where it does not any more.
        dropped_B: tokens that were dropped, whose positions stay taken.
        inputs: per layer `inputs_B1TC`, what has entered its attention, in the place of keys; no values.
    """

    due_B: Tensor
    dropped_B: Tensor
    inputs: KV


class Press(SegmentMethod[PressConfig, PressState]):
    """Attends to all that a press of kvpress has left, and to all that was read after it.

    With `when=context` the press runs once, when a context of known length has been read. Kept keys stay at their
    positions, and the text goes on at the next one; where the positions of the model end, it starts again. With
    `when=window` it runs at the end of every N tokens on all that is in view, and kept keys move up to the first
    positions.

    Attributes:
        press: which slots stay.
        moves: whether kept keys move up.
    """

    Config = PressConfig

    def __init__(self, backbone: Backbone, config: PressConfig | None = None) -> None:
        super().__init__(backbone, config)
        config, positions = self.config, backbone.max_positions
        self.moves = config.when == "window"
        if not self.moves and config.N is not None:
            raise UserError(f"N={config.N} is the length of windows: say when=window.")
        segment = config.length(int(positions * config.ratio)) if self.moves else positions
        self.press = LayerPress(backbone, config)
        self.local = LocalCache(segment, keep_last=self._most(segment) if self.moves else 0)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming, up to the model's positions where kept keys stay at theirs."""
        return Capabilities(max_context=None if self.moves else self.local.segment)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes over what the cache holds, and the products of a press that has few."""
        model = Model.of(self.backbone)
        if model is None or self.press.needs.queries is None:
            return None
        context = None if self.moves else ahead.context if ahead else 0
        return PressFormula(model, self.local, self.first_segment(ahead), self.press, context)

    def placed_for(self, ahead: Lengths | None) -> Lengths | None:
        """A window ends with the context; where the positions of the model end is not placed."""
        return Lengths(ahead.context) if self.moves and ahead else None

    def begin(self, empty: LocalState, ahead: Lengths | None) -> PressState:
        """An empty state, in which the press is due at the end of the window or the context."""
        zeros_B = torch.zeros_like(empty.left_B)
        due_B = empty.left_B if self.moves else zeros_B + (ahead.context if ahead else 0)
        none = empty.pending_BC[:, None, None, :].new_zeros(len(zeros_B), 1, 0, self.backbone.width)
        inputs = KV((none,) * (self.backbone.layers if self.press.needs.inputs != 0 else 0), (), zeros_B)
        return PressState(empty.length_B, empty.pending_BC, empty.kv, empty.left_B, due_B, zeros_B, inputs)

    def left(self, state: PressState) -> Tensor:
        """Up to where the press runs, or where the positions start again."""
        left_B = super().left(state)
        return torch.where(state.due_B > 0, torch.minimum(left_B, state.due_B), left_B)

    def reserve(self, state: PressState, lengths_B: Tensor) -> PressState:
        """Free slots in the cache, and for inputs where those of all tokens are kept."""
        state = super().reserve(state, lengths_B)
        if self.press.needs.inputs is not None or not bool((state.due_B > 0).all()):
            return state
        return dataclasses.replace(state, inputs=reserved(state.inputs, lengths_B, state.due_B))

    def reader(self, state: PressState, layout: Layout) -> CacheReader:
        """Queries at their positions in the text, where these are not the slots."""
        if not bool(state.dropped_B.any()):
            return super().reader(state, layout)
        return GapReader(self.network, state.kv, layout, state.dropped_B)

    def step(self, state: PressState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[PressState, Tensor]:
        """Attend to the cache and the new tokens; then run the press where it is due, or start again."""
        first_B = self._first_kept_input(state)
        with self._inputs(bool((first_B < lengths_B).any())) as inputs:
            hidden_BtC, readers = self.forward(state, tokens_Bt, self.local.layout(state, tokens_Bt.shape[1]))
        grown = self.local.grown(state, readers, lengths_B)
        grown = dataclasses.replace(grown, due_B=(state.due_B - lengths_B).clamp(min=0))
        if inputs:
            count_B = (lengths_B - first_B).clamp(min=0)
            grown = dataclasses.replace(grown, inputs=_with_inputs(state.inputs, inputs, first_B, count_B))
        pressed = self._pressed(grown, (state.due_B > 0) & (grown.due_B == 0))
        return self._started_again(pressed), hidden_BtC

    def check_state(self, state: PressState) -> None:
        """The inputs are those that the press will need."""
        super().check_state(state)
        used_B, due_B, needed = state.kv.used_B, state.due_B, self.press.needs.inputs
        states.within("dropped_B", state.dropped_B, 0, 0 if self.moves else self.local.segment - state.left_B - used_B)
        states.within("due_B", due_B, state.left_B if self.moves else 0, state.left_B if self.moves else states.MOST)
        kept_B = used_B if needed is None else (needed - due_B).clamp(min=0).minimum(used_B)
        kept_B = torch.where(due_B > 0, kept_B, 0)
        states.within("inputs.used_B", state.inputs.used_B, kept_B if needed != 0 else 0, kept_B)
        if needed != 0:
            state.inputs.check("inputs", self.local.segment)

    def _most(self, segment: int) -> int:
        """The most tokens that stay in view at the end of a window.

        Raises:
            UserError: when windows are too short for the press.
        """
        needs, most = self.press.needs, 0
        if needs.inputs is None:
            raise UserError(
                f"{self.config.name} needs what entered attention of all tokens in view, which is known at the end of "
                "a context alone: use when=context, or a press such as SnapKV."
            )
        if segment < max(needs.inputs, needs.beyond + 1):
            least = max(needs.inputs, needs.beyond + 1)
            raise UserError(f"{self.config.name} needs windows of {least} tokens with these options: use N={least}.")
        while (more := self.press.kept(most + segment)) > most:
            most = more
        return most

    def _first_kept_input(self, state: PressState) -> Tensor:
        """`first_B`: the first of the next tokens whose inputs the press will need; beyond all texts where none is."""
        needed, due_B = self.press.needs.inputs, state.due_B
        if needed == 0:
            return torch.full_like(due_B, states.MOST)
        first_B = torch.zeros_like(due_B) if needed is None else (due_B - needed).clamp(min=0)
        return torch.where(due_B > 0, first_B, states.MOST)

    @contextmanager
    def _inputs(self, needed: bool) -> Iterator[list[Tensor]]:
        """What enters the attention of the layers inside of the block, in their order; empty where it is not needed."""
        inputs: list[Tensor] = []

        def enter(_layer: int, x_BtC: Tensor) -> Tensor:
            inputs.append(x_BtC)
            return x_BtC

        if not needed:
            yield inputs
            return
        with self.press.projections.watching(enter):
            yield inputs

    def _pressed(self, state: PressState, rows_B: Tensor) -> PressState:
        """The state after the press in these rows; a text that is too short for it stays whole."""
        if not bool(rows_B.any()):
            return state
        pairs = zip(state.kv.used_B.tolist(), rows_B.tolist(), strict=True)
        kept_B = torch.tensor([self.press.kept(used) if now else used for used, now in pairs])
        kv, inputs = state.kv, state.inputs.cut(0, rows_B)
        if not torch.equal(kept_B, kv.used_B):
            slots = self._slots(state, kept_B)
            kv = kv.keep_slots(slots, kept_B, self.network) if self.moves else kv.take(slots, kept_B)
        if self.moves:
            left_B = torch.where(rows_B, self.local.segment, state.left_B)
            return dataclasses.replace(state, kv=kv, inputs=inputs, left_B=left_B, due_B=left_B)
        dropped_B = state.dropped_B + state.kv.used_B - kept_B
        return dataclasses.replace(state, kv=kv, inputs=inputs, dropped_B=dropped_B)

    def _slots(self, state: PressState, kept_B: Tensor) -> tuple[Tensor, ...]:
        """Per layer, `slots_BKS` that stay; row by row, because a press knows no padding."""
        used, counts, kept = (x.tolist() for x in (state.kv.used_B, state.inputs.used_B, kept_B))
        rows = [row for row in range(len(used)) if kept[row] < used[row]]
        all_S = torch.arange(max(kept), device=state.device)
        slots = []
        for layer, (k_BKSD, v_BKSD) in enumerate(zip(state.kv.k, state.kv.v, strict=True)):
            slots_BKS = all_S.repeat(*k_BKSD.shape[:2], 1)
            for row in rows:
                x_1TC = state.inputs.k[layer][row : row + 1, 0, : counts[row]] if state.inputs.k else None
                k_1KSD, v_1KSD = (x[row : row + 1, :, : used[row]] for x in (k_BKSD, v_BKSD))
                slots_BKS[row, :, : kept[row]] = self.press.slots(layer, x_1TC, k_1KSD, v_1KSD)[0]
            slots.append(slots_BKS)
        return tuple(slots)

    def _started_again(self, state: PressState) -> PressState:
        """The state with empty rows where the model's positions have ended."""
        ended_B = state.left_B == 0
        if not bool(ended_B.any()):
            return state
        return dataclasses.replace(
            state,
            kv=state.kv.cut(0, ended_B),
            inputs=state.inputs.cut(0, ended_B),
            left_B=torch.where(ended_B, self.local.segment, state.left_B),
            dropped_B=state.dropped_B.masked_fill(ended_B, 0),
        )


class GapReader(CacheReader):
    """Causal attention of queries whose positions are further on than their slots.

    Args:
        backbone: whose positions these are.
        kv: cache, whose keys are rotated to positions of their own.
        layout: of the new tokens, by slots.
        dropped_B: how much further, on the host.
    """

    def __init__(self, backbone: Backbone, kv: KV, layout: Layout, dropped_B: Tensor) -> None:
        super().__init__(backbone, kv, layout)
        self._q_rotary = per_head(backbone, after(dropped_B, layout.position_BT), kv.k[0].dtype)


def _with_inputs(past: KV, inputs: list[Tensor], first_B: Tensor, count_B: Tensor) -> KV:
    """Inputs, and after them those of each row's `count_B` new tokens from `first_B` on."""
    new = KV(tuple(x_BtC[:, None] for x_BtC in inputs), (), count_B)
    if bool(first_B.any()):
        new = new.take(first_B[:, None] + torch.arange(int(count_B.max())), count_B)
    return past.joined(new)
