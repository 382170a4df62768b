"""EVALM's attention over a whole sequence at once, differentiable: what training and transformers' models run.

Legend: B rows, T tokens, t tokens of a window, S local keys, n chunks, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contextlab.attention import rotate
from contextlab.backbone import Backbone
from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_chunk_compress import chunk_means
from contextlab.methods.evalm.config import Geometry
from contextlab.methods.evalm.summary import Summary, query_factor


class ParallelEVA:
    """Call it as `attend` of a forward pass over whole sequences; it equals reading them piece by piece.

    Right padding needs no mask, for no token attends to what follows it.
    """

    def __init__(self, backbone: Backbone, summaries: nn.ModuleList, geometry: Geometry) -> None:
        self.backbone, self.summaries, self.geometry = backbone, summaries, geometry

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Summarise all whole chunks, then attend: in one call where every key has one position, else by windows."""
        geometry = self.geometry
        summary: Summary = self.summaries[layer]  # type: ignore[assignment]
        whole = q_BHTD.shape[2] // geometry.chunk * geometry.chunk
        chunk_k_BKnD, chunk_v_BKnD = k_BKTD[:, :, :0], v_BKTD[:, :, :0]
        if whole:
            q_mean_BKnD = chunk_means(q_BHTD[:, :, :whole], geometry.chunk, k_BKTD.shape[1])
            q_mean_BKnD = q_mean_BKnD * query_factor(scale, q_BHTD.shape[-1])
            noise_BKnD = torch.randn_like(q_mean_BKnD) if summary.training else None
            chunk_k_BKnD, chunk_v_BKnD = summary(q_mean_BKnD, k_BKTD[:, :, :whole], v_BKTD[:, :, :whole], noise_BKnD)
        operands = (q_BHTD, k_BKTD, v_BKTD, chunk_k_BKnD, chunk_v_BKnD)
        narrow = window is not None and window < geometry.recent + geometry.window
        if narrow or geometry.sinks or not self.backbone.learned_positions:
            begins = range(0, q_BHTD.shape[2], geometry.window)
            return torch.cat([self._one_window(begin, *operands, summary, scale, window) for begin in begins], dim=2)
        return eva_attention(
            *operands,
            scale=scale,
            counts_BT=geometry.counts(torch.arange(q_BHTD.shape[2], device=q_BHTD.device)).expand(len(q_BHTD), -1),
            chunk_bias_H=summary.remote_bias_H,
            window=geometry.window,
            overlap=geometry.recent > 0,
        )

    def _one_window(
        self,
        begin: int,
        q_BHTD: Tensor,
        k_BKTD: Tensor,
        v_BKTD: Tensor,
        chunk_k_BKnD: Tensor,
        chunk_v_BKnD: Tensor,
        summary: Summary,
        scale: float,
        window: int | None,
    ) -> Tensor:
        q_BHtD = q_BHTD[:, :, begin : begin + self.geometry.window]
        end = begin + q_BHtD.shape[2]
        k_BKSD, v_BKSD = self._local(k_BKTD, begin, end), self._local(v_BKTD, begin, end)
        slots_S = torch.arange(k_BKSD.shape[2], device=q_BHTD.device)
        slots_t = slots_S[-q_BHtD.shape[2] :]
        counts_1t, positions_1n = self._chunks(begin, end, slots_S)
        first, last = self.geometry.first, self.geometry.first + positions_1n.shape[1]
        return eva_attention(
            self._rotate(q_BHtD, slots_t),
            self._rotate(k_BKSD, slots_S),
            v_BKSD,
            self._rotate(chunk_k_BKnD[:, :, first:last], positions_1n[0]),
            chunk_v_BKnD[:, :, first:last],
            scale=scale,
            bias=_band(slots_t, slots_S, window, q_BHTD.dtype),
            counts_BT=counts_1t.expand(len(q_BHTD), -1) if self.geometry.own else None,
            chunk_bias_H=summary.remote_bias_H,
        )

    def _local(self, x_BKTD: Tensor, begin: int, end: int) -> Tensor:
        geometry = self.geometry
        if geometry.kept(begin) == begin:
            return x_BKTD[:, :, :end]
        return torch.cat((x_BKTD[:, :, : geometry.sinks], x_BKTD[:, :, begin - geometry.recent : end]), dim=2)

    def _chunks(self, begin: int, end: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Counts that the queries see, and positions of as many chunks as the last one sees."""
        geometry = self.geometry
        past_1 = like.new_full((1,), geometry.past(begin, geometry.kept(begin)))
        counts_1t = geometry.seen(torch.arange(begin, end, device=like.device)[None], past_1)
        return counts_1t, geometry.positions(int(counts_1t[0, -1]), past_1, past_1 * 0 + begin + geometry.window)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        return rotate(x, self.backbone.rotary(positions[None])) if x.shape[2] else x


def _band(slots_t: Tensor, slots_S: Tensor, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """The local bias of a model that was itself trained with a sliding window; None where that is not reached."""
    if window is None or window >= len(slots_S):
        return None
    seen_tS = (slots_S <= slots_t[:, None]) & (slots_S > slots_t[:, None] - window)
    return torch.zeros(seen_tS.shape, dtype=dtype, device=slots_S.device).masked_fill(~seen_tS, float("-inf"))
