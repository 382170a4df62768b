"""A bank in 8 or 4 bits, beside which the newest tokens wait in the model's own type until they fill a group.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, g groups, n chunks, c tokens of a chunk, m
chunks taken, X bytes.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import COUNT, Model
from contextlab.attention import KV
from contextlab.errors import UserError
from contextlab.kernels.chunk_topk import Index
from contextlab.methods.parts import on_host
from contextlab.methods.parts.banks import (
    ChunkBank,
    StoredIn,
    appended,
    best_chunks,
    settle,
    whole_beyond,
    without,
)
from contextlab.methods.parts.few_bits import BITS, Storage, Vectors
from contextlab.methods.parts.groups import Groups, unit_of
from contextlab.tensors import dtype_named


@dataclasses.dataclass(frozen=True)
class PackedBank:
    """Tokens as a `ChunkBank` holds them, but for whole groups of chunks, which are packed; no gradient reaches these.

    Only the mean keys of a layer are unpacked for a search, and only what was retrieved for attention.

    Attributes:
        kv: uint8, keys and values of all chunks of whole groups.
        mean: uint8, as keys, the ranges of the keys of every whole group, and its mean keys; no values.
        open: the tokens that fill no group yet.
        groups: how groups are stored.
        stored_in: where `kv` is: memory of the device, memory of the host, or mapped files.
    """

    kv: KV
    mean: KV
    open: ChunkBank
    groups: Groups
    stored_in: StoredIn = "memory"

    def __post_init__(self) -> None:
        """Keep keys and values on the host, wherever a state has been moved to or loaded."""
        if self.stored_in == "host":
            object.__setattr__(self, "kv", on_host.moved(self.kv))

    @classmethod
    def empty(cls, empty: ChunkBank, values: Vectors) -> PackedBank:
        """A bank without tokens.

        Args:
            empty: a bank of the same layers, in the model's own type.
            values: how values are stored, in few bits.
        """
        like_BK0D = empty.kv.k[0]
        groups, layers = Groups(values, like_BK0D.shape[3], empty.csz), len(empty.kv.k)
        k, v, mean = (
            (like_BK0D.new_zeros(*like_BK0D.shape[:3], width, dtype=torch.uint8),) * layers for width in groups.shapes
        )
        used_B = empty.mean.used_B
        own = dataclasses.replace(empty, stored_in="memory")
        return cls(KV(k, v, used_B), KV(mean, (), used_B), own, groups, empty.stored_in)

    @property
    def open_scores(self) -> tuple[Tensor, ...]:
        """See `ChunkBank`."""
        return self.open.open_scores

    @property
    def used_B(self) -> Tensor:
        """Tokens of every row."""
        return self.mean.used_B * self.groups.tokens + self.open.used_B

    @property
    def unit(self) -> int:
        """Tokens that leave a full bank together."""
        return self.groups.tokens

    @property
    def count_B(self) -> Tensor:
        """Whole chunks of every row."""
        return self.mean.used_B * self.groups.chunks + self.open.count_B

    @property
    def chunks(self) -> int:
        """n: whole chunks of the longest row."""
        return int(self.count_B.max())

    def unpadded(self) -> PackedBank:
        """The bank without slots that no row uses, as views."""
        return dataclasses.replace(self, kv=self.kv.unpadded(), mean=self.mean.unpadded(), open=self.open.unpadded())

    def search(
        self, layer: int, q_BHTD: Tensor, take: int, index: Index = "exact", *, shared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The best chunks of every query and head; see `ChunkBank.search`."""
        packed_B, open_mean = self.mean.used_B * self.groups.chunks, self.open.mean
        packed_BKnD = self.groups.means(self.mean.k[layer], open_mean.k[layer].dtype)
        mean = KV((packed_BKnD,), (), packed_B).joined(KV((open_mean.k[layer],), (), open_mean.used_B))
        return best_chunks(q_BHTD, mean.k[0], self.count_B, take, index, shared=shared)

    def taken(self, layer: int, ids_BHTm: Tensor, retrieved_BHTm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`k_BKncD` and `v_BKncD` that hold what was retrieved, and the `ids_BHTm` of its chunks in them.

        They are the packed chunks that any query has retrieved, and after them those of the tokens that fill no group.
        """
        first_B111 = self.kv.used_B.to(ids_BHTm.device)[:, None, None, None]
        chunks_n = ids_BHTm[retrieved_BHTm & (ids_BHTm < first_B111)].unique()
        pairs = zip(self._unpacked(layer, chunks_n), self.open.tokens(layer), strict=True)
        k_BKncD, v_BKncD = (torch.cat(pair, dim=2) for pair in pairs)
        open_BHTm = len(chunks_n) + ids_BHTm - first_B111
        packed_BHTm = torch.searchsorted(chunks_n, ids_BHTm.contiguous())
        return k_BKncD, v_BKncD, packed_BHTm.where(ids_BHTm < first_B111, open_BHTm)

    def _unpacked(self, layer: int, chunks_n: Tensor) -> tuple[Tensor, Tensor]:
        """`k_BKncD` and `v_BKncD` of some packed chunks; anything in rows that have fewer of them."""
        groups, device, dtype = self.groups, chunks_n.device, self.open.kv.k[layer].dtype
        there_n = chunks_n.to(self.kv.k[layer].device)
        keys_BKnX, values_BKnX = (on_host.taken(x[layer], there_n, device) for x in (self.kv.k, self.kv.v))
        ranges_BKn1D = groups.ranges(self.mean.k[layer].index_select(2, chunks_n // groups.chunks))
        return groups.keys(keys_BKnX, ranges_BKn1D, dtype), groups.values(values_BKnX, dtype)

    def add(self, new: KV, most: int, dropped_B: Tensor | None = None, scores: tuple[Tensor, ...] = ()) -> PackedBank:
        """The bank with the tokens of a cache after its own.

        Args:
            new: the tokens.
            most: of them that the bank holds, a group or more; the oldest groups are dropped beyond.
            dropped_B: tokens that are dropped in any case, whole groups.
            scores: with representatives, per layer `score_BKT1` of the tokens.
        """
        if not bool(new.used_B.any()):
            return self
        packed = self._packed(self.open.add(new, states.MOST, scores=scores), most)
        groups, kv, mean = self.groups, packed.kv, packed.mean
        beyond_B = whole_beyond(packed.used_B, most, self.unit)
        dropped_B = (beyond_B if dropped_B is None else torch.maximum(beyond_B, dropped_B)) // self.unit
        kv, mean = without(kv, dropped_B * groups.chunks), without(mean, dropped_B)
        for cache, unit, where in ((kv, groups.csz, self.stored_in), (mean, self.unit, self._mean_in)):
            settle(cache, (most + new.slots) // unit + 1, where)
        return dataclasses.replace(packed, kv=kv, mean=mean)

    def _packed(self, open_bank: ChunkBank, most: int) -> PackedBank:
        """The bank with the tokens of another instead of its open ones, those that fill groups packed."""
        groups, full_B = self.groups, open_bank.used_B // self.unit
        if not bool(full_B.any()):
            return dataclasses.replace(self, open=open_bank)
        full, full_mean, open_bank = open_bank.split(full_B * groups.chunks)
        keys, values, means = zip(*map(groups.stored, full.k, full.v, full_mean.k), strict=True)
        kv = appended(self.kv, KV(keys, values, full_B * groups.chunks), most // groups.csz, self.stored_in)
        mean = appended(self.mean, KV(means, (), full_B), most // self.unit, self._mean_in)
        return dataclasses.replace(self, kv=kv, mean=mean, open=open_bank)

    @property
    def _mean_in(self) -> StoredIn:
        """Where mean keys are, which a search reads."""
        return "disk" if self.stored_in == "disk" else "memory"

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded bank whose parts do not fit each other.

        Raises:
            states.Misfit: naming it.
        """
        self.kv.check(f"{name}.kv", most // self.groups.csz)
        self.mean.check(f"{name}.mean", most // self.unit)
        self.open.check(f"{name}.open", self.unit - 1)
        if not torch.equal(self.kv.used_B, self.mean.used_B * self.groups.chunks):
            raise states.Misfit(f"{name}.mean does not have one key for every chunk")
        for part, ranges, layers in (
            ("mean", self.groups.ranges, self.mean.k),
            ("kv", self.groups.value_ranges, self.kv.v),
        ):
            for shared in map(ranges, layers):
                states.finite({f"A range of {name}.{part}": shared.lowest + shared.step})


Bank: TypeAlias = ChunkBank | PackedBank


def empty_bank(
    kv: KV,
    csz: int,
    storage: Storage | None,
    stored_in: StoredIn = "memory",
    representatives: int | None = None,
) -> Bank:
    """A bank without tokens.

    Args:
        kv: an empty cache of the layers that read it.
        csz: tokens of a chunk.
        storage: type of stored keys and values; None for the cache's own.
        stored_in: memory of the device, memory of the host, or mapped files.
        representatives: tokens that stand for a chunk in a search; all where None.

    Raises:
        UserError: when it cannot be stored so.
    """
    own, width = kv.k[0].dtype, kv.k[0].shape[3]
    vectors = Vectors.of(storage, own, width)
    wide_bank = ChunkBank.empty(kv, csz, own if vectors.bits else vectors.dtype, stored_in, representatives)
    return PackedBank.empty(wide_bank, vectors) if vectors.bits else wide_bank


def check_size(most: int, csz: int, storage: Storage | None) -> None:
    """A bank has room for what leaves it together.

    Raises:
        UserError: when it has not.
    """
    if 0 < most < unit_of(csz, storage):
        raise UserError(
            f"M={most} is less than the {unit_of(csz, storage)} tokens that storage_dtype={storage} packs "
            "together: use a larger M."
        )


def bank_bytes(model: Model, tokens: int, csz: int, layers: int, storage: Storage | None) -> int:
    """Bytes of a bank of one row.

    Args:
        model: sizes of the backbone.
        tokens: in the bank.
        csz: tokens of a chunk.
        layers: that have one.
        storage: type of stored keys and values; None for the model's own.
    """
    if storage not in BITS:
        item_bytes = dtype_named(storage).itemsize if storage else model.item_bytes
        return model.bank_bytes(tokens, csz, layers, item_bytes)
    groups = Groups(Vectors(torch.uint8, BITS[storage]), model.head_width, csz)
    full, waiting = divmod(tokens, groups.tokens)
    keys, values, means = groups.shapes
    packed = full * layers * model.kv_heads * (groups.chunks * (keys + values) + means)
    return packed + 2 * COUNT + model.bank_bytes(waiting, csz, layers, model.item_bytes)
