"""EVA attention part by part, joined by the parts' log-sum-exp: memory linear in queries and keys.

The parts are what all queries see in full (older local keys, chunks before the first query's last) and what needs a
mask. On a CPU each is one call of torch's fused kernel; with gradients, and elsewhere, tiles of queries are written
out, and with gradients computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

QUERIES_AT_ONCE = 256


def eva_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
) -> Tensor:
    """See `contextlab.kernels.eva_attention.eva_attention`."""
    parts = list(_local(q_BHTD, k_BKSD, v_BKSD, bias, scale))
    for out_BHTD, lse_BHT in _remote(q_BHTD, chunk_k_BKnD, chunk_v_BKnD, counts_BT, scale):
        parts.append((out_BHTD, lse_BHT if chunk_bias_H is None else lse_BHT + chunk_bias_H[:, None]))
    if len(parts) == 1:
        return parts[0][0]
    total_BHT = parts[0][1]
    for _, lse_BHT in parts[1:]:
        total_BHT = torch.logaddexp(total_BHT, lse_BHT)
    weighted = [out_BHTD * (lse_BHT - total_BHT).exp()[..., None] for out_BHTD, lse_BHT in parts]
    return torch.stack(weighted).sum(0).to(q_BHTD.dtype)


def _local(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    if bias is not None:
        yield _attend(q_BHTD, k_BKSD, v_BKSD, bias, scale)
        return
    older = k_BKSD.shape[2] - q_BHTD.shape[2]
    yield _attend(q_BHTD, k_BKSD[:, :, older:], v_BKSD[:, :, older:], None, scale, causal=True)
    if older:
        yield _attend(q_BHTD, k_BKSD[:, :, :older], v_BKSD[:, :, :older], None, scale)


def _remote(
    q_BHTD: Tensor, k_BKnD: Tensor, v_BKnD: Tensor, counts_BT: Tensor | None, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    chunks = k_BKnD.shape[2]
    all_see = chunks if counts_BT is None else min(int(counts_BT.min()), chunks)
    if all_see:
        yield _attend(q_BHTD, k_BKnD[:, :, :all_see], v_BKnD[:, :, :all_see], None, scale)
    if counts_BT is not None and int(counts_BT.max()) > all_see:
        hidden_B1Tn = torch.arange(all_see, chunks, device=q_BHTD.device) >= counts_BT[:, None, :, None]
        # A finite floor instead of -inf: a query that sees no chunk has a finite output here, and weight 0 in the end.
        floor = torch.finfo(q_BHTD.dtype).min / 2
        bias = torch.zeros_like(hidden_B1Tn, dtype=q_BHTD.dtype).masked_fill(hidden_B1Tn, floor)
        yield _attend(q_BHTD, k_BKnD[:, :, all_see:], v_BKnD[:, :, all_see:], bias, scale)


def _attend(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and `lse_BHT`; causal over equal lengths."""
    grad = torch.is_grad_enabled()
    if q_BHTD.device.type == "cpu" and not grad:
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out_BHTD, lse_BHT = fused(q_BHTD, k_BKSD, v_BKSD, 0.0, causal, attn_mask=bias, scale=scale)
        return out_BHTD, lse_BHT
    outs, sums = [], []
    for begin in range(0, q_BHTD.shape[2], QUERIES_AT_ONCE):
        end = min(begin + QUERIES_AT_ONCE, q_BHTD.shape[2])
        keys = end if causal else k_BKSD.shape[2]
        rows = bias[..., begin:end, :] if bias is not None and bias.shape[-2] > 1 else bias
        given = (q_BHTD[:, :, begin:end], k_BKSD[:, :, :keys], v_BKSD[:, :, :keys], rows, scale, causal)
        out, lse = checkpoint(_tile, *given, use_reentrant=False) if grad else _tile(*given)
        outs.append(out)
        sums.append(lse)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


def _tile(
    q_BHtD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    q_BKGtD = (q_BHtD * scale).unflatten(1, (k_BKSD.shape[1], -1))
    logits_BHtS = (q_BKGtD @ k_BKSD[:, :, None].transpose(-1, -2)).flatten(1, 2)
    logits_BHtS = logits_BHtS.to(torch.promote_types(logits_BHtS.dtype, torch.float32))
    if bias is not None:
        logits_BHtS = logits_BHtS + bias
    if causal:
        queries, keys = logits_BHtS.shape[-2:]
        seen_tS = torch.ones(queries, keys, dtype=torch.bool, device=q_BHtD.device).tril(keys - queries)
        logits_BHtS = logits_BHtS.masked_fill(~seen_tS, float("-inf"))
    weights_BKGtS = logits_BHtS.softmax(-1).to(v_BKSD.dtype).unflatten(1, (k_BKSD.shape[1], -1))
    return (weights_BKGtS @ v_BKSD[:, :, None]).flatten(1, 2), logits_BHtS.logsumexp(-1)
