"""One part of a softmax, over chunks that every query has retrieved for itself, some queries at a time.

Legend: B rows, H query heads, K key/value heads, T queries, t queries of a block, D head width, n chunks of the bank,
c tokens of a chunk, m chunks retrieved, R = m*c.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from contextlab.kernels.buffers import at_once, wide

GATHERED_ELEMENTS = 2**19
"""Numbers of keys that are gathered at one time, on a CPU."""
NEVER = float("-inf")


def in_bank(ids_BHTm: Tensor, retrieved_BHTm: Tensor, chunks: int) -> Tensor:
    """`retrieved_BHTm` without the chunks that the bank does not have."""
    return retrieved_BHTm & (ids_BHTm >= 0) & (ids_BHTm < chunks)


class Retrieved:
    """Retrieved chunks and the queries that attend to them.

    Args:
        q_BHTD: queries.
        k_BKncD: keys of the bank, read in place; query heads share key heads in consecutive groups.
        v_BKncD: values of the bank.
        ids_BHTm: the chunks of every query.
        retrieved_BHTm: which of them exist, the ids of the others being anything.
        scale: factor of the logits.
    """

    def __init__(
        self, q_BHTD: Tensor, k_BKncD: Tensor, v_BKncD: Tensor, ids_BHTm: Tensor, retrieved_BHTm: Tensor, scale: float
    ) -> None:
        self.q_BHTD, self.ids_BHTm, self.scale = q_BHTD, ids_BHTm, scale
        self.k_BKncD, self.v_BKncD = whole_chunks(k_BKncD), whole_chunks(v_BKncD)
        self.retrieved_BHTm = in_bank(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
        self.kind = wide(q_BHTD)

    def spans(self) -> Iterator[slice]:
        """Blocks of queries whose keys are gathered together."""
        rows, heads, length, retrieved = self.ids_BHTm.shape
        per_query = rows * heads * retrieved * self.k_BKncD.shape[3] * self.k_BKncD.shape[4]
        step = max(1, at_once(GATHERED_ELEMENTS, self.q_BHTD) // per_query)
        return (slice(begin, min(begin + step, length)) for begin in range(0, length, step))

    def attend(self, span: slice) -> tuple[Tensor, Tensor]:
        """`memory_BHtD` of some queries and the logarithm of its denominator `lse_BHt`; 0 and -inf without chunks."""
        ids_BHtm = self._ids(span)
        logits_BHtR, _ = self._logits(ids_BHtm, span)
        lse_BHt = logits_BHtR.logsumexp(-1)
        weights_BHtR = _weights(logits_BHtR, lse_BHt)
        return (weights_BHtR[..., None, :] @ self._values(ids_BHtm))[..., 0, :], lse_BHt

    def backward(
        self,
        span: slice,
        dout_BHtD: Tensor,
        delta_BHt1: Tensor,
        lse_BHt: Tensor,
        into: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of some queries, `dq_BHtD`, and of a number added to all logits of a query, `dlogit_BHt`.

        Args:
            span: the queries.
            dout_BHtD: gradient of the output.
            delta_BHt1: its inner product with the output, of the whole softmax where this is a part of one.
            lse_BHt: the logarithm of the denominator, of the whole softmax where this is a part of one.
            into: gradients of the bank's keys and values to add to, contiguous; None leaves them out.
        """
        ids_BHtm = self._ids(span)
        logits_BHtR, k_BHtRD = self._logits(ids_BHtm, span)
        weights_BHtR = _weights(logits_BHtR, lse_BHt)
        dlogits_BHtR = (self._values(ids_BHtm) @ dout_BHtD[..., None])[..., 0]
        dlogits_BHtR.sub_(delta_BHt1).mul_(weights_BHtR)
        dlogit_BHt = dlogits_BHtR.sum(-1)
        dq_BHtD = (dlogits_BHtR.mul_(self.scale)[..., None, :] @ k_BHtRD)[..., 0, :]
        if into is not None:
            _scatter(into[0], ids_BHtm, dlogits_BHtR, self.q_BHTD[:, :, span].to(self.kind))
            _scatter(into[1], ids_BHtm, weights_BHtR, dout_BHtD)
        return dq_BHtD, dlogit_BHt

    def bank_gradients(self) -> tuple[Tensor, Tensor]:
        """Zeros of the bank's keys and values, to add gradients to."""
        dk, dv = (torch.zeros(x.shape, dtype=self.kind, device=x.device) for x in (self.k_BKncD, self.v_BKncD))
        return dk, dv

    def _ids(self, span: slice) -> Tensor:
        """The chunks of a block, the first chunk where none was retrieved."""
        return self.ids_BHTm[:, :, span].masked_fill(~self.retrieved_BHTm[:, :, span], 0)

    def _values(self, ids_BHtm: Tensor) -> Tensor:
        return _gather(self.v_BKncD, ids_BHtm).to(self.kind)

    def _logits(self, ids_BHtm: Tensor, span: slice) -> tuple[Tensor, Tensor]:
        k_BHtRD = _gather(self.k_BKncD, ids_BHtm).to(self.kind)
        q_BHtD1 = (self.q_BHTD[:, :, span].to(self.kind) * self.scale)[..., None]
        missing_BHtR = ~self.retrieved_BHTm[:, :, span].repeat_interleave(self.k_BKncD.shape[3], dim=-1)
        return (k_BHtRD @ q_BHtD1)[..., 0].masked_fill_(missing_BHtR, NEVER), k_BHtRD


