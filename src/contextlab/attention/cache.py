"""Keys and values of the tokens in view.

A cache is a value: the numbers that it holds never change. Where its tensors begin a larger buffer, the cache that
grows out of it is written into the free slots after, once; a second cache that grows out of it is copied.

Legend: B rows, T new tokens, S tokens in the cache, K key/value heads, D head width.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention.rotary import Positions, Rotary, of_heads, per_head, rotate
from contextlab.tensors import ALIGNMENT

Layers = tuple[Tensor, ...]
Allocate = Callable[[Tensor, tuple[int, ...]], Tensor]
"""Uninitialised memory of a shape, for numbers of the type of a tensor."""
SPARE = 16
"""A cache that grows by a few tokens gets free slots for one in so many of those in use: each token is then copied
about so many times while it grows token by token, which is little beside the attention that reads it every time."""


class Packing(Protocol):
    """Packs groups of tokens that a pass appends to a cache, when it has gone beyond them."""

    @property
    def tokens(self) -> int:
        """Tokens of a group."""

    @property
    def ends(self) -> Sequence[int]:
        """How many new tokens lie before the end of every group, after which others follow."""

    def pack(self, k_BKtD: Tensor, v_BKtD: Tensor) -> tuple[Tensor, Tensor]:
        """What packing leaves of a group of a layer; groups come in order, and layers too."""

    def codes(self) -> KV | None:
        """The packed groups of every row; None where there are none."""


class Buffers:
    """Memory of a cache with free slots after those in use.

    Attributes:
        k: per layer, `k_BKSD`.
        v: per layer, `v_BKSD`.
        taken: slots that belong to some cache and are not written any more.
    """

    def __init__(self, k: Layers, v: Layers, taken: int) -> None:
        self.k, self.v, self.taken = k, v, taken

    @classmethod
    def under(cls, kv: KV, slots: int, allocate: Allocate = Tensor.new_empty) -> None:
        """Move a cache into new buffers with so many slots, one tensor after the other, so that it never lies in
        memory twice; whoever holds it holds the same numbers as before.
        """
        used = kv.slots
        object.__setattr__(kv, "buffers", None)  # or all of the smaller ones would stay to the end
        whole: dict[str, list[Tensor]] = {"k": list(kv.k), "v": list(kv.v)}
        for name, layers in whole.items():
            for layer in range(len(layers)):
                layers[layer] = _widened(layers[layer], slots, allocate)
                moved = (*(x[:, :, :used] for x in layers[: layer + 1]), *layers[layer + 1 :])
                object.__setattr__(kv, name, moved)
        object.__setattr__(kv, "buffers", cls(tuple(whole["k"]), tuple(whole["v"]), used))

    @property
    def slots(self) -> int:
        """Slots of the buffers, free ones included."""
        return self.k[0].shape[2]

    def free(self, kv_slots: int, new: int) -> bool:
        """Whether `new` tokens may be written after a cache that has so many slots."""
        # Backward passes need what they have seen, and torch protects what was made for inference only.
        writable = not torch.is_grad_enabled() and (torch.is_inference_mode_enabled() or not self.k[0].is_inference())
        return writable and self.taken == kv_slots and kv_slots + new <= self.slots


@dataclasses.dataclass(frozen=True)
class KV:
    """Keys and values of every layer, rows packed to the left; the position of a key is its slot.

    Attributes:
        k: per layer, `k_BKSD`, with RoPE where the model has it.
        v: per layer, `v_BKSD`.
        used_B: slots in use per row, on the host; what lies after them is padding.
        raw: layers whose keys are cached without RoPE, for methods that use them so; RoPE is applied in every pass.
        buffers: where the tensors begin a larger piece of memory, that memory; it is no part of the value.
    """

    k: Layers
    v: Layers
    used_B: Tensor
    raw: frozenset[int] = frozenset()
    buffers: Buffers | None = dataclasses.field(default=None, init=False, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """The fields for copies and pickles: slots in use, without the free memory after them."""
        k, v = (tuple(x.clone(memory_format=torch.contiguous_format) for x in layers) for layers in (self.k, self.v))
        return {"k": k, "v": v, "used_B": self.used_B, "raw": self.raw}

    @property
    def slots(self) -> int:
        """S: slots of the longest row."""
        return self.k[0].shape[2]

    @property
    def level(self) -> bool:
        """Whether all rows use all slots."""
        return bool((self.used_B == self.slots).all())

    def next_positions(self, count: int) -> Tensor:
        """`position_BT` of the next tokens of every row, on the device."""
        return after(self.used_B, torch.arange(count, device=self.k[0].device))

    def replace(self, k: Layers, v: Layers, used_B: Tensor) -> KV:
        """Other keys, of the same kind, and values."""
        return KV(k, v, used_B, self.raw)

    def with_raw(self, raw: frozenset[int]) -> KV:
        """The same cache, whose layers of `raw` have keys without RoPE."""
        return dataclasses.replace(self, raw=raw)

    @property
    def room_B(self) -> Tensor | None:
        """Tokens that each row may take before something of it is packed; None where nothing is."""
        return None

    def opened(self) -> KV:
        """The cache as a pass reads it: itself, where nothing of it is packed."""
        return self

    def packing(self, lengths_B: Tensor) -> Packing | None:
        """What packs the groups that a pass goes beyond, over `lengths_B` tokens after rows of equal length."""
        return None

    def closed(self, kv: KV, changed_B: Tensor, codes: KV | None = None) -> KV:
        """What `opened` gave, after it has grown, as this cache is kept between passes.

        Args:
            kv: the grown cache.
            changed_B: bool, rows of which other tokens stay, or at other positions.
            codes: of groups that the pass has packed itself.
        """
        return kv

    def rounded(self, kv: KV, slots_S: Tensor) -> KV:
        """A cache that has grown from this one, with what packing would leave of some slots: itself."""
        return kv

    def unpadded(self) -> KV:
        """The cache without slots that no row uses, as views."""
        used = int(self.used_B.max())
        k, v = (tuple(x[:, :, :used] for x in layers) for layers in (self.k, self.v))
        return self.replace(k, v, self.used_B)

    def take(self, slots: Tensor | Layers, used_B: Tensor) -> KV:
        """These slots of every row, in this order; keys keep the rotation that they have.

        Args:
            slots: `slots_BS` of all layers and heads, or `slots_BKS` of every layer.
            used_B: how many of them are in use.
        """
        each = (slots,) if isinstance(slots, Tensor) else slots
        index = [_index(part, x_BKSD) for part, x_BKSD in zip(each, self.k, strict=False)]
        k, v = (tuple(map(_pick, layers, itertools.cycle(index))) for layers in (self.k, self.v))
        return self.replace(k, v, used_B)

    def keep_slots(self, slots: Tensor | Layers, used_B: Tensor, positions: Positions) -> KV:
        """These slots of every row, with keys rotated to the positions that they move to; see `take` and `moved`."""
        each = (slots,) if isinstance(slots, Tensor) else slots
        moved = tuple(torch.arange(part.shape[-1], device=part.device) - part for part in each)
        return self.take(slots, used_B).moved(moved[0] if isinstance(slots, Tensor) else moved, positions)

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded cache whose layers differ, or with more slots in use than there are or than `most`.

        Raises:
            states.Misfit: naming it.
        """
        states.same_slots(name, (*self.k, *self.v), self.used_B, most)

    def cut(self, first: int, rows_B: Tensor) -> KV:
        """The rows of `rows_B` cut back to their first slots; the other rows stay as they are."""
        if not bool(rows_B.any()):
            return self
        kept_B = torch.where(rows_B, self.used_B.clamp(max=first), self.used_B)
        return self.take(torch.arange(int(kept_B.max()), device=rows_B.device).expand(len(rows_B), -1), kept_B)

    def keep(self, first: int, last: int | Tensor, rows_B: Tensor, positions: Positions) -> KV:
        """The rows of `rows_B` cut back to their first and last slots; the other rows stay as they are.

        Args:
            first: slots at the beginning that stay where they are.
            last: slots at the end that move up after them, and are rotated to their new positions; of all rows, or
                `last_B`.
            rows_B: bool, which rows.
            positions: how the model encodes positions.
        """
        last_B = torch.as_tensor(last, device=rows_B.device).expand_as(rows_B)
        if not bool(last_B.any()) or not bool(rows_B.any()):
            return self.cut(first, rows_B)
        kept_B = torch.where(rows_B, self.used_B.minimum(first + last_B), self.used_B)
        slots_S = torch.arange(int(kept_B.max()), device=rows_B.device)
        moved_BS = torch.where(slots_S < first, 0, (self.used_B - kept_B)[:, None])
        return self.take(slots_S + moved_BS, kept_B).moved(-moved_BS, positions)

    def moved(self, distance: Tensor | Layers, positions: Positions) -> KV:
        """Keys rotated on by so many positions: `distance_BS` for all layers and heads, or `distance_BKS` per layer."""
        if not self.k:
            return self
        device = self.k[0].device
        if isinstance(distance, Tensor):
            rotaries = [per_head(positions, distance.to(device)) if bool(distance.any()) else None] * len(self.k)
        else:  # to ask whether any head moves would wait for the device, layer by layer
            moving = ((layer not in self.raw, part) for layer, part in enumerate(distance))
            rotaries = [of_heads(positions, part.to(device)) if moves else None for moves, part in moving]
        k = (
            x if layer in self.raw or rotary is None else _rotated_on(x, rotary)
            for layer, (x, rotary) in enumerate(zip(self.k, rotaries, strict=True))
        )
        return self.replace(tuple(k), self.v, self.used_B)

    def reserve(self, new: int, most: int, *, cut: bool = False, allocate: Allocate = Tensor.new_empty) -> KV:
        """This cache with free slots after it.

        Where there are not enough, this value itself moves into larger memory, so that the cache never lies in memory
        twice. Only where that memory would outlive its use, as part of a value whose successors are soon cut, or of an
        empty one, it goes to a copy.

        Args:
            new: tokens that are going to be read.
            most: slots that the cache never grows beyond.
            cut: whether it is cut back when they have been read.
            allocate: gives the memory.
        """
        new = max(min(new, most - self.slots), 0)
        needed = self.slots + new
        # A graph must neither be lost by moving what it leads to, nor be written over.
        graph = torch.is_grad_enabled() or any(x.requires_grad for x in (*self.k, *self.v))
        if not new or graph or (self.buffers and self.buffers.free(self.slots, new)):
            return self
        few = new * SPARE < needed
        apart = not self.slots or (cut and new > self.slots)
        kv = self.replace(self.k, self.v, self.used_B) if apart else self
        Buffers.under(kv, min(needed + needed // SPARE, most) if few else needed, allocate)
        return kv

    def joined(self, new: KV) -> KV:
        """This cache with the slots in use of another, of as many layers, after its own in every row."""
        return self.extended(new.k, new.v, new.slots, new.used_B)

    def extended(self, k: Iterable[Tensor], v: Iterable[Tensor], slots: int, used_B: Tensor) -> KV:
        """This cache with slots of every layer after its own in every row; see `joined`.

        Args:
            k: `k_BKTD` of the layers, of which each is needed until the next is taken.
            v: as `k`.
            slots: T of these tensors.
            used_B: how many of these slots of a row are in use.
        """
        growth = Growth(self, slots)
        for k_BKTD in k:
            growth.append_keys(k_BKTD)
        for v_BKTD in v:
            growth.append_values(v_BKTD)
        return growth.packed(used_B)

    def beginning(self, buffers: Buffers) -> KV:
        """The same cache, whose tensors are the beginning of buffers; these slots belong to it from now on."""
        cache = self.replace(self.k, self.v, self.used_B)
        buffers.taken = self.slots
        object.__setattr__(cache, "buffers", buffers)
        return cache


class Growth:
    """A cache while a forward pass appends to it, layer by layer: in place where slots are free, else by copying."""

    def __init__(self, kv: KV, new: int) -> None:
        self.kv, self.new, self.slots = kv, new, kv.slots
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self._buffers = kv.buffers if kv.buffers is not None and kv.buffers.free(kv.slots, new) else None

    def append(self, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the next layer: the cache's, then the new ones."""
        return self.append_keys(k_BKTD), self.append_values(v_BKTD)

    def append_keys(self, k_BKTD: Tensor) -> Tensor:
        """Keys of the next layer: the cache's, then the new ones."""
        self.k.append(self._extended(self.kv.k, self._buffers.k if self._buffers else None, len(self.k), k_BKTD))
        return self.k[-1]

    def append_values(self, v_BKTD: Tensor) -> Tensor:
        """Values of the next layer: the cache's, then the new ones."""
        self.v.append(self._extended(self.kv.v, self._buffers.v if self._buffers else None, len(self.v), v_BKTD))
        return self.v[-1]

    def grown(self, used_B: Tensor) -> KV:
        """The cache with all new tokens after it; their slots are taken from now on."""
        grown = self.kv.replace(tuple(self.k), tuple(self.v), used_B)
        if self._buffers is None:
            return grown
        assert self._buffers.taken == self.slots, "another pass has taken the same slots"
        return grown.beginning(self._buffers)

    def packed(self, lengths_B: Tensor) -> KV:
        """The cache with each row's first `lengths_B` new tokens after its own."""
        used_B = self.kv.used_B + lengths_B
        if self.kv.level and bool((lengths_B == self.new).all()):
            return self.grown(used_B)
        slots = torch.arange(int(used_B.max()), device=lengths_B.device)
        gap_B = self.slots - self.kv.used_B
        slots_BS = torch.where(slots < self.kv.used_B[:, None], slots, slots + gap_B[:, None])
        return self.kv.replace(tuple(self.k), tuple(self.v), used_B).take(slots_BS, used_B)

    def _extended(self, old: Layers, buffers: Layers | None, layer: int, new_BKTD: Tensor) -> Tensor:
        if buffers is not None:
            buffers[layer][:, :, self.slots : self.slots + self.new] = new_BKTD
            return buffers[layer][:, :, : self.slots + self.new]
        return torch.cat((old[layer], new_BKTD), dim=2) if self.slots else new_BKTD


def empty_kv(layers: int, shape_BKD: tuple[int, int, int], like: Tensor, raw: frozenset[int] = frozenset()) -> KV:
    """A cache without tokens, of `like`'s dtype and device."""
    rows, heads, width = shape_BKD
    none = like.new_zeros(rows, heads, 0, width)
    used_B = torch.zeros(rows, dtype=torch.int64)
    return KV((none,) * layers, (none,) * layers, used_B, raw)


def after(first_B: Tensor, step: Tensor) -> Tensor:
    """`position_BT`, on the device of the steps, of tokens so many steps after the first ones of their rows.

    Args:
        first_B: on the host.
        step: `step_T`, or `step_BT`.
    """
    if bool((first_B == first_B[:1]).all()):
        moved = step + int(first_B[0])
        return moved if moved.dim() > 1 else moved.expand(len(first_B), -1)
    return first_B.to(step.device)[:, None] + step


def _rotated_on(x_BKSD: Tensor, rotary: Rotary) -> Tensor:
    # Narrow numbers are rounded once more by every move, and at least not inside of it.
    wide_BKSD = x_BKSD.float() if x_BKSD.itemsize < 4 else x_BKSD
    return rotate(wide_BKSD, rotary).to(x_BKSD.dtype)


def _index(slots: Tensor, x_BKSD: Tensor) -> Tensor:
    """Slots `(B, S)`, or of every head `(B, K, S)`, as an index `(B, 1 or K, S, 1)` into keys or values."""
    index = slots.to(x_BKSD.device).clamp(max=max(x_BKSD.shape[2] - 1, 0))[..., None]
    return index if slots.dim() == 3 else index[:, None]


def _pick(x_BKSD: Tensor, index_BKS1: Tensor) -> Tensor:
    """Slots of every row and head."""
    if index_BKS1.shape[2] == 0:  # a slice would keep all of the memory
        return x_BKSD.new_zeros(*x_BKSD.shape[:2], 0, x_BKSD.shape[3])
    return x_BKSD.gather(2, index_BKS1.expand(-1, x_BKSD.shape[1], -1, x_BKSD.shape[3]))


def _widened(x_BKSD: Tensor, slots: int, allocate: Allocate) -> Tensor:
    rows, heads, used, width = x_BKSD.shape
    # Every head begins at aligned memory: what is computed must not depend on how many slots are free.
    step = ALIGNMENT // math.gcd(ALIGNMENT, width * x_BKSD.itemsize)
    slots = -(-slots // step) * step
    widened_BKSD = allocate(x_BKSD, (rows, heads, slots, width))
    widened_BKSD[:, :, :used] = x_BKSD
    return widened_BKSD
