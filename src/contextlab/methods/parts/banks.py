"""A bank of what has left the local view, in every layer that reads it: tokens that are retrieved chunk by chunk.

Legend: B rows, H query heads, K key/value heads, T queries, S tokens of the bank, D head width, n chunks, c tokens of a
chunk, m chunks taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import KV, Allocate, Buffers, Positions
from contextlab.errors import UserError
from contextlab.kernels.buffers import wide
from contextlab.kernels.chunk_topk import Index, chunk_topk
from contextlab.methods.parts import on_disk, on_host
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.representatives import mean_of_best, of_key_heads

StoredIn = Literal["memory", "host", "disk"]


@dataclasses.dataclass(frozen=True)
class ChunkBank:
    """Tokens in the order of reading, the oldest first; `csz` of them in a row are a chunk.

    Attributes:
        kv: keys and values of the layers that read the bank, rows packed to the left. The newest tokens of a row may
            not fill a chunk yet: they can be retrieved once a later addition completes it.
        mean: of the same layers, as keys, the mean key of every whole chunk, or of its representatives; no values.
        csz: tokens of a chunk.
        stored_in: memory of the device, memory of the host, or mapped files.
        representatives: tokens that stand for a chunk in a search; all where None.
        open_scores: with representatives, of the same layers `score_BKc1` of the tokens that fill no chunk yet.
    """

    kv: KV
    mean: KV
    csz: int
    stored_in: StoredIn = "memory"
    representatives: int | None = None
    open_scores: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        """Keep keys and values on the host, wherever a state has been moved to or loaded."""
        if self.stored_in == "host":
            object.__setattr__(self, "kv", on_host.moved(self.kv))

    @classmethod
    def empty(
        cls, kv: KV, csz: int, dtype: torch.dtype, stored_in: StoredIn = "memory", representatives: int | None = None
    ) -> ChunkBank:
        """A bank without tokens.

        Args:
            kv: an empty cache of the layers that read it.
            csz: tokens of a chunk.
            dtype: type in which keys and values are stored.
            stored_in: memory of the device, memory of the host, or mapped files.
            representatives: tokens that stand for a chunk in a search; all where None.

        Raises:
            UserError: when files are to be mapped into the memory of a GPU.
        """
        if stored_in == "disk" and kv.k[0].device.type != "cpu":
            raise UserError("stored_in=disk is for models on a CPU: use stored_in=memory.")
        k, v = (tuple(x.to(dtype) for x in layers) for layers in (kv.k, kv.v))
        mean = KV(tuple(x.to(wide(x)) for x in kv.k), (), kv.used_B)
        scores = () if representatives is None else tuple(x[..., :1] for x in mean.k)
        return cls(kv.replace(k, v, kv.used_B), mean, csz, stored_in, representatives, scores)

    @property
    def used_B(self) -> Tensor:
        """Tokens of every row."""
        return self.kv.used_B

    @property
    def unit(self) -> int:
        """Tokens that leave a full bank together."""
        return self.csz

    @property
    def count_B(self) -> Tensor:
        """Whole chunks of every row."""
        return self.mean.used_B

    @property
    def chunks(self) -> int:
        """n: whole chunks of the longest row."""
        return self.mean.slots

    def unpadded(self) -> ChunkBank:
        """The bank without slots that no row uses, as views."""
        open_slots = int((self.kv.used_B % self.csz).max())
        open_scores = tuple(x[:, :, :open_slots] for x in self.open_scores)
        return dataclasses.replace(self, kv=self.kv.unpadded(), mean=self.mean.unpadded(), open_scores=open_scores)

    def tokens(self, layer: int) -> tuple[Tensor, Tensor]:
        """`k_BKncD` and `v_BKncD` of all whole chunks, in place."""
        n, csz = self.chunks, self.csz
        k_BKncD, v_BKncD = (x[layer][:, :, : n * csz].unflatten(2, (n, csz)) for x in (self.kv.k, self.kv.v))
        return k_BKncD, v_BKncD

    def taken(self, layer: int, ids_BHTm: Tensor, retrieved_BHTm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`k_BKncD` and `v_BKncD` that hold what was retrieved, and the `ids_BHTm` of its chunks in them.

        They are the bank's own, in place. Of a bank on the host they are copies, on the device of the queries, of the
        chunks that any query has retrieved.
        """
        k_BKncD, v_BKncD = self.tokens(layer)
        if self.stored_in != "host":
            return k_BKncD, v_BKncD, ids_BHTm
        chunks_n = ids_BHTm[retrieved_BHTm].unique()
        there_n, device = chunks_n.to(on_host.HOST), ids_BHTm.device
        k_BKncD, v_BKncD = (on_host.taken(x_BKncD, there_n, device) for x_BKncD in (k_BKncD, v_BKncD))
        return k_BKncD, v_BKncD, torch.searchsorted(chunks_n, ids_BHTm.contiguous())

    def search(
        self, layer: int, q_BHTD: Tensor, take: int, index: Index = "exact", *, shared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """The best chunks of every query and head: `ids_BHTm`, and `retrieved_BHTm` where there was one.

        Args:
            layer: of the bank.
            q_BHTD: queries.
            take: chunks of every query.
            index: that searches.
            shared: whether all heads take the same chunks, those of the highest sum over heads.
        """
        return best_chunks(q_BHTD, self.mean.k[layer], self.count_B, take, index, shared=shared)

    def add(self, new: KV, most: int, dropped_B: Tensor | None = None, scores: tuple[Tensor, ...] = ()) -> ChunkBank:
        """The bank with the tokens of a cache after its own.

        Args:
            new: the tokens.
            most: of them that the bank holds; the oldest chunks are dropped beyond.
            dropped_B: tokens that are dropped in any case, whole chunks.
            scores: with representatives, per layer `score_BKT1` of the tokens.
        """
        if not bool(new.used_B.any()):
            return self
        dtype, csz = self.kv.k[0].dtype, self.csz
        k, v = (tuple(x.to(dtype) for x in layers) for layers in (new.k, new.v))
        new_mean, open_scores = self._completed(new, scores)
        kv = appended(self.kv, new.replace(k, v, new.used_B), most, self.stored_in)
        on_device: StoredIn = "disk" if self.stored_in == "disk" else "memory"
        mean = appended(self.mean, new_mean, most // csz, on_device)
        beyond_B = whole_beyond(kv.used_B, most, csz)
        dropped_B = beyond_B if dropped_B is None else torch.maximum(beyond_B, dropped_B)
        kv, mean = without(kv, dropped_B), without(mean, dropped_B // csz)
        settle(kv, most + new.slots, self.stored_in)
        settle(mean, most // csz + new_mean.slots, on_device)
        return dataclasses.replace(self, kv=kv, mean=mean, open_scores=open_scores)

    def split(self, count_B: Tensor) -> tuple[KV, KV, ChunkBank]:
        """Keys and values, and mean keys, of the first so many chunks of every row, and a bank without them."""
        parts = ((self.kv, count_B * self.csz), (self.mean, count_B))
        kv, mean = (
            cache.take(torch.arange(int(used_B.max()), device=used_B.device).expand(len(used_B), -1), used_B)
            for cache, used_B in parts
        )
        rest_kv, rest_mean = (without(cache, used_B) for cache, used_B in parts)
        return kv, mean, dataclasses.replace(self, kv=rest_kv, mean=rest_mean)

    def _completed(self, new: KV, scores: tuple[Tensor, ...]) -> tuple[KV, tuple[Tensor, ...]]:
        """Mean keys of the chunks that new tokens complete, and the scores of those that fill no chunk yet.

        The new keys have not been rounded to the type in which they are stored. A search has no gradient, nor have
        these.
        """
        csz, layers, device = self.csz, len(new.k), new.k[0].device
        left_B = self.kv.used_B % csz
        keys = KV((*(x.detach().to(wide(x)) for x in new.k), *scores), (), new.used_B)
        if bool(left_B.any()):
            longest = int(left_B.max())  # of the rows that a state has now
            slots_BS = self.count_B[:, None] * csz + torch.arange(longest)
            open_scores = (x[:, :, :longest] for x in self.open_scores)
            old = KV(tuple(x.detach() for x in self.kv.k), (), self.kv.used_B)
            tail = old.take(slots_BS, left_B)
            keys = KV((*(x.to(device, wide(x)) for x in tail.k), *open_scores), (), left_B).joined(keys)
        chunks, whole_B, left_B = keys.slots // csz, keys.used_B // csz, keys.used_B % csz
        in_chunks = [x_BKSD[:, :, : chunks * csz].unflatten(2, (chunks, csz)) for x_BKSD in keys.k]
        if self.representatives is None:
            return KV(tuple(x_BKncD.mean(3) for x_BKncD in in_chunks), (), whole_B), ()
        pairs = zip(in_chunks[:layers], in_chunks[layers:], strict=True)
        means = (mean_of_best(k_BKncD, score_BKnc1, self.representatives) for k_BKncD, score_BKnc1 in pairs)
        slots_BS = whole_B[:, None] * csz + torch.arange(int(left_B.max()))
        return KV(tuple(means), (), whole_B), KV(keys.k[layers:], (), keys.used_B).take(slots_BS, left_B).k

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded bank whose parts do not fit each other.

        Raises:
            states.Misfit: naming it.
        """
        self.kv.check(f"{name}.kv", most)
        self.mean.check(f"{name}.mean", most // self.csz)
        used_B = self.kv.used_B
        if not torch.equal(self.mean.used_B, used_B // self.csz):
            raise states.Misfit(f"{name}.mean does not have one key for every chunk")
        if self.open_scores:
            states.same_slots(f"{name}.open_scores", self.open_scores, used_B % self.csz, self.csz - 1)


def best_chunks(
    q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int, index: Index, *, shared: bool
) -> tuple[Tensor, Tensor]:
    """See `ChunkBank.search`."""
    heads = q_BHTD.shape[1]
    if shared:  # the sum over heads is the inner product of all heads' queries and means, one after the other
        q_BKTD = of_key_heads(q_BHTD, mean_BKnD.shape[1])
        q_BHTD, mean_BKnD = (x.transpose(1, 2).flatten(2)[:, None] for x in (q_BKTD, mean_BKnD))
    ids_BHTm, score_BHTm = chunk_topk(q_BHTD, mean_BKnD, count_B.to(q_BHTD.device), take, index=index)
    retrieved_BHTm = score_BHTm > float("-inf")
    if shared:
        ids_BHTm, retrieved_BHTm = (x.expand(-1, heads, -1, -1) for x in (ids_BHTm, retrieved_BHTm))
    return ids_BHTm, retrieved_BHTm


def layer_of_bank(layer: int | None, depth: int) -> int:
    """The backbone layer of a single bank: three quarters up when none is named (the paper's 18th of 24).

    Raises:
        UserError: when a backbone of that depth has no such layer.
    """
    layer = max(3 * depth // 4 - 1, 0) if layer is None else layer
    if layer >= depth:
        raise UserError(f"memory_layer={layer} does not exist: the backbone has layers 0 to {depth - 1}.")
    return layer


def leaving(state: LocalState, local: LocalCache, layers: Sequence[int], positions: Positions) -> KV:
    """The tokens that leave a local cache where a segment has ended, in some of its layers, for a bank.

    Args:
        state: before its caches are cut back.
        local: what stays of them.
        layers: of the state's cache.
        positions: how the model encodes positions.

    Returns:
        Keys turned to the first slot that does not stay (those without rotary encoding as they are), and values.
    """
    view, first, ended_B = state.kv, local.keep_first, state.left_B == 0
    gone_B = torch.where(ended_B, (view.used_B - first - local.keep_last).clamp(min=0), 0)
    slots_BS = first + torch.arange(int(gone_B.max()), device=gone_B.device).expand(len(gone_B), -1)
    k, v = (tuple(x[layer] for layer in layers) for x in (view.k, view.v))
    raw = frozenset(i for i, layer in enumerate(layers) if layer in view.raw)
    return KV(k, v, view.used_B, raw).take(slots_BS, gone_B).moved(first - slots_BS, positions)


def appended(old: KV, new: KV, most: int, stored_in: StoredIn) -> KV:
    """A cache with another after it, in memory that has free slots where it grows evenly."""
    if stored_in == "host":
        new = on_host.moved(new)
    if stored_in != "disk" and old.level and new.level:
        allocate: Allocate = on_host.allocate if stored_in == "host" else Tensor.new_empty
        old = old.reserve(new.slots, most + new.slots, allocate=allocate)
    return old.joined(new)


def settle(kv: KV, slots: int, stored_in: StoredIn) -> None:
    """Move a cache to where it is stored, with so many slots, unless it lies there."""
    if torch.is_grad_enabled():
        return
    if stored_in == "disk":
        if kv.buffers is None and kv.slots:
            Buffers.under(kv, max(slots, kv.slots), on_disk.allocate)
        on_disk.release()
    if stored_in == "host":
        on_host.pin(kv)


def whole_beyond(used_B: Tensor, most: int, unit: int) -> Tensor:
    """How many of the first tokens are dropped, in whole units, so that no more than `most` stay."""
    return ((used_B - most).clamp(min=0) + unit - 1) // unit * unit


def without(kv: KV, dropped_B: Tensor) -> KV:
    """A cache without so many of the first slots of every row."""
    if not bool(dropped_B.any()):
        return kv
    kept_B = kv.used_B - dropped_B
    slots_S = torch.arange(int(kept_B.max()), device=kept_B.device)
    return kv.take(slots_S + dropped_B[:, None], kept_B)
