"""UltraGist as a state machine: windows are read with the gists of those before, then gists take their place.

A window's gists are computed when it ends: an incomplete window stays as it is. The end of an announced context ends a
window too, so that a question sees gists alone.

Legend: B rows, t tokens of a block, C width of the model, J slots that are kept.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model, update_flops
from contextlab.attention import KV
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.low_rank import twin
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.ultragist.config import UltraGistConfig
from contextlab.methods.ultragist.formula import UltraGistFormula
from contextlab.methods.ultragist.gists import Gists, Windows


@dataclasses.dataclass(frozen=True)
class UltraGistState(LocalState):
    """Sinks, gists and the open window, in one cache with keys without RoPE.

    Attributes:
        front_B: slots in front of the open window.
        context_B: tokens of the context that was announced, 0 when none was.
    """

    front_B: Tensor
    context_B: Tensor


class UltraGist(SegmentMethod[UltraGistConfig, UltraGistState]):
    """Windows of W tokens; of every one that has ended a gist stays for each `ratio` tokens, as a key and a value.

    A token's position is its slot in the cache, after sinks and gists, so that positions stay where the model was
    trained however long the text.
    """

    Config = UltraGistConfig

    def __init__(self, backbone: Backbone, config: UltraGistConfig | None = None) -> None:
        super().__init__(backbone, config)
        if backbone.slopes_H is not None:
            raise UserError("UltraGist needs rotary or learned positions: use longmem with an ALiBi model.")
        self.extent = self.config.extent(backbone.max_positions)
        self.local = LocalCache(self.extent.window, keep_first=self.extent.front)
        self.gists = self.learns(Gists(backbone, self.config.rank), self.config.weights)

    @property
    def twin(self) -> str:
        """The window with an update of the same rank."""
        return twin("window", N=self.local.segment, rank=self.config.rank)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Windows after gists, and the gists."""
        model = Model.of(self.backbone)
        if model is None:
            return None
        return UltraGistFormula(model, self.extent, self.config.ratio, update_flops(self.gists.updates), ahead)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> UltraGistState:
        """Without gists; the last window of a context that is announced ends with it."""
        context_B = torch.full_like(empty.length_B, ahead.context if ahead else 0)
        return UltraGistState(
            empty.length_B,
            empty.pending_BC,
            # Gists move to other slots when older ones are dropped, or tokens in front of them become gists.
            dataclasses.replace(empty.kv, raw=frozenset(range(self.backbone.layers))),
            self._window_after(empty.length_B, context_B),
            front_B=torch.zeros_like(empty.length_B),
            context_B=context_B,
        )

    def close(self, state: UltraGistState, ended_B: Tensor) -> UltraGistState:
        """Gists take the place of the windows."""
        left_B = torch.where(ended_B, self._window_after(state.length_B, state.context_B), state.left_B)
        return dataclasses.replace(self._compressed(state, ended_B), left_B=left_B)

    def check_state(self, state: UltraGistState) -> None:
        """The open window has no more tokens than have been read of it."""
        super().check_state(state)
        states.within("context_B", state.context_B, 0, states.MOST)
        states.within("front_B", state.front_B, 0, self.extent.front)
        open_B = state.kv.used_B - state.front_B
        states.within("tokens of the open window", open_B, 0, self.local.segment - state.left_B)

    def _window_after(self, read_B: Tensor, context_B: Tensor) -> Tensor:
        """The length of the window after `read_B` tokens: up to the end of the announced context, whole after it."""
        rest_B = context_B - read_B
        return torch.where(rest_B > 0, rest_B.clamp(max=self.local.segment), self.local.segment)

    def _ratios(self, rows: int) -> Tensor:
        """Tokens for one gist, `ratio_B`; drawn in training."""
        ratios = self.config.drawn
        if not self.gists.training or not ratios:
            return torch.full((rows,), self.config.ratio)
        return torch.tensor(ratios)[torch.randint(len(ratios), (rows,))]

    def _compressed(self, state: UltraGistState, ended_B: Tensor) -> UltraGistState:
        """The state with gists in the place of the windows that have ended."""
        ended = ended_B.nonzero()[:, 0]
        whole = len(ended) == len(ended_B)
        alone = state if whole else state.index(ended.tolist())
        front_B = alone.front_B
        windows = Windows(front_B, alone.kv.used_B - front_B, self._ratios(len(ended)))
        # The first window's sinks are tokens of it.
        kept_B = torch.where(front_B > 0, front_B, alone.kv.used_B.clamp(max=self.extent.sinks))
        slots_BJ, used_B = self._slots(kept_B, windows.gists_B, alone.kv.slots)
        kv = self.gists(alone.kv, windows).take(slots_BJ, used_B)
        if whole:
            return dataclasses.replace(state, kv=kv, front_B=used_B)
        front_B = state.front_B.index_copy(0, ended, used_B)
        return dataclasses.replace(state, kv=_replaced(state.kv, ended, kv), front_B=front_B)

    def _slots(self, kept_B: Tensor, gists_B: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """Slots to take of a cache with gists after it, of which the oldest beyond `M` are dropped; and their number.

        Args:
            kept_B: slots in front of the window that stay, sinks and gists.
            gists_B: new ones.
            slots: of the cache; new gists begin after them.
        """
        all_B = kept_B + gists_B
        used_B = all_B.clamp(max=self.extent.front)
        steps_J = torch.arange(int(used_B.max()))
        dropped_BJ = torch.where(steps_J < self.extent.sinks, 0, (all_B - used_B)[:, None])
        number_BJ = steps_J + dropped_BJ
        return torch.where(number_BJ < kept_B[:, None], number_BJ, number_BJ - kept_B[:, None] + slots), used_B


def _replaced(kv: KV, rows: Tensor, other: KV) -> KV:
    """A cache with other rows in the place of some."""
    used_B = kv.used_B.index_copy(0, rows, other.used_B)
    slots = int(used_B.max())

    def put(x_BKSD: Tensor, y_BKSD: Tensor) -> Tensor:
        x_BKSD, y_BKSD = (
            F.pad(part[:, :, :slots], (0, 0, 0, max(slots - part.shape[2], 0))) for part in (x_BKSD, y_BKSD)
        )
        return x_BKSD.index_copy(0, rows.to(x_BKSD.device), y_BKSD)

    k, v = (tuple(map(put, *both)) for both in ((kv.k, other.k), (kv.v, other.v)))
    return kv.replace(k, v, used_B)
