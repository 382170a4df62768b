"""Joint memory attention in torch: the local part by `kernels.part`, the memory part some queries at a time.

Legend: B rows, H query heads, K key/value heads, t queries of a block, S local keys, s of them visible to a
block, D head width, n chunks of the bank, c tokens of a chunk, m chunks retrieved, R = m*c.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.buffers import contiguous_like, wide
from contextlab.kernels.joint_memory_attention.reference import in_bank

BIAS_ELEMENTS = 2**20
LEAST_QUERIES = 16
GATHERED_ELEMENTS = 2**19
NEVER = float("-inf")


def local_forward(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, slopes_H: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of every softmax's denominator, `lse_BHT`."""
    out_BHTD, lse_BHT = contiguous_like(q_BHTD), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))
    for span, seen, bias, causal in _local_blocks(q_BHTD, k_BKSD, slopes_H):
        inputs = (q_BHTD[:, :, span], k_BKSD[:, :, :seen], v_BKSD[:, :, :seen], bias, scale)
        out_BHTD[:, :, span], lse_BHT[:, :, span] = part.forward(*inputs, causal=causal)
    return out_BHTD, lse_BHT


def local_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    slopes_H: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    dq_BHTD = contiguous_like(q_BHTD)
    dk_BKSD, dv_BKSD = (torch.zeros(x.shape, dtype=wide(q_BHTD), device=x.device) for x in (k_BKSD, v_BKSD))
    for span, seen, bias, causal in _local_blocks(q_BHTD, k_BKSD, slopes_H):
        dout_BHtD, out_BHtD, lse_BHt, q_BHtD = (x[:, :, span] for x in (dout_BHTD, out_BHTD, lse_BHT, q_BHTD))
        inputs = (q_BHtD, k_BKSD[:, :, :seen], v_BKSD[:, :, :seen], bias, scale, causal)
        dq_BHtD, dk_BKsD, dv_BKsD, _ = part.backward(dout_BHtD, out_BHtD, lse_BHt, *inputs, into_bias=False)
        dq_BHTD[:, :, span] = dq_BHtD
        dk_BKSD[:, :, :seen] += dk_BKsD
        dv_BKSD[:, :, :seen] += dv_BKsD
    return dq_BHTD, dk_BKSD.to(k_BKSD.dtype), dv_BKSD.to(v_BKSD.dtype)


def memory_forward(
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`out_BHTD`, the memory part `memory_BHTD` and the logarithm of its denominator, -inf without any chunk."""
    k_BKncD, v_BKncD = _whole_chunks(k_BKncD), _whole_chunks(v_BKncD)
    retrieved_BHTm = in_bank(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    out_BHTD, memory_BHTD = contiguous_like(local_BHTD), contiguous_like(local_BHTD)
    lse_BHT = q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))
    weight = torch.sigmoid(gate_H.to(lse_BHT.dtype))[:, None, None]
    for span in _memory_spans(k_BKncD, ids_BHTm):
        ids_BHtm = _ids(ids_BHTm, retrieved_BHTm, span)
        logits_BHtR, _ = _memory_logits(q_BHTD, k_BKncD, ids_BHtm, retrieved_BHTm, scale, span)
        lse_BHt = logits_BHtR.logsumexp(-1)
        weights_BHtR = _weights(logits_BHtR, lse_BHt)
        memory_BHtD = (weights_BHtR[..., None, :] @ _gather(v_BKncD, ids_BHtm).to(lse_BHT.dtype))[..., 0, :]
        local_BHtD = local_BHTD[:, :, span].to(lse_BHT.dtype)
        mixed_BHtD = torch.lerp(local_BHtD, memory_BHtD, weight)
        out_BHTD[:, :, span] = torch.where(lse_BHt[..., None] > NEVER, mixed_BHtD, local_BHtD)
        memory_BHTD[:, :, span], lse_BHT[:, :, span] = memory_BHtD, lse_BHt
    return out_BHTD, memory_BHTD, lse_BHT


def memory_backward(
    dout_BHTD: Tensor,
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    memory_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the local part, queries, gate, and the bank's keys and values (empty unless `into_bank`)."""
    kind, k_BKncD, v_BKncD = wide(q_BHTD), _whole_chunks(k_BKncD), _whole_chunks(v_BKncD)
    retrieved_BHTm = in_bank(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    dlocal_BHTD, dq_BHTD = contiguous_like(local_BHTD), contiguous_like(q_BHTD)
    dk, dv = (torch.zeros(x.shape if into_bank else (0,), dtype=kind, device=x.device) for x in (k_BKncD, v_BKncD))
    dgate_H = torch.zeros(gate_H.shape, dtype=kind, device=gate_H.device)
    weight = torch.sigmoid(gate_H.to(kind))[:, None, None]
    for span in _memory_spans(k_BKncD, ids_BHTm):
        some = lse_BHT[:, :, span, None] > NEVER
        dout_BHtD, local_BHtD, memory_BHtD = (x[:, :, span].to(kind) for x in (dout_BHTD, local_BHTD, memory_BHTD))
        dmixed_BHtD = dout_BHtD * some
        dgate_H += (dmixed_BHtD * (memory_BHtD - local_BHtD)).sum((0, 2, 3))
        dmemory_BHtD = dmixed_BHtD * weight
        dlocal_BHTD[:, :, span] = dout_BHtD - dmemory_BHtD
        ids_BHtm = _ids(ids_BHTm, retrieved_BHTm, span)
        logits_BHtR, k_BHtRD = _memory_logits(q_BHTD, k_BKncD, ids_BHtm, retrieved_BHTm, scale, span)
        weights_BHtR = _weights(logits_BHtR, lse_BHT[:, :, span])
        dlogits_BHtR = (_gather(v_BKncD, ids_BHtm).to(kind) @ dmemory_BHtD[..., None])[..., 0]
        dlogits_BHtR.sub_((dmemory_BHtD * memory_BHtD).sum(-1, keepdim=True)).mul_(weights_BHtR).mul_(scale)
        dq_BHTD[:, :, span] = (dlogits_BHtR[..., None, :] @ k_BHtRD)[..., 0, :]
        if into_bank:
            _scatter(dk, ids_BHtm, dlogits_BHtR, q_BHTD[:, :, span].to(kind))
            _scatter(dv, ids_BHtm, weights_BHtR, dmemory_BHtD)
    weight_H = weight[:, 0, 0]
    dgate_H = (dgate_H * weight_H * (1 - weight_H)).to(gate_H.dtype)
    return dlocal_BHTD, dq_BHTD, dgate_H, dk.to(k_BKncD.dtype), dv.to(v_BKncD.dtype)


def _spans(length: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, length)) for begin in range(0, length, step))


