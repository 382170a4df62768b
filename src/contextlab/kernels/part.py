"""One part of a softmax, forward and backward: Triton, torch's fused kernel on a CPU, or tiles of plain torch.

Legend: B rows, H query heads, K key/value heads, R queries of all heads that share a key head, t queries, S keys,
D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contextlab.kernels import dispatch
from contextlab.kernels.buffers import in_rows, wide
from contextlab.kernels.visible import QUERIES_AT_ONCE, blocks

LOGITS_AT_ONCE = 2**26
"""Logits of more than `QUERIES_AT_ONCE` queries that are computed together where every launch is waited for."""
fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
fused_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def forward(
    q_BHtD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """`out_BHtD` and `lse_BHt`; `causal` needs as many keys as queries."""
    if dispatch.use_triton(q_BHtD):
        from contextlab.kernels import part_triton

        return part_triton.forward(q_BHtD, k_BKSD, v_BKSD, bias, scale, causal=causal)
    if q_BHtD.device.type == "cpu":
        parts = [
            _fused_forward(
                q_BHtD[:, :, queries], k_BKSD[:, :, keys], v_BKSD[:, :, keys], block_bias, scale, causal=causal
            )
            for queries, keys, block_bias in blocks(bias)
        ]
        outs, sums = zip(*parts, strict=True)
        return parts[0] if len(parts) == 1 else (torch.cat(outs, dim=2), torch.cat(sums, dim=2))
    return tiled_forward(q_BHtD, k_BKSD, v_BKSD, bias, scale, causal=causal)


def backward(
    dout_BHtD: Tensor,
    out_BHtD: Tensor,
    lse_BHt: Tensor,
    q_BHtD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool,
    *,
    into_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and, with `into_bias`, the bias, in its shape.

    `out_BHtD` and `lse_BHt` are those of the whole softmax.
    """
    if dispatch.use_triton(q_BHtD) and not into_bias:
        from contextlab.kernels import part_triton

        outputs = (dout_BHtD, out_BHtD, lse_BHt)
        return (*part_triton.backward(*outputs, q_BHtD, k_BKSD, v_BKSD, bias, scale, causal), q_BHtD.new_empty(0))
    if q_BHtD.device.type != "cpu" or into_bias:
        inputs = (q_BHtD, k_BKSD, v_BKSD, bias, scale)
        return tiled_backward(dout_BHtD, out_BHtD, lse_BHt, *inputs, causal=causal, into_bias=into_bias)
    outputs, kind, pieces = (dout_BHtD, out_BHtD, lse_BHt), wide(q_BHtD), blocks(bias)
    if len(pieces) == 1:
        return (*_fused_backward(*outputs, q_BHtD, k_BKSD, v_BKSD, bias, scale, causal=causal), q_BHtD.new_empty(0))
    dqs = list[Tensor]()
    dk_BKSD, dv_BKSD = (torch.zeros(x.shape, dtype=kind, device=x.device) for x in (k_BKSD, v_BKSD))
    for queries, keys, block_bias in pieces:
        dout, out, lse, q = (x[:, :, queries] for x in (*outputs, q_BHtD))
        dq, dk, dv = _fused_backward(dout, out, lse, q, k_BKSD[:, :, keys], v_BKSD[:, :, keys], block_bias, scale)
        dqs.append(dq)
        dk_BKSD[:, :, keys] += dk
        dv_BKSD[:, :, keys] += dv
    return torch.cat(dqs, dim=2), dk_BKSD.to(k_BKSD.dtype), dv_BKSD.to(v_BKSD.dtype), q_BHtD.new_empty(0)


