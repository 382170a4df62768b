"""The inputs of retrieval attention, as one value.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved. Query heads share key heads in consecutive groups.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Inputs(NamedTuple):
    """Queries, local keys and values, and the bank with what every query has retrieved of it.

    Attributes:
        q_BHTD: queries for the local keys, after rotary encoding.
        k_BKSD: local keys.
        v_BKSD: local values.
        mask_BTS: added to the local logits, -inf for what is not seen; every query sees a key; one row may stand for
            all; it gets no gradient.
        q_memory_BHTD: queries for the bank's keys.
        k_BKncD: keys of the bank, of any floating-point type; read in place.
        v_BKncD: values of the bank.
        ids_BHTm: retrieved chunks, int64; on a CPU those that the bank lacks are refused, on a GPU, where a look at
            them would wait for it, they count as not retrieved.
        retrieved_BHTm: which of them exist, the ids of the others being anything.
        bias_H: added to the logits of retrieved tokens.
    """

    q_BHTD: Tensor
    k_BKSD: Tensor
    v_BKSD: Tensor
    mask_BTS: Tensor
    q_memory_BHTD: Tensor
    k_BKncD: Tensor
    v_BKncD: Tensor
    ids_BHTm: Tensor
    retrieved_BHTm: Tensor
    bias_H: Tensor