def whole_chunks(x_BKncD: Tensor) -> Tensor:
    """The bank itself where its chunks lie in one piece each and a whole number of tokens apart; else a copy."""
    width = x_BKncD.shape[4]
    in_one_piece = x_BKncD.stride()[3:] == (width, 1) and not any(step % width for step in x_BKncD.stride()[:3])
    return x_BKncD if in_one_piece else x_BKncD.contiguous()


def _first_tokens(x_BKncD: Tensor, ids_BHtm: Tensor, unit: int) -> Tensor:
    """Offsets of the chunks in the bank's memory, in units of so many numbers."""
    row_step, head_step, chunk_step = (step // unit for step in x_BKncD.stride()[:3])
    rows, heads = ids_BHtm.shape[:2]
    row = torch.arange(rows, device=ids_BHtm.device) * row_step
    head = torch.arange(heads, device=ids_BHtm.device) // (heads // x_BKncD.shape[1]) * head_step
    return (row[:, None, None, None] + head[:, None, None] + ids_BHtm * chunk_step).flatten()


def _gather(x_BKncD: Tensor, ids_BHtm: Tensor) -> Tensor:
    """The tokens of chunks, from wherever the bank keeps them."""
    size, width = x_BKncD.shape[3] * x_BKncD.shape[4], x_BKncD.shape[4]
    last = sum((n - 1) * step for n, step in zip(x_BKncD.shape[:3], x_BKncD.stride()[:3], strict=True))
    # A row of this view begins with every token, so that chunks may begin with any.
    memory = x_BKncD.as_strided((last // width + 1, size), (width, 1))
    first = _first_tokens(x_BKncD, ids_BHtm, width)
    return memory.index_select(0, first).view(*ids_BHtm.shape[:3], -1, width)


def _weights(logits_BHtR: Tensor, lse_BHt: Tensor) -> Tensor:
    return logits_BHtR.sub_(lse_BHt.clamp(min=torch.finfo(lse_BHt.dtype).min)[..., None]).exp_()


def _scatter(into_BKncD: Tensor, ids_BHtm: Tensor, weights_BHtR: Tensor, x_BHtD: Tensor) -> None:
    """Add every query's `x`, weighted, to each of its tokens."""
    size = into_BKncD.shape[3] * into_BKncD.shape[4]
    first = _first_tokens(into_BKncD, ids_BHtm, size)
    added = (weights_BHtR[..., None] * x_BHtD[..., None, :]).reshape(len(first), -1)
    into_BKncD.view(-1, size).index_add_(0, first, added)
