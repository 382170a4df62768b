"""A bank of what has left the local view, in every layer that reads it: tokens that are retrieved chunk by chunk.

Legend: B rows, H query heads, K key/value heads, T queries, S tokens of the bank, D head width, n chunks, c tokens of a
chunk, m chunks taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import KV, Positions
from contextlab.errors import UserError
from contextlab.kernels.buffers import wide
from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.methods.local_cache import LocalCache, LocalState


@dataclasses.dataclass(frozen=True)
class ChunkBank:
    """Tokens in the order of reading, the oldest first; `csz` of them in a row are a chunk.

    Attributes:
        kv: keys and values of the layers that read the bank, rows packed to the left. The newest tokens of a row may
            not fill a chunk yet: they can be retrieved once a later addition completes it.
        mean: per layer, `mean_BKnD`, the mean key of every whole chunk.
        csz: tokens of a chunk.
    """

    kv: KV
    mean: tuple[Tensor, ...]
    csz: int

    @classmethod
    def empty(cls, kv: KV, csz: int, dtype: torch.dtype) -> ChunkBank:
        """A bank without tokens.

        Args:
            kv: an empty cache of the layers that read it.
            csz: tokens of a chunk.
            dtype: type in which keys and values are stored.
        """
        k, v = (tuple(x.to(dtype) for x in layers) for layers in (kv.k, kv.v))
        return cls(kv.replace(k, v, kv.used_B), tuple(x.to(wide(x)) for x in k), csz)

    @property
    def count_B(self) -> Tensor:
        """Whole chunks of every row."""
        return self.kv.used_B // self.csz

    @property
    def chunks(self) -> int:
        """n: whole chunks of the longest row."""
        return self.mean[0].shape[2]

    def tokens(self, layer: int) -> tuple[Tensor, Tensor]:
        """`k_BKncD` and `v_BKncD` of all whole chunks, in place."""
        n, csz = self.chunks, self.csz
        k_BKncD, v_BKncD = (x[layer][:, :, : n * csz].unflatten(2, (n, csz)) for x in (self.kv.k, self.kv.v))
        return k_BKncD, v_BKncD

    def search(self, layer: int, q_BHTD: Tensor, take: int) -> tuple[Tensor, Tensor]:
        """The best chunks of every query and head: `ids_BHTm`, and `retrieved_BHTm` where there was one."""
        ids_BHTm, score_BHTm = chunk_topk(q_BHTD, self.mean[layer], self.count_B, take)
        return ids_BHTm, score_BHTm > float("-inf")

    def add(self, new: KV, most: int, dropped_B: Tensor | None = None) -> ChunkBank:
        """The bank with the tokens of a cache behind its own.

        Args:
            new: the tokens.
            most: of them that the bank holds; the oldest chunks are dropped beyond.
            dropped_B: tokens that are dropped in any case, whole chunks.
        """
        if not bool(new.used_B.any()):
            return self
        dtype = self.kv.k[0].dtype
        k, v = (tuple(x.to(dtype) for x in layers) for layers in (new.k, new.v))
        even = self.kv.level and new.level
        old = self.kv.reserve(new.slots, most + new.slots) if even else self.kv
        kv = old.joined(new.replace(k, v, new.used_B))
        beyond_B = ((kv.used_B - most).clamp(min=0) + self.csz - 1) // self.csz * self.csz
        dropped_B = beyond_B if dropped_B is None else torch.maximum(beyond_B, dropped_B)
        mean = self._means(new, dropped_B // self.csz)
        if bool(dropped_B.any()):
            kept_B = kv.used_B - dropped_B
            slots_S = torch.arange(int(kept_B.max()), device=kept_B.device)
            kv = kv.take(slots_S + dropped_B[:, None], kept_B)
        return ChunkBank(kv, mean, self.csz)

    def _means(self, new: KV, dropped_B: Tensor) -> tuple[Tensor, ...]:
        """`mean_BKnD` per layer with the chunks that new tokens complete, without so many of the oldest.

        The new keys have not been rounded to the type in which they are stored. A search has no gradient, nor have
        these.
        """
        left_B, csz = self.kv.used_B % self.csz, self.csz
        keys = [x_BKTD.detach() for x_BKTD in new.k]
        if bool(left_B.any()):
            slots_S = torch.arange(int(left_B.max()), device=left_B.device)
            tail = self.kv.take(self.count_B[:, None] * csz + slots_S, left_B)
            keys = [_packed(x.detach(), y, left_B, new.used_B, left_B * 0) for x, y in zip(tail.k, keys, strict=True)]
        new_B = (left_B + new.used_B) // csz
        chunks = int(new_B.max())
        wide_keys = (x[:, :, : chunks * csz].to(wide(x)) for x in keys)
        means = (x.unflatten(2, (chunks, csz)).mean(3) for x in wide_keys)
        return tuple(_packed(x, y, self.count_B, new_B, dropped_B) for x, y in zip(self.mean, means, strict=True))

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded bank whose parts do not fit each other.

        Raises:
            states.Misfit: naming it.
        """
        self.kv.check(f"{name}.kv", most)
        if any(mean.shape[2] != self.kv.slots // self.csz for mean in self.mean):
            raise states.Misfit(f"{name}.mean does not have one key for every chunk")


def layer_of_bank(layer: int | None, depth: int) -> int:
    """The backbone layer of a single bank: three quarters up when none is named (the paper's 18th of 24).

    Raises:
        UserError: when a backbone of that depth has no such layer.
    """
    layer = max(3 * depth // 4 - 1, 0) if layer is None else layer
    if layer >= depth:
        raise UserError(f"memory_layer={layer} does not exist: the backbone has layers 0 to {depth - 1}.")
    return layer


def leaving(state: LocalState, local: LocalCache, layers: Sequence[int], positions: Positions) -> KV | None:
    """What leaves a local cache where a segment has ended, in some of its layers, for a bank.

    Args:
        state: before its caches are cut back.
        local: what stays of them.
        layers: of the state's cache.
        positions: how the model encodes positions.

    Returns:
        Keys turned to the first slot that does not stay (those without rotary encoding as they are), and values; None
        where no segment has ended, as after most steps.
    """
    view, first, ended_B = state.kv, local.keep_first, state.left_B == 0
    if not bool(ended_B.any()):
        return None
    gone_B = torch.where(ended_B, (view.used_B - first - local.keep_last).clamp(min=0), 0)
    slots_BS = first + torch.arange(int(gone_B.max()), device=gone_B.device).expand(len(gone_B), -1)
    k, v = (tuple(x[layer] for layer in layers) for x in (view.k, view.v))
    raw = frozenset(i for i, layer in enumerate(layers) if layer in view.raw)
    return KV(k, v, view.used_B, raw).take(slots_BS, gone_B).moved(first - slots_BS, positions)


def _packed(old_BKSD: Tensor, new_BKTD: Tensor, old_B: Tensor, new_B: Tensor, dropped_B: Tensor) -> Tensor:
    """Each row's first `old_B` slots and then its first `new_B` new ones, without the first `dropped_B` of all."""
    joined_BKSD = torch.cat((old_BKSD.to(new_BKTD.dtype), new_BKTD), dim=2)
    kept_B = old_B + new_B - dropped_B
    if bool((kept_B == joined_BKSD.shape[2]).all()):
        return joined_BKSD
    slots_BS = torch.arange(int(kept_B.max()), device=kept_B.device) + dropped_B[:, None]
    gap_B = old_BKSD.shape[2] - old_B
    slots_BS = torch.where(slots_BS < old_B[:, None], slots_BS, slots_BS + gap_B[:, None])
    index_B1S1 = slots_BS.clamp(max=max(joined_BKSD.shape[2] - 1, 0))[:, None, :, None]
    return joined_BKSD.gather(2, index_B1S1.expand(-1, joined_BKSD.shape[1], -1, joined_BKSD.shape[3]))
