"""Chunk pooling in plain torch, differentiable: the reference for the other forms.

Legend: B rows, K key/value heads, T tokens, D head width, n chunks, c tokens of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pool_chunks(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, scale: float, features: bool
) -> tuple[Tensor, Tensor]:
    """`key_BKnD` (empty with features) and `value_BKnD`.

    The weights are the softmax over a chunk of (w . k - |k|^2/2) scale: positive random features of direction w.
    Without features the norm of the keys is left out, which is plain attention with query w.
    """
    k_BKncD, v_BKncD = _chunked(k_BKTD, chunk), _chunked(v_BKTD, chunk)
    logits_BKnc = (k_BKncD @ w_BKnD[..., None])[..., 0]
    if features:
        logits_BKnc = logits_BKnc - k_BKncD.square().sum(-1) / 2
    real_nc = torch.arange(logits_BKnc.shape[2] * chunk, device=k_BKTD.device).view(-1, chunk) < k_BKTD.shape[2]
    p_BKn1c = (logits_BKnc * scale).masked_fill(~real_nc, float("-inf")).softmax(-1)[..., None, :]
    return w_BKnD.new_empty(0) if features else (p_BKn1c @ k_BKncD)[..., 0, :], (p_BKn1c @ v_BKncD)[..., 0, :]


def _chunked(x_BKTD: Tensor, chunk: int) -> Tensor:
    missing = -x_BKTD.shape[2] % chunk
    whole_BKTD = F.pad(x_BKTD, (0, 0, 0, missing)) if missing else x_BKTD
    x_BKncD: Tensor = whole_BKTD.unflatten(2, (-1, chunk))
    return x_BKncD