def _local_blocks(
    q_BHTD: Tensor, k_BKSD: Tensor, slopes_H: Tensor | None
) -> Iterator[tuple[slice, int, Tensor | None, bool]]:
    """Blocks of queries, how many keys each sees, the bias of its logits, and whether it is causal."""
    (heads, queries), keys = q_BHTD.shape[1:3], k_BKSD.shape[2]
    if slopes_H is None and queries in (1, keys):
        yield slice(0, queries), keys, None, queries > 1
        return
    per_query = keys if slopes_H is None else heads * keys
    for span in _spans(queries, max(LEAST_QUERIES, BIAS_ELEMENTS // per_query)):
        seen = keys - queries + span.stop
        key = torch.arange(seen, device=q_BHTD.device)
        distance_ts = (key - key[seen - span.stop + span.start :, None]).to(wide(q_BHTD))
        slopes_X = distance_ts.new_zeros(1) if slopes_H is None else slopes_H.to(distance_ts.dtype)
        yield span, seen, (slopes_X[:, None, None] * distance_ts).masked_fill_(distance_ts > 0, NEVER)[None], False


def _memory_spans(k_BKncD: Tensor, ids_BHTm: Tensor) -> Iterator[slice]:
    rows, heads, length, take = ids_BHTm.shape
    per_query = rows * heads * take * k_BKncD.shape[3] * k_BKncD.shape[4]
    return _spans(length, max(1, GATHERED_ELEMENTS // per_query))


def _ids(ids_BHTm: Tensor, retrieved_BHTm: Tensor, span: slice) -> Tensor:
    """The chunks of a block; the first chunk where none was retrieved."""
    return ids_BHTm[:, :, span].masked_fill(~retrieved_BHTm[:, :, span], 0)


def _whole_chunks(x_BKncD: Tensor) -> Tensor:
    """The bank itself where every chunk is contiguous, as in any order of rows and heads; else a copy."""
    size, width = x_BKncD.shape[3:]
    in_one_piece = x_BKncD.stride()[3:] == (width, 1) and not any(s % (size * width) for s in x_BKncD.stride()[:3])
    return x_BKncD if in_one_piece else x_BKncD.contiguous()


def _chunk_rows(x_BKncD: Tensor, ids_BHtm: Tensor) -> tuple[Tensor, Tensor]:
    """The bank's memory as one row per chunk, and the row index of every id."""
    size = x_BKncD.shape[3] * x_BKncD.shape[4]
    row_step, head_step, chunk_step = (step // size for step in x_BKncD.stride()[:3])
    rows, heads = ids_BHtm.shape[:2]
    row = torch.arange(rows, device=ids_BHtm.device) * row_step
    head = torch.arange(heads, device=ids_BHtm.device) // (heads // x_BKncD.shape[1]) * head_step
    index_BHtm = row[:, None, None, None] + head[:, None, None] + ids_BHtm * chunk_step
    last = sum((n - 1) * step for n, step in zip(x_BKncD.shape, x_BKncD.stride(), strict=True))
    return x_BKncD.as_strided((last // size + 1, size), (size, 1)), index_BHtm.flatten()


def _gather(x_BKncD: Tensor, ids_BHtm: Tensor) -> Tensor:
    """The tokens of the chunks."""
    memory, index = _chunk_rows(x_BKncD, ids_BHtm)
    return memory.index_select(0, index).view(*ids_BHtm.shape[:3], -1, x_BKncD.shape[4])


def _memory_logits(
    q_BHTD: Tensor, k_BKncD: Tensor, ids_BHtm: Tensor, retrieved_BHTm: Tensor, scale: float, span: slice
) -> tuple[Tensor, Tensor]:
    k_BHtRD = _gather(k_BKncD, ids_BHtm).to(wide(q_BHTD))
    q_BHtD1 = (q_BHTD[:, :, span].to(wide(q_BHTD)) * scale)[..., None]
    missing_BHtR = ~retrieved_BHTm[:, :, span].repeat_interleave(k_BKncD.shape[3], dim=-1)
    return (k_BHtRD @ q_BHtD1)[..., 0].masked_fill_(missing_BHtR, NEVER), k_BHtRD


def _weights(logits_BHtR: Tensor, lse_BHt: Tensor) -> Tensor:
    return logits_BHtR.sub_(lse_BHt.clamp(min=torch.finfo(lse_BHt.dtype).min)[..., None]).exp_()


def _scatter(into_BKncD: Tensor, ids_BHtm: Tensor, weights_BHtR: Tensor, x_BHtD: Tensor) -> None:
    """Add every query's `x`, weighted, to each of its tokens, in place."""
    memory, index = _chunk_rows(into_BKncD, ids_BHtm)
    memory.index_add_(0, index, (weights_BHtR[..., None] * x_BHtD[..., None, :]).reshape(len(index), -1))
