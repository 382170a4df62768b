"""Chunks of keys and values compressed to one key and value each (EVA, Zheng et al. 2023; EVALM, section 3).

Keys are taken before RoPE, because the mean of rotated keys has no position. The last chunk may be incomplete: missing
tokens count as zeros in means, which divide by the chunk size, and have weight 0 in pooling.

Compression takes two passes: means, which learned maps then adapt, and pooling by random features around the adapted
means. A single pass would need every map and its gradients inside the kernel and would save one of four reads: keys are
read twice, queries and values once. Torch computes the means; the kernel here is the pooling.

Legend: B rows, H query heads, K key/value heads, T tokens, n chunks, D head width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from contextlab.kernels import checks, dispatch
from contextlab.kernels.eva_chunk_compress import ops, reference

__all__ = ["chunk_means", "eva_chunk_compress", "pool_chunks"]


def chunk_means(x_BHTD: Tensor, chunk: int, kv_heads: int) -> Tensor:
    """`mean_BKnD` over every chunk, and over the query heads that share a key head.

    Raises:
        ValueError: when shapes do not fit.
    """
    checks.heads({**checks.shapes(x_BHTD=x_BHTD), "K": kv_heads})
    _check_chunk(chunk)
    missing = -x_BHTD.shape[2] % chunk
    whole_BHTD = F.pad(x_BHTD, (0, 0, 0, missing)) if missing else x_BHTD
    mean_BKnD: Tensor = whole_BHTD.unflatten(2, (-1, chunk)).unflatten(1, (kv_heads, -1)).mean((2, 4))
    return mean_BKnD


def eva_chunk_compress(
    q_mean_BKnD: Tensor,
    k_mean_BKnD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    *,
    chunk: int,
    scale: float,
    noise_BKnD: Tensor | None = None,
) -> Tensor:
    """`value_BKnD`: values pooled by one random feature per chunk, around the adapted means of queries and keys.

    Args:
        q_mean_BKnD: adapted mean queries, of the unscaled projections.
        k_mean_BKnD: adapted mean keys, which are also the chunks' keys.
        k_BKTD: keys.
        v_BKTD: values.
        chunk: tokens of a chunk.
        scale: 1/sqrt(D), for features of k/D^(1/4).
        noise_BKnD: standard normal in training; None uses the proposal's mean.

    Raises:
        ValueError, TypeError: when shapes, devices or types do not fit.
    """
    means = {"q_mean_BKnD": q_mean_BKnD, "k_mean_BKnD": k_mean_BKnD}
    if noise_BKnD is not None:
        means["noise_BKnD"] = noise_BKnD
    _check(means, k_BKTD, v_BKTD, chunk)
    w_BKnD = q_mean_BKnD + k_mean_BKnD if noise_BKnD is None else q_mean_BKnD + k_mean_BKnD + noise_BKnD
    return _pool(w_BKnD, k_BKTD, v_BKTD, chunk, scale, True)[1]


def pool_chunks(w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, *, chunk: int, scale: float) -> tuple[Tensor, Tensor]:
    """`key_BKnD` and `value_BKnD`: keys and values pooled by plain attention of one direction (query) per chunk.

    Args:
        w_BKnD: directions.
        k_BKTD, v_BKTD, chunk: as in `eva_chunk_compress`.
        scale: factor of the logits.

    Raises:
        ValueError, TypeError: when shapes, devices or types do not fit.
    """
    _check({"w_BKnD": w_BKnD}, k_BKTD, v_BKTD, chunk)
    key_BKnD, value_BKnD = _pool(w_BKnD, k_BKTD, v_BKTD, chunk, scale, False)
    return key_BKnD, value_BKnD


def _pool(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, scale: float, features: bool
) -> tuple[Tensor, Tensor]:
    if w_BKnD.numel() == 0:
        return w_BKnD, w_BKnD
    if dispatch.forced_form() == "reference":
        return reference.pool_chunks(w_BKnD, k_BKTD, v_BKTD, chunk, scale, features)
    key_BKnD, value_BKnD, _ = ops.pool_chunks(w_BKnD, k_BKTD, v_BKTD, chunk, scale, features)
    return key_BKnD, value_BKnD


def _check(means: dict[str, Tensor], k_BKTD: Tensor, v_BKTD: Tensor, chunk: int) -> None:
    sizes = checks.shapes(k_BKTD=k_BKTD, v_BKTD=v_BKTD, **means)
    checks.one_float_type(k_BKTD=k_BKTD, v_BKTD=v_BKTD, **means)
    _check_chunk(chunk)
    chunks = -(-sizes["T"] // chunk)
    if sizes["n"] != chunks:
        raise ValueError(f"{sizes['T']} tokens make {chunks} chunks of {chunk}, not {sizes['n']}: give one mean each.")


def _check_chunk(chunk: int) -> None:
    if chunk < 1:
        raise ValueError(f"A chunk of {chunk} tokens holds none: give 1 or more.")
