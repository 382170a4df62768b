"""Search of a bank of chunks by the inner product with their mean keys (LongMem, section 2.3).

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks retrieved.
"""

from __future__ import annotations

from importlib import util
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.errors import UserError
from contextlab.kernels import checks, dispatch
from contextlab.kernels.chunk_topk import blocked, reference

Index = Literal["exact", "faiss"]
WIDEST = 256
"""Numbers of a key that Triton's smallest tiles have room for; longer ones, of all heads together, torch compares."""

__all__ = ["Index", "check_index", "chunk_topk"]


def chunk_topk(
    q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int, *, index: Index = "exact"
) -> tuple[Tensor, Tensor]:
    """The `take` chunks of highest q . mean(k) for every query and head, in float32; ties go to the lower id.

    Args:
        q_BHTD: queries, unscaled (a scale would not change the ranking).
        mean_BKnD: mean key of every chunk; query heads share key heads in consecutive groups.
        count_B: chunks in use per row, the first ones, int64. On a CPU a number out of range is an error; on a GPU,
            where the check would wait for the device, it is clamped.
        take: chunks to retrieve.
        index: `exact`, or `faiss` for its flat search on a CPU, which computes the same, but where scores are equal or
            nearly so.

    Returns:
        `ids_BHTm` (int64, best first, 0 where there is no chunk) and `score_BHTm` (float32, -inf where there is none).
        Neither has gradients.

    Raises:
        ValueError, TypeError: when shapes, devices, types or counts do not fit.
    """
    sizes = checks.shapes(q_BHTD=q_BHTD, mean_BKnD=mean_BKnD, count_B=count_B)
    checks.heads(sizes)
    checks.one_float_type(q_BHTD=q_BHTD)
    checks.one_float_type(mean_BKnD=mean_BKnD)
    checks.of_type(torch.int64, count_B=count_B)
    if take < 0:
        raise ValueError(f"take = {take} chunks cannot be retrieved: give 0 or more.")
    q_BHTD, mean_BKnD = q_BHTD.detach(), mean_BKnD.detach()
    if dispatch.forced_form() == "reference":
        checks.count(count_B, sizes["n"])
        return reference.chunk_topk(q_BHTD, mean_BKnD, count_B, take)
    best: tuple[Tensor, Tensor] = _chunk_topk(q_BHTD, mean_BKnD, count_B, take, index == "faiss")
    return best


def check_index(index: Index, device: torch.device) -> None:
    """Refuse an index that cannot search here.

    Raises:
        UserError: saying what to do.
    """
    if index != "faiss":
        return
    if util.find_spec("faiss") is None:
        raise UserError("index=faiss needs faiss, which is not installed: pip install faiss-cpu, or use index=exact.")
    if device.type != "cpu":
        raise UserError(f"index=faiss searches on a CPU, not on {device.type}: use index=exact.")


@torch.library.custom_op("contextlab::chunk_topk", mutates_args=())
def _chunk_topk(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int, faiss: bool) -> tuple[Tensor, Tensor]:
    checks.count(count_B, mean_BKnD.shape[2])
    if faiss:
        from contextlab.kernels.chunk_topk import flat

        return flat.search(q_BHTD, mean_BKnD, count_B, take)
    if mean_BKnD.shape[3] > WIDEST or not dispatch.use_triton(q_BHTD, mean_BKnD):
        return blocked.search(q_BHTD, mean_BKnD, count_B, take)
    from contextlab.kernels.chunk_topk import triton

    return triton.search(q_BHTD, mean_BKnD, count_B, take)


@_chunk_topk.register_fake
def _(q_BHTD: Tensor, _mean: Tensor, _count: Tensor, take: int, _faiss: bool) -> tuple[Tensor, Tensor]:
    shape = (*q_BHTD.shape[:3], take)
    return q_BHTD.new_empty(shape, dtype=torch.int64), q_BHTD.new_empty(shape, dtype=torch.float32)


@register_flop_formula(torch.ops.contextlab.chunk_topk, get_raw=True)
def chunk_topk_flops(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, *_args: Any, **_kwargs: Any) -> int:
    """One inner product for every query head and chunk in use; multiply-add = 2."""
    _, heads, queries, width = q_BHTD.shape
    return dispatch.total(count_B.clamp(0, mean_BKnD.shape[2]), most=mean_BKnD.shape[2]) * heads * queries * 2 * width
