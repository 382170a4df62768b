"""EVA attention in torch, computed in parts that are joined by their log-sum-exp: memory linear in queries and keys.

A part is a block of queries with keys of one kind: older local keys, the block's own keys, chunks that all of the
queries see, or chunks that some of them see. The gradient of a part follows from the denominator and the output of the
whole softmax.

Legend: B rows, H query heads, K key/value heads, T queries, t of them in a block, S keys, n chunks, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.buffers import contiguous_like, wide

QUERIES_AT_ONCE = 1024


@dataclasses.dataclass(frozen=True)
class QueryBlock:
    """A block of queries with some of the keys that it attends to.

    Attributes:
        queries: slice of the queries.
        remote: whether the keys are chunks.
        keys: slice of the keys.
        bias: added to the logits.
        causal: whether there are as many keys as queries and attention is causal.
    """

    queries: slice
    remote: bool
    keys: slice
    bias: Tensor | None = None
    causal: bool = False


def forward(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
    window: int,
    overlap: int,
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of every softmax's denominator, `lse_BHT`."""
    out_BHTD, lse_BHT = contiguous_like(q_BHTD), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))
    keys, values = (k_BKSD, chunk_k_BKnD), (v_BKSD, chunk_v_BKnD)
    for parts in _blocks(q_BHTD, k_BKSD, chunk_k_BKnD, bias, counts_BT, window, overlap):
        span, outs, sums = parts[0].queries, [], []
        for piece in parts:
            k, v = (x[piece.remote][:, :, piece.keys] for x in (keys, values))
            out, lse = part.forward(q_BHTD[:, :, span], k, v, piece.bias, scale, causal=piece.causal)
            outs.append(out)
            sums.append(lse + chunk_bias_H[:, None] if piece.remote and chunk_bias_H is not None else lse)
        lse_BHt = torch.stack(sums).logsumexp(0) if len(sums) > 1 else sums[0]
        weighted = [out * (lse - lse_BHt).exp_()[..., None] for out, lse in zip(outs, sums, strict=True)]
        out_BHTD[:, :, span], lse_BHT[:, :, span] = sum(weighted[1:], weighted[0]), lse_BHt
    return out_BHTD, lse_BHT


def backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    window: int,
    overlap: int,
    into_bias: bool,
    into_chunk_bias: bool,
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values, chunks' keys and values, and of both biases (empty without `into_`)."""
    kind = wide(q_BHTD)
    dq_BHTD = contiguous_like(q_BHTD)
    keys, values = (k_BKSD, chunk_k_BKnD), (v_BKSD, chunk_v_BKnD)
    dkeys, dvalues = (tuple(_zeros(x.shape, q_BHTD) for x in pair) for pair in (keys, values))
    dbias = _zeros(bias.shape if into_bias and bias is not None else (0,), q_BHTD)
    dchunk_bias_H = _zeros(q_BHTD.shape[1:2] if into_chunk_bias else (0,), q_BHTD)
    for parts in _blocks(q_BHTD, k_BKSD, chunk_k_BKnD, bias, counts_BT, window, overlap):
        span = parts[0].queries
        q_BHtD, dout_BHtD, out_BHtD = (x[:, :, span] for x in (q_BHTD, dout_BHTD, out_BHTD))
        dq_BHtD = torch.zeros_like(q_BHtD, dtype=kind)
        for piece in parts:
            lse_BHt = lse_BHT[:, :, span]
            if piece.remote and chunk_bias_H is not None:
                lse_BHt = lse_BHt - chunk_bias_H[:, None]
            k, v = (x[piece.remote][:, :, piece.keys] for x in (keys, values))
            inputs = (q_BHtD, k, v, piece.bias, scale, piece.causal)
            local_bias = into_bias and not piece.remote
            dq, dk, dv, dlogits = part.backward(dout_BHtD, out_BHtD, lse_BHt, *inputs, into_bias=local_bias)
            dq_BHtD += dq
            dkeys[piece.remote][:, :, piece.keys] += dk
            dvalues[piece.remote][:, :, piece.keys] += dv
            if local_bias:
                dbias[_rows(dbias, span)] += dlogits
            if into_chunk_bias and piece.remote:
                dchunk_bias_H += _chunk_bias_gradient(dout_BHtD, out_BHtD, lse_BHt, *inputs)
        dq_BHTD[:, :, span] = dq_BHtD
    gradients = (dkeys[0], dvalues[0], dkeys[1], dvalues[1])
    originals = (k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD)
    narrow = (x.to(like.dtype) for x, like in zip(gradients, originals, strict=True))
    return dq_BHTD, *narrow, _as(dbias, bias), _as(dchunk_bias_H, chunk_bias_H)


def _chunk_bias_gradient(
    dout_BHtD: Tensor,
    out_BHtD: Tensor,
    lse_BHt: Tensor,
    q_BHtD: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> Tensor:
    """The gradient of `chunk_bias_H`."""
    chunks_BHtD, chunks_lse_BHt = part.forward(q_BHtD, k, v, bias, scale, causal=causal)
    better_BHt = (dout_BHtD.to(lse_BHt.dtype) * (chunks_BHtD.to(lse_BHt.dtype) - out_BHtD)).sum(-1)
    return ((chunks_lse_BHt - lse_BHt).exp() * better_BHt).sum((0, 2))


def _blocks(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    window: int,
    overlap: int,
) -> Iterator[list[QueryBlock]]:
    """The parts of every block of queries; no block extends over the end of a window."""
    keys, chunks = k_BKSD.shape[2], chunk_k_BKnD.shape[2]
    older = keys - q_BHTD.shape[2]
    begin = older
    while begin < keys:
        end = min(begin + QUERIES_AT_ONCE, begin // window * window + window, keys)
        span = slice(begin - older, end - older)
        if bias is not None:
            parts = [QueryBlock(span, False, slice(0, keys), bias[_rows(bias, span)])]
        else:
            first = max(begin // window * window - overlap, 0)
            parts = [QueryBlock(span, False, slice(begin, end), causal=True)]
            parts += [QueryBlock(span, False, slice(first, begin))] * (first < begin)
        counts_Bt = None if counts_BT is None else counts_BT[:, span].clamp(0, chunks)
        all_see = chunks if counts_Bt is None else int(counts_Bt.min())
        parts += [QueryBlock(span, True, slice(0, all_see))] * (all_see > 0)
        some_see = chunks if counts_Bt is None else int(counts_Bt.max())
        if counts_Bt is not None and some_see > all_see:
            hidden_B1tn = torch.arange(all_see, some_see, device=q_BHTD.device) >= counts_Bt[:, None, :, None]
            # Finite, not -inf: a query that sees no chunk then has a finite output here, which gets weight 0.
            floor = torch.finfo(q_BHTD.dtype).min / 2
            mask = torch.zeros_like(hidden_B1tn, dtype=q_BHTD.dtype).masked_fill(hidden_B1tn, floor)
            parts.append(QueryBlock(span, True, slice(all_see, some_see), mask))
        yield parts
        begin = end


def _rows(bias: Tensor, span: slice) -> tuple[slice, slice, slice]:
    """The index of a block of queries in a bias, whose dimension of queries may be 1."""
    return slice(None), slice(None), span if bias.shape[2] > 1 else slice(None)


def _zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=wide(like), device=like.device)


def _as(x: Tensor, like: Tensor | None) -> Tensor:
    return x if like is None else x.to(like.dtype)