def _fused_forward(
    q_BHtD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    inputs = (_apart(q_BHtD), *in_rows(k_BKSD, v_BKSD))
    out_BHtD, lse_BHt = fused(*inputs, 0.0, causal, **_options(q_BHtD, bias, scale))
    return out_BHtD, lse_BHt


def _fused_backward(
    dout_BHtD: Tensor,
    out_BHtD: Tensor,
    lse_BHt: Tensor,
    q_BHtD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    bias: Tensor | None,
    scale: float,
    *,
    causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = in_rows(dout_BHtD, q_BHtD, k_BKSD, v_BKSD, out_BHtD)
    of_forward = (lse_BHt.contiguous(), 0.0, causal)
    dq, dk, dv = fused_backward(*rows, *of_forward, **_options(q_BHtD, bias, scale))
    return dq, dk, dv


def tiled_forward(
    q_BHtD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """`forward` in plain torch."""
    outs, sums = [], []
    for span in _spans(q_BHtD, k_BKSD.shape[2]):
        logits_BHtS = _logits(q_BHtD, k_BKSD, bias, scale, span, causal=causal)
        lse_BHt = logits_BHtS.logsumexp(-1)
        weights_BHtS = logits_BHtS.sub_(lse_BHt[..., None]).exp_()
        out_BKRD = _grouped(weights_BHtS, v_BKSD).to(v_BKSD.dtype) @ v_BKSD
        outs.append(out_BKRD.view(*lse_BHt.shape, -1))
        sums.append(lse_BHt)
    return (outs[0], sums[0]) if len(outs) == 1 else (torch.cat(outs, dim=2), torch.cat(sums, dim=2))


def tiled_backward(
    dout_BHtD: Tensor,
    out_BHtD: Tensor,
    lse_BHt: Tensor,
    q_BHtD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    bias: Tensor | None,
    scale: float,
    *,
    causal: bool,
    into_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`backward` in plain torch."""
    kind, dqs = lse_BHt.dtype, []
    dk_BKSD, dv_BKSD = (torch.zeros(x.shape, dtype=kind, device=x.device) for x in (k_BKSD, v_BKSD))
    dbias = torch.zeros(bias.shape if into_bias and bias is not None else (0,), dtype=kind, device=q_BHtD.device)
    delta_BHt1 = (dout_BHtD.to(kind) * out_BHtD).sum(-1, keepdim=True)
    for span in _spans(q_BHtD, k_BKSD.shape[2]):
        dout_BKRD = _grouped(dout_BHtD[:, :, span], v_BKSD)
        weights_BHtS = _logits(q_BHtD, k_BKSD, bias, scale, span, causal=causal)
        weights_BHtS.sub_(lse_BHt[:, :, span, None]).exp_()
        dv_BKSD += _grouped(weights_BHtS, v_BKSD).to(dout_BKRD.dtype).transpose(-1, -2) @ dout_BKRD
        dlogits_BHtS = (dout_BKRD @ v_BKSD.transpose(-1, -2)).view(weights_BHtS.shape).to(kind)
        dlogits_BHtS = (dlogits_BHtS - delta_BHt1[:, :, span]).mul_(weights_BHtS)
        if into_bias:
            rows = dbias[..., span, :] if dbias.shape[-2] > 1 else dbias
            rows += dlogits_BHtS.sum_to_size(rows.shape)
        dlogits_BKRS = _grouped(dlogits_BHtS.mul_(scale), k_BKSD).to(k_BKSD.dtype)
        dqs.append((dlogits_BKRS @ k_BKSD).view(*dlogits_BHtS.shape[:3], -1))
        dk_BKSD += dlogits_BKRS.transpose(-1, -2) @ _grouped(q_BHtD[:, :, span], k_BKSD)
    return torch.cat(dqs, dim=2), dk_BKSD, dv_BKSD, dbias


def _apart(q_BHtD: Tensor) -> Tensor:
    """The queries, copied also where rows repeat or overlap: the kernel allocates its output with their strides."""
    *sizes, width = q_BHtD.shape
    apart = all(size == 1 or step >= width for size, step in zip(sizes, q_BHtD.stride(), strict=False))
    return next(in_rows(q_BHtD)) if apart else q_BHtD.contiguous()


def _options(q_BHtD: Tensor, bias: Tensor | None, scale: float) -> dict[str, Any]:
    # In the type of the sums: torch reads a mask of any type but float32 as if it had the type of the queries.
    return {"attn_mask": bias if bias is None else bias.to(wide(q_BHtD)), "scale": scale}


def _spans(q_BHtD: Tensor, keys: int) -> Iterator[slice]:
    """Blocks of queries whose logits are computed together; more of them off a CPU, as long as the keys are few."""
    rows, heads, length, _ = q_BHtD.shape
    many = QUERIES_AT_ONCE if q_BHtD.is_cpu else LOGITS_AT_ONCE // max(1, rows * heads * keys)
    step = max(QUERIES_AT_ONCE, many)
    return (slice(begin, min(begin + step, length)) for begin in range(0, length, step))


def _logits(q_BHtD: Tensor, k_BKSD: Tensor, bias: Tensor | None, scale: float, span: slice, *, causal: bool) -> Tensor:
    """`logits_BHtS` of some of the queries, in the type of the sums."""
    q, kind = q_BHtD[:, :, span], wide(q_BHtD)
    logits = (_grouped(q, k_BKSD).to(kind) @ k_BKSD.transpose(-1, -2).to(kind)).view(*q.shape[:3], -1) * scale
    if bias is not None:
        logits = logits + (bias[..., span, :] if bias.shape[-2] > 1 else bias)
    if causal:
        future_tS = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + span.start)
        logits = logits.masked_fill(future_tS, float("-inf"))
    return logits


def _grouped(x_BHtD: Tensor, like_BKSD: Tensor) -> Tensor:
    """All queries that share a key head, concatenated: `x_BKRD`."""
    rows, heads, length, width = x_BHtD.shape
    kv_heads = like_BKSD.shape[1]
    return x_BHtD.reshape(rows, kv_heads, heads // kv_heads * length, width)
