"""The local context of a method: a cache that is cut back to its first and last slots at the end of every segment.

A token's position is its slot in the cache, so positions never leave the range the model was trained on. Models that
learn their positions cannot move cached states; there positions run on, modulo the model's range (circular positions).

Legend: B rows, T tokens of a pass, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import pydantic
import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import KV, CacheReader, Layout, Packing, Positions, after
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths, MethodConfig, State
from contextlab.methods.parts.branches import Branches
from contextlab.methods.parts.packed_cache import EXACT, FewBits, PackedKV


@dataclasses.dataclass(frozen=True)
class LocalState(State):
    """A local cache and the tokens left until it is cut back.

    A method that keeps several caches of the same tokens says so in `caches` and `with_caches`.

    Attributes:
        kv: keys and values of the tokens in view.
        left_B: tokens until the end of the segment, per row.
    """

    kv: KV
    left_B: Tensor

    @property
    def cached(self) -> int:
        """Tokens in the cache."""
        return int(self.kv.used_B.sum())

    @property
    def caches(self) -> tuple[KV, ...]:
        """All caches that hold the tokens in view, with the same slots in use."""
        return (self.kv,)

    def with_caches(self, *caches: KV) -> Self:
        """The state with other caches, in the order of `caches`."""
        (kv,) = caches
        return dataclasses.replace(self, kv=kv)


L = TypeVar("L", bound=LocalState)


class Appended(Protocol):
    """One of a state's caches with what a pass has appended to it; usually a `CacheReader`."""

    def grown(self, lengths_B: Tensor) -> KV:
        """The cache with each row's first `lengths_B` new tokens."""

    def side_by_side(self) -> KV:
        """The cache with the tokens of all candidates after the slots in use."""


