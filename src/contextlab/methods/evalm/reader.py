"""EVALM's attention over what a state holds: incremental encoding (EVALM, algorithm 1), block by block.

A token attends before its chunk is rolled up, so that any split of a text gives what the parallel form gives.

Legend: B rows, T new tokens, S local slots, n chunks, H query heads, K key/value heads, D head width, x
items of a stored key or value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab.attention import KV, CacheReader, Growth, Layout, Positions, per_head, rotate
from contextlab.kernels.buffers import wide
from contextlab.kernels.eva_attention import eva_attention
from contextlab.methods.evalm.config import Geometry
from contextlab.methods.evalm.summary import Summary, query_factor
from contextlab.methods.parts.few_bits import Vectors
from contextlab.methods.parts.local_cache import LocalState


@dataclasses.dataclass(frozen=True)
class EVALMState(LocalState):
    """The local view and the summaries.

    Attributes:
        chunks: keys without RoPE and values of all whole chunks, oldest first, as they are stored.
        query_sum: per layer, `sum_BKD` of the unfinished chunk's queries, averaged over the heads of a key head, in
            float32 at least; empty where pooling does not need it.
    """

    chunks: KV
    query_sum: tuple[Tensor, ...]

    @property
    def cached(self) -> int:
        """Tokens in the local view, and summaries."""
        return super().cached + int(self.chunks.used_B.sum())


class RollUp:
    """Which tokens of a block complete chunks.

    Attributes:
        done_B: chunks that each row completes.
        open_B111: the same on the device, which is where the open chunk's sum stands after theirs.
        slots_BS: slots of their tokens in the local cache with the block after it.
        new_BnC: the new tokens of every chunk, counted from the open one, and of the one that stays open; what lies
            before or after them is no new token of its row.
        real_BnC: which of them there are.
        most: chunks that some row completes.
        slots: chunks of the longest row after the block.
        level: whether all rows have equally many chunks, before the block and after it.
    """

    def __init__(self, state: EVALMState, layout: Layout, lengths_B: Tensor, chunk: int) -> None:
        open_B1 = (state.length_B % chunk)[:, None]
        self.done_B = (open_B1[:, 0] + lengths_B) // chunk
        self.most = int(self.done_B.max())
        tokens, device = torch.arange(self.most * chunk), layout.position_BT.device
        cached_BS = state.kv.used_B[:, None] - open_B1 + tokens
        self.slots_BS = torch.where(tokens < open_B1, cached_BS, state.kv.slots - open_B1 + tokens)
        new_BS = torch.arange((self.most + 1) * chunk) - open_B1
        self.real_BnC = ((new_BS >= 0) & (new_BS < lengths_B[:, None])).unflatten(1, (-1, chunk)).to(device)
        self.new_BnC = new_BS.clamp(0, layout.position_BT.shape[1] - 1).unflatten(1, (-1, chunk)).to(device)
        self.open_B111 = self.done_B.to(device)[:, None, None, None]
        used, done = state.chunks.used_B.tolist(), self.done_B.tolist()
        self._rows = list(zip(range(len(done)), used, done, strict=True))
        self.level = state.chunks.level and bool((self.done_B == self.most).all())
        self.slots = max(state.chunks.slots, int((state.chunks.used_B + self.done_B).max()))

    def sums(self, q_BKTD: Tensor, before_BKD: Tensor) -> tuple[Tensor, Tensor]:
        """Query sums of the chunks that end here, `sums_BKnD`, and of the one that stays open.

        They are float32 at least, and summed in an order that is the same in every run, on every device.
        """
        index_B1S1 = self.new_BnC.flatten(1)[:, None, :, None]
        q_BKSD = q_BKTD.gather(2, index_B1S1.expand(-1, q_BKTD.shape[1], -1, q_BKTD.shape[3]))
        q_BKnCD = q_BKSD.unflatten(2, self.new_BnC.shape[1:]).masked_fill(~self.real_BnC[:, None, ..., None], 0.0)
        sums_BKnD = q_BKnCD.sum(3, dtype=wide(q_BKTD))
        sums_BKnD[:, :, 0] += before_BKD
        open_BK1D = self.open_B111.expand(-1, *sums_BKnD[:, :, :1].shape[1:])
        return sums_BKnD[:, :, : self.most], sums_BKnD.gather(2, open_BK1D)[:, :, 0]

    def stored(self, made_BKnx: Tensor, chunks_BKnx: Tensor) -> Tensor:
        """A copy of all chunks, with those that each row completes after those it has."""
        stored_BKnx = F.pad(chunks_BKnx, (0, 0, 0, self.slots - chunks_BKnx.shape[2]))
        for row, first, done in self._rows:
            stored_BKnx[row, :, first : first + done] = made_BKnx[row, :, :done]
        return stored_BKnx


class EvaReader(CacheReader):
    """Attention over the local cache, the new tokens and the summaries; summarises the chunks that end in a block.

    Summaries of rows that complete equally many are appended as tokens are to a cache, in free slots where it has some.

    Attributes:
        query_sum: what the state after the block holds.
    """

    def __init__(
        self,
        positions: Positions,
        geometry: Geometry,
        summaries: Sequence[Summary],
        vectors: Vectors,
        state: EVALMState,
        layout: Layout,
        lengths_B: Tensor | None,
    ) -> None:
        super().__init__(positions, state.kv, layout)
        self.summaries, self.vectors, self.state = summaries, vectors, state
        self.roll_up = None if lengths_B is None else RollUp(state, layout, lengths_B, geometry.chunk)
        self.query_sum: list[Tensor] = []
        self._chunk_k, self._chunk_v = list(state.chunks.k), list(state.chunks.v)
        roll_up = self.roll_up
        self._chunk_growth = Growth(state.chunks, roll_up.most) if roll_up is not None and roll_up.level else None
        past_B = geometry.past(state.length_B, state.kv.used_B)
        counts_BT = geometry.seen(_tokens_before(state, layout), past_B)
        slots = state.chunks.slots if roll_up is None else roll_up.slots
        self.first = geometry.first
        self.seen = max(min(int(counts_BT.max()), slots - self.first), 0)
        all_see, device = int(counts_BT.min()) >= self.seen, layout.position_BT.device
        self.counts_BT = counts_BT.to(device) if self.seen and not all_see else None
        positions_Bn = geometry.positions(self.seen, past_B, state.length_B + state.left_B).to(device)
        self._chunk_rotary = per_head(positions, positions_Bn, state.kv.k[0].dtype) if self.seen else None

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer, roll up, attend."""
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        summary = self.summaries[layer]
        if self.roll_up is not None:
            self._summarise(self.roll_up, summary, layer, q_BHTD, scale)
        # Summaries of attention weight 0 are computed all the same: an untrained method costs what a trained one does.
        last = self.first + self.seen
        chunk_k_BKnD, chunk_v_BKnD = (
            self.vectors.restored(x[layer][:, :, self.first : last], q_BHTD.dtype)
            for x in (self._chunk_k, self._chunk_v)
        )
        return eva_attention(
            rotate(q_BHTD, self._q_rotary),
            k_BKSD,
            v_BKSD,
            rotate(chunk_k_BKnD, self._chunk_rotary) if self.seen else chunk_k_BKnD,
            chunk_v_BKnD,
            scale=scale,
            bias=None if self.causal(window) else self.mask(window, q_BHTD.dtype),
            counts_BT=self.counts_BT,
            chunk_bias_H=summary.remote_bias_H,
        )

    def chunks(self) -> KV:
        """All chunks after the block."""
        chunks, roll_up = self.state.chunks, self.roll_up
        if roll_up is None or roll_up.most == 0:
            return chunks
        used_B = chunks.used_B + roll_up.done_B
        if self._chunk_growth is not None:
            return self._chunk_growth.grown(used_B)
        return chunks.replace(tuple(self._chunk_k), tuple(self._chunk_v), used_B)

    def _summarise(self, roll_up: RollUp, summary: Summary, layer: int, q_BHTD: Tensor, scale: float) -> None:
        q_mean_BKnD = None
        if summary.query_map is not None:
            q_BKTD = q_BHTD.unflatten(1, (summary.kv_heads, -1)).mean(2) * query_factor(scale, q_BHTD.shape[-1])
            sums_BKnD, open_BKD = roll_up.sums(q_BKTD, self.state.query_sum[layer])
            self.query_sum.append(open_BKD)
            q_mean_BKnD = (sums_BKnD / summary.chunk).to(q_BKTD.dtype)
        if roll_up.most == 0:
            return
        local = KV((self.k[-1],), (self.v[-1],), roll_up.done_B).take(roll_up.slots_BS, roll_up.done_B)
        noise_BKnD = torch.randn_like(q_mean_BKnD) if summary.training and q_mean_BKnD is not None else None
        pooled = summary(q_mean_BKnD, local.k[0], local.v[0], noise_BKnD)
        key_BKnx, value_BKnx = map(self.vectors.stored, pooled)
        if self._chunk_growth is not None:
            self._chunk_k[layer], self._chunk_v[layer] = self._chunk_growth.append(key_BKnx, value_BKnx)
        else:
            self._chunk_k[layer] = roll_up.stored(key_BKnx, self._chunk_k[layer])
            self._chunk_v[layer] = roll_up.stored(value_BKnx, self._chunk_v[layer])


def _tokens_before(state: EVALMState, layout: Layout) -> Tensor:
    """`length_BT`, on the host: tokens of the text before each new one."""
    if layout.group_T is None:
        return state.length_B[:, None] + torch.arange(layout.position_BT.shape[1])
    return (layout.position_BT.cpu() - state.kv.used_B[:, None]) + state.length_B[:, None]
