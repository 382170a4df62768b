"""A cache in 8 or 4 bits by KIVI's rule (Liu et al. 2024): a range per channel and group of keys, and per value.

The newest tokens wait in the model's own type until a group of them is whole, and the first tokens in view are never
packed. Where a segment ends, what stays is packed again, because its keys have turned to other positions.

Legend: B rows, K key/value heads, S tokens, D head width, d bytes of a key, g groups, G tokens of a group, X bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import COUNT, Model
from contextlab.attention import KV
from contextlab.methods.parts.few_bits import BITS, RANGE_BYTES, Range, Vectors
from contextlab.methods.parts.groups import GROUP

FewBits: TypeAlias = Literal["int8", "int4"]

EXACT = 4
"""The least number of first tokens that are never packed.

Much of a model's attention rests on the first tokens of what it sees (Xiao et al. 2024), whose keys and values have
another size than all others: in a group with them the others would have few of its steps.
"""


@dataclasses.dataclass(frozen=True)
class PackedKV(KV):
    """Keys and values of every layer, of which only the newest are those of a plain cache; see `KV`.

    Attributes:
        k: of the tokens after the packed ones, as `v`.
        used_B: tokens of a row, all of them.
        first: the first tokens of every row, as they are.
        codes: uint8 `BKgX`, the groups after them, keys with their ranges.
        vectors: how values are stored; keys have as many bits.
        exact: tokens of `first`, at most.
    """

    first: KV = dataclasses.field(kw_only=True)
    codes: KV = dataclasses.field(kw_only=True)
    vectors: Vectors = dataclasses.field(kw_only=True)
    exact: int = dataclasses.field(kw_only=True)

    @classmethod
    def empty(cls, kv: KV, storage: FewBits, exact: int) -> PackedKV:
        """A cache without tokens, of the layers of an empty plain one.

        Raises:
            UserError: when heads of that width cannot be stored so.
        """
        like_BK0D = kv.k[0]
        width = like_BK0D.shape[3]
        vectors = Vectors.of(storage, like_BK0D.dtype, width)
        k, v = (
            (like_BK0D.new_zeros(*like_BK0D.shape[:3], size, dtype=torch.uint8),) * len(kv.k)
            for size in group_bytes(width, storage)
        )
        codes = KV(k, v, torch.zeros_like(kv.used_B))
        return cls(kv.k, kv.v, kv.used_B, kv.raw, first=kv, codes=codes, vectors=vectors, exact=exact)

    def __getstate__(self) -> dict[str, object]:
        """See `KV`."""
        own = {name: getattr(self, name) for name in ("first", "codes", "vectors", "exact")}
        return {**super().__getstate__(), **own}

    def with_raw(self, raw: frozenset[int]) -> PackedKV:
        """See `KV`."""
        return dataclasses.replace(self, raw=raw, first=self.first.with_raw(raw))

    @property
    def level(self) -> bool:
        """No free slots are kept after a packed cache."""
        return False

    @property
    def room_B(self) -> Tensor:
        """Tokens until a group is whole."""
        return GROUP - (self.used_B - self.exact - GROUP * self.codes.used_B)

    def opened(self) -> KV:
        """All tokens in the model's own type."""
        dtype = self.k[0].dtype
        # Layer by layer: all of them restored would be the cache once more.
        k, v = (self._keys(x, dtype) for x in self.codes.k), (self._values(x, dtype) for x in self.codes.v)
        packed = self.first.extended(k, v, GROUP * self.codes.slots, GROUP * self.codes.used_B)
        return packed.joined(self._newest)

    def closed(self, kv: KV, changed_B: Tensor, codes: KV | None = None) -> PackedKV:
        """What `opened` gave, after it has grown, with whole groups packed; see `KV`."""
        first = kv.cut(self.exact, torch.ones_like(changed_B))
        codes = (self.codes if codes is None else self.codes.joined(codes)).cut(0, changed_B)
        newest = _after(kv, first.used_B + GROUP * codes.used_B)
        groups_B = newest.used_B // GROUP
        if bool((groups_B > 0).any()):
            tokens = GROUP * int(groups_B.max())
            k, v = (tuple(x[:, :, :tokens] for x in layers) for layers in (newest.k, newest.v))
            codes = codes.joined(KV(tuple(map(self._stored_keys, k)), tuple(map(self._stored_values, v)), groups_B))
            newest = _after(newest, GROUP * groups_B)
        return dataclasses.replace(self, k=newest.k, v=newest.v, used_B=kv.used_B, first=first, codes=codes)

    def packing(self, lengths_B: Tensor) -> PassPacking:
        """See `KV`."""
        return PassPacking(self, range(int(self.room_B[0]), int(lengths_B.max()), GROUP), lengths_B)

    @property
    def newest_B(self) -> Tensor:
        """Tokens after the packed ones, which will be packed with later ones."""
        return self.used_B - self.first.used_B - GROUP * self.codes.used_B

    def rounded(self, kv: KV, slots_S: Tensor) -> KV:
        """A cache that has grown from this one, with what packing would leave of some slots.

        Args:
            kv: the grown cache.
            slots_S: of whole groups, one after the other.
        """
        groups = (
            self.packed(k.index_select(2, slots_S), v.index_select(2, slots_S)) for k, v in zip(kv.k, kv.v, strict=True)
        )
        k, v = zip(*(self.restored(*group) for group in groups), strict=True)
        layers = zip((*kv.k, *kv.v), (*k, *v), strict=True)
        written = tuple(x.index_copy(2, slots_S, rounded) for x, rounded in layers)
        return kv.replace(written[: len(kv.k)], written[len(kv.k) :], kv.used_B)

    def packed(self, k_BKSD: Tensor, v_BKSD: Tensor) -> tuple[Tensor, Tensor]:
        """`BKgX` of the keys and the values of whole groups of a layer."""
        return self._stored_keys(k_BKSD), self._stored_values(v_BKSD)

    def restored(self, k_BKgX: Tensor, v_BKgX: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `BKSD` of what `packed` gave."""
        dtype = self.k[0].dtype
        return self._keys(k_BKgX, dtype), self._values(v_BKgX, dtype)

    def unpadded(self) -> PackedKV:
        """See `KV`."""
        newest, first, codes = self._newest.unpadded(), self.first.unpadded(), self.codes.unpadded()
        return dataclasses.replace(self, k=newest.k, v=newest.v, first=first, codes=codes)

    def check(self, name: str, most: int) -> None:
        """See `KV`."""
        self.first.check(f"{name}.first", self.exact)
        self.codes.check(f"{name}.codes", most // GROUP)
        packed_B = self.first.used_B + GROUP * self.codes.used_B
        states.same_slots(name, (*self.k, *self.v), self.used_B - packed_B, GROUP - 1)
        states.within(f"{name}.used_B", self.used_B, packed_B, most)
        whole_B = (self.used_B - self.exact).clamp(min=0) // GROUP
        states.within(f"{name}.codes.used_B", self.codes.used_B, whole_B, whole_B)
        states.within(f"{name}.first.used_B", self.first.used_B, *(self.used_B.clamp(max=self.exact),) * 2)
        for part, ranges in (("k", map(self._ranges, self.codes.k)), ("v", map(self._value_ranges, self.codes.v))):
            for shared in ranges:
                states.finite({f"A range of {name}.codes.{part}": shared.lowest + shared.step})

    @property
    def _newest(self) -> KV:
        """The tokens after the packed ones."""
        return KV(self.k, self.v, self.newest_B, self.raw)

    @property
    def _bits(self) -> int:
        assert self.vectors.bits is not None
        return self.vectors.bits

    def _ranges(self, stored_BKgX: Tensor) -> Range:
        """Ranges `BKg1D` of keys."""
        return Range.of_bytes(stored_BKgX[..., None, -self.k[0].shape[3] * RANGE_BYTES :])

    def _value_ranges(self, stored_BKgX: Tensor) -> Range:
        return self.vectors.ranges(stored_BKgX.unflatten(3, (GROUP, -1)))

    def _keys(self, stored_BKgX: Tensor, dtype: torch.dtype) -> Tensor:
        codes_BKgGd = stored_BKgX[..., : -self.k[0].shape[3] * RANGE_BYTES].unflatten(3, (GROUP, -1))
        return self._ranges(stored_BKgX).numbers(codes_BKgGd, self._bits, dtype).flatten(2, 3)

    def _values(self, stored_BKgX: Tensor, dtype: torch.dtype) -> Tensor:
        return self.vectors.restored(stored_BKgX.unflatten(3, (GROUP, -1)), dtype).flatten(2, 3)

    def _stored_keys(self, k_BKSD: Tensor) -> Tensor:
        k_BKgGD = k_BKSD.unflatten(2, (-1, GROUP))
        ranges_BKg1D = Range.of(k_BKgGD, 3, self._bits)
        codes_BKgGd = ranges_BKg1D.codes(k_BKgGD, self._bits)
        return torch.cat((codes_BKgGd.flatten(3), ranges_BKg1D.bytes().flatten(3)), dim=3)

    def _stored_values(self, v_BKSD: Tensor) -> Tensor:
        stored_BKgGx: Tensor = self.vectors.stored(v_BKSD).unflatten(2, (-1, GROUP))
        return stored_BKgGx.flatten(3)


class PassPacking:
    """Packs the groups of a packed cache that a pass goes beyond; see `Packing`.

    Args:
        stored: the cache before the pass.
        ends: how many new tokens lie before the end of every group.
        lengths_B: new tokens of every row, on the host.
    """

    tokens = GROUP

    def __init__(self, stored: PackedKV, ends: range, lengths_B: Tensor) -> None:
        self.stored, self.ends = stored, ends
        self._whole_gB = torch.tensor(ends)[:, None] <= lengths_B
        self._packed: list[tuple[Tensor, Tensor]] = []

    def pack(self, k_BKtD: Tensor, v_BKtD: Tensor) -> tuple[Tensor, Tensor]:
        """What packing leaves of a group of a layer; a row that ends inside of it keeps its tokens as they are."""
        whole_B = self._whole_gB[len(self._packed) % len(self.ends)]
        self._packed.append(self.stored.packed(k_BKtD, v_BKtD))
        k, v = self.stored.restored(*self._packed[-1])
        if bool(whole_B.all()):
            return k, v
        whole_B111 = whole_B.to(k.device)[:, None, None, None]
        return k.where(whole_B111, k_BKtD), v.where(whole_B111, v_BKtD)

    def codes(self) -> KV | None:
        """The groups that lie inside of every row; None where there are none."""
        count = len(self.ends)
        if not count:
            return None
        layers = [self._packed[n : n + count] for n in range(0, len(self._packed), count)]
        k, v = (tuple(torch.cat([group[part] for group in layer], dim=2) for layer in layers) for part in (0, 1))
        return KV(k, v, self._whole_gB.sum(0))


def _after(kv: KV, first_B: Tensor) -> KV:
    """The slots of every row after its first ones."""
    left_B = kv.used_B - first_B
    slots_S = torch.arange(int(left_B.max()), device=first_B.device)
    return kv.take(first_B[:, None] + slots_S, left_B)


def group_bytes(width: int, storage: FewBits) -> tuple[int, int]:
    """X of the keys and of the values of a group with heads of a width."""
    numbers = GROUP * width * BITS[storage] // 8
    return numbers + width * RANGE_BYTES, numbers + GROUP * RANGE_BYTES


def packed_bytes(model: Model, used: int, storage: FewBits, exact: int, layers: int | None = None) -> int:
    """Bytes of a packed cache of one row with so many tokens, and of its three counts.

    Args:
        model: sizes of the backbone.
        used: tokens.
        storage: of the packed ones.
        exact: first tokens that are not packed.
        layers: of the cache; as many as the model has when None.
    """
    groups = packed_tokens(used, exact) // GROUP
    packed = groups * (layers or model.layers) * model.kv_heads * sum(group_bytes(model.head_width, storage))
    return packed + model.cache_bytes(used - groups * GROUP, layers) + 2 * COUNT


def packed_tokens(used: int, exact: int) -> int:
    """Those of so many tokens that are packed."""
    return max(used - exact, 0) // GROUP * GROUP