Forward: TypeAlias = Callable[[L, Tensor, Layout], tuple[Tensor, Sequence[Appended]]]
"""A forward pass over tokens that follow a state: `(state, tokens_BT, layout)` gives `hidden_BTC`, and what it has
appended to the state's caches, in the order of `caches`."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class CacheConfig(MethodConfig):
    """Settings of a cache in few bits.

    Attributes:
        cache: type of keys and values in view, `int8` or `int4` (KIVI's rule); the model's own when not given.
    """

    cache: FewBits | None = None


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LocalConfig(MethodConfig):
    """The length of a window.

    Attributes:
        N: tokens of a window; 1,024 or as many as the model has positions when not given.
    """

    N: pydantic.PositiveInt | None = None

    def length(self, positions: int) -> int:
        """Tokens of a window where there are so many positions for it, all of the model's or a part of them.

        Raises:
            UserError: when there are none, or the window asked for does not fit.
        """
        if positions < 1:
            raise UserError("What is kept leaves no positions of the model for a window: keep fewer tokens.")
        if self.N is not None and positions < self.N:
            raise UserError(
                f"N={self.N} is more than the {positions} positions that a window has: use N={positions} or less."
            )
        return self.N or min(1024, positions)


@dataclasses.dataclass(frozen=True)
class LocalCache:
    """How long a segment is, what stays of a cache at its end, and what a query sees of it.

    A method holds one; its states derive from `LocalState`.

    Attributes:
        segment: tokens after which the cache is cut back.
        keep_first: slots at the beginning that stay, and that every query sees.
        keep_last: slots at the end that stay.
        band: how many tokens a query attends to, itself and those just before it; None for all.
        storage: of what is in view, in few bits; the model's own type when None.
    """

    segment: int
    keep_first: int = 0
    keep_last: int = 0
    band: int | None = None
    storage: FewBits | None = None

    @property
    def forgets(self) -> bool:
        """Whether nothing of a segment stays after its end, nor is packed inside of it."""
        return not (self.keep_first or self.keep_last or self.storage)

    @property
    def exact(self) -> int:
        """First slots that are never packed: those that stay, and at least a few, on which attention rests."""
        return max(self.keep_first, EXACT)

    def first_segment(self, ahead: Lengths | None) -> int:
        """Tokens of the first segment, whose end is placed for what is ahead."""
        return ahead.first_segment(self.segment) if ahead else self.segment

    def empty(self, backbone: Backbone, batch_size: int, ahead: Lengths | None = None) -> LocalState:
        """An empty cache.

        Args:
            backbone: whose keys and values it will hold.
            batch_size: number of rows.
            ahead: what the first boundary is placed for; None for a method whose segments do not start cold.
        """
        first = self.first_segment(ahead)
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        pending_BC = backbone.bos_hidden_C.expand(batch_size, -1)
        return LocalState(zeros_B, pending_BC, self.stored(backbone.empty_kv(batch_size)), zeros_B + first)

    def stored(self, empty: KV) -> KV:
        """An empty cache as this one's tokens are kept."""
        return empty if self.storage is None else PackedKV.empty(empty, self.storage, self.exact)

    def until_packed(self, state: LocalState, left_B: Tensor) -> Tensor:
        """So many tokens, or those until the next tokens in view are packed."""
        for kv in state.caches:
            left_B = left_B if kv.room_B is None else torch.minimum(left_B, kv.room_B)
        return left_B

    def reserve(self, state: L, lengths_B: Tensor) -> L:
        """The state with free slots for `lengths_B` further tokens, as far as its segment goes."""
        return state.with_caches(*(reserved(kv, lengths_B, state.left_B) for kv in state.caches))

    def layout(self, state: LocalState, count: int) -> Layout:
        """The layout of `count` tokens, one after the other, that follow a state."""
        return Layout(state.kv.next_positions(count), None, self.band, self.keep_first)

    def input_positions(self, state: LocalState, layout: Layout) -> Tensor:
        """`position_BT` for models that learn them: slots where a segment starts cold, else running on (circular)."""
        if not self.keep_last:
            return layout.position_BT
        return after(state.length_B - state.kv.used_B, layout.position_BT)

    def hidden(self, backbone: Backbone, state: LocalState, tokens_BT: Tensor, reader: CacheReader) -> Tensor:
        """`hidden_BTC` of tokens that lie after a state, with the attention and the layout of a reader."""
        return backbone.forward(tokens_BT, self.input_positions(state, reader.layout), reader)

    def after(self, state: L, readers: Sequence[Appended], lengths_B: Tensor, positions: Positions) -> L:
        """The state after a pass over each row's next `lengths_B` tokens; where a segment has ended, cut back."""
        return self.cut_back(self.grown(state, readers, lengths_B), positions)

    def grown(self, state: L, readers: Sequence[Appended], lengths_B: Tensor) -> L:
        """The state after such a pass, before anything is cut back: no token is left of a segment that has ended."""
        caches = (reader.grown(lengths_B) for reader in readers)
        return dataclasses.replace(state.with_caches(*caches), left_B=state.left_B - lengths_B)

    def opened(self, state: L) -> L:
        """The state as a pass reads it."""
        return state if self.storage is None else state.with_caches(*(kv.opened() for kv in state.caches))

    def packed(self, before: L, after: L, ended_B: Tensor, packing: Packing | None = None) -> L:
        """The state after a pass as it is kept.

        Args:
            before: the state that was opened for the pass.
            after: what has become of it.
            ended_B: rows whose segment the pass has ended.
            packing: of the pass, where it goes beyond groups of its only cache.
        """
        if self.storage is None:
            return after
        codes = None if packing is None else packing.codes()
        pairs = zip(before.caches, after.caches, strict=True)
        return after.with_caches(*(old.closed(new, ended_B, codes) for old, new in pairs))

    def cut_back(self, state: L, positions: Positions, importance: Tensor | Sequence[Tensor] | None = None) -> L:
        """The state with what stays of segments that have ended, and a whole one left of the next.

        Args:
            state: after the last tokens of the segments.
            positions: how the model encodes positions.
            importance: of every slot; see `SegmentMethod.importance`.
        """
        ended_B, used_B = state.left_B == 0, state.kv.used_B
        if importance is None:
            caches = [self.cut(kv, ended_B, positions) for kv in state.caches]
        elif isinstance(importance, Tensor):
            stays_BS = self._stays(importance, used_B.to(importance.device), ended_B.to(importance.device))
            kept_B = stays_BS.sum(1).cpu()
            slots_BS = _in_order(stays_BS, kept_B)
            caches = [kv.keep_slots(slots_BS, kept_B, positions) for kv in state.caches]
        else:
            caches = self._kept_by_head(state, positions, importance)
        return dataclasses.replace(state.with_caches(*caches), left_B=torch.where(ended_B, self.segment, state.left_B))

    def _kept_by_head(self, state: L, positions: Positions, importance: Sequence[Tensor]) -> list[KV]:
        """The caches with the slots that stay by `importance_BKS` of every layer.

        All heads keep as many as there is room for, so that nobody waits for a device to say how many these are.
        """
        ended_B, used_B = state.left_B == 0, state.kv.used_B
        kept_B = torch.where(ended_B, used_B.clamp(max=self.keep_first + self.keep_last), used_B)
        if torch.equal(kept_B, used_B):
            return list(state.caches)
        device = importance[0].device
        used_B, ended_B = used_B.to(device), ended_B.to(device)
        finite = (part.clamp(min=torch.finfo(part.dtype).min) for part in importance)
        slots = tuple(_in_order(self._stays(part, used_B, ended_B), kept_B) for part in finite)
        return [kv.keep_slots(slots, kept_B, positions) for kv in state.caches]

    def _stays(self, importance: Tensor, used_B: Tensor, ended_B: Tensor) -> Tensor:
        """Which slots stay (bool), of the shape of `importance`: `(B, S)`, or `(B, K, S)`."""
        per_row = (-1, *(1,) * (importance.dim() - 1))
        slot_S = torch.arange(importance.shape[-1], device=used_B.device)
        real = slot_S < used_B.view(per_row)
        first = slot_S < self.keep_first
        ranked = importance.masked_fill(first, float("inf")).masked_fill(~real, float("-inf"))
        best = ranked.argsort(dim=-1, descending=True, stable=True)[..., : self.keep_first + self.keep_last]
        chosen = torch.zeros_like(real.expand_as(importance)).scatter(-1, best, True) & (ranked > float("-inf"))
        return torch.where(ended_B.view(per_row), chosen, real)

    def cut(self, kv: KV, ended_B: Tensor, positions: Positions) -> KV:
        """A cache with what stays of it in the rows whose segment has ended."""
        return kv.keep(self.keep_first, self.keep_last, ended_B, positions)

    def skim(self, state: L) -> L | None:
        """The state after its segment without computing it; None where something of the segment stays."""
        if not self.forgets:
            return None
        all_B = torch.ones_like(state.left_B, dtype=torch.bool)
        emptied = state.with_caches(*(kv.cut(0, all_B) for kv in state.caches))
        return dataclasses.replace(emptied, left_B=torch.full_like(state.left_B, self.segment))

    def check(self, state: LocalState, least_left: Tensor | int = 1) -> None:
        """Refuse a loaded state whose caches hold more than stays of a segment and has been read of the open one.

        Args:
            state: from a file.
            least_left: the fewest tokens that may be left of a segment between calls.

        Raises:
            states.Misfit: naming what is wrong.
        """
        most, used_B = self.keep_first + self.keep_last + self.segment, state.kv.used_B
        for kv in state.caches:
            kv.check("kv", most)
            states.within("kv.used_B", kv.used_B, used_B, used_B)
        states.within("left_B", state.left_B, least_left, self.segment)
        states.within("left_B", state.left_B, 0, most - used_B)

    def branches(self, backbone: Backbone, forward: Forward[L]) -> Branches[L]:
        """Continuations that lie side by side after the caches of a state."""
        return Branches(backbone, _Beside(forward), self.band, self.keep_first)


@dataclasses.dataclass(frozen=True)
class _Beside(Generic[L]):
    """Reads tokens that lie side by side after the caches of a state; see `Branch`."""

    forward: Forward[L]

    def __call__(self, state: L, tokens_BT: Tensor, steps_T: Tensor, layout: Layout, *, keep: bool) -> tuple[Tensor, L]:
        state = state.with_caches(*(kv.opened() for kv in state.caches))
        if not keep:
            return self.forward(state, tokens_BT, layout)[0], state
        state = state.with_caches(*(kv.reserve(len(steps_T), states.MOST) for kv in state.caches))
        hidden_BTC, readers = self.forward(state, tokens_BT, layout)
        return hidden_BTC, state.with_caches(*(reader.side_by_side() for reader in readers))


def _in_order(stays: Tensor, kept_B: Tensor) -> Tensor:
    """The slots that stay of every row, or of every row and head, in their order; `kept_B` says how many they are."""
    return (~stays).int().argsort(dim=-1, stable=True)[..., : int(kept_B.max())]


def reserved(kv: KV, lengths_B: Tensor, left_B: Tensor) -> KV:
    """A cache with free slots for `lengths_B` further tokens, of which it holds `left_B` before it is cut back.

    Rows that differ are copied by every pass, so nothing is reserved for them.
    """
    if not kv.level or not len(lengths_B) or not bool((lengths_B == lengths_B[0]).all()):
        return kv
    length = int(lengths_B[0])
    return kv.reserve(length, kv.slots + int(left_B.max()), cut=length >= int(left_B.min()))
