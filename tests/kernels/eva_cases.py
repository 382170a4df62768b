"""Random arguments of EVA attention and of chunk compression, with expected results in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_attention import reference as plain_attention
from contextlab.kernels.eva_chunk_compress import eva_chunk_compress, pool_chunks
from contextlab.kernels.eva_chunk_compress import reference as plain_pooling

LEAVES = ("q", "k", "v", "chunk_k", "chunk_v", "chunk_bias", "bias")


@dataclasses.dataclass
class Attention:
    """Leaves by name, and arguments without gradients."""

    tensors: dict[str, Tensor]
    counts: Tensor | None
    window: int | None
    overlap: bool
    scale: float = 0.3

    @property
    def leaves(self) -> list[Tensor]:
        return list(self.tensors.values())

    def run(self) -> Tensor:
        q, k, v, chunk_k, chunk_v = self.leaves[:5]
        options: dict[str, Any] = {"window": self.window, "overlap": self.overlap, "counts_BT": self.counts}
        biases = {"bias": self.tensors.get("bias"), "chunk_bias_H": self.tensors.get("chunk_bias")}
        return eva_attention(q, k, v, chunk_k, chunk_v, scale=self.scale, **options, **biases)

    def truth(self) -> Attention:
        return dataclasses.replace(
            self, tensors={n: x.detach().double().requires_grad_() for n, x in self.tensors.items()}
        )

    def expected(self) -> Tensor:
        biases = self.tensors.get("bias"), self.counts, self.tensors.get("chunk_bias")
        window = self.window or self.tensors["k"].shape[2]
        overlap = window if self.overlap else 0
        return plain_attention.eva_attention(*self.leaves[:5], *biases, self.scale, window, overlap)


def attention(
    queries: int,
    keys: int | None = None,
    *,
    rows: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    width: int = 16,
    chunks: int = 5,
    counts: bool = True,
    chunk_bias: bool = True,
    bias: bool = False,
    window: int | None = None,
    overlap: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Attention:
    """Counts in no order, the first head seeing no chunk, and a bias with keys that are not seen."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    keys = queries if keys is None else keys
    tensors = {"q": normal(rows, heads, queries, width)}
    tensors |= {name: normal(rows, kv_heads, keys, width) for name in ("k", "v")}
    tensors |= {name: normal(rows, kv_heads, chunks, width) for name in ("chunk_k", "chunk_v")}
    if chunk_bias:
        tensors["chunk_bias"] = normal(heads)
        tensors["chunk_bias"][0] = float("-inf") if heads > 1 else 0.5
    if bias:
        hidden = torch.rand(1, 1, queries, keys, generator=generator) > 0.6
        hidden[..., 0] = False
        tensors["bias"] = normal(1, 1, queries, keys).masked_fill(hidden.to(device), float("-inf"))
    seen = torch.randint(chunks + 2, (rows, queries), generator=generator).to(device) if counts else None
    return Attention({n: x.requires_grad_() for n, x in tensors.items()}, seen, window, overlap)


@dataclasses.dataclass
class Pooling:
    """Directions, keys and values; with features the values alone are pooled."""

    leaves: list[Tensor]
    chunk: int
    features: bool
    scale: float = 0.4

    def run(self) -> Tensor:
        w, k, v = self.leaves
        if self.features:
            return eva_chunk_compress(w, torch.zeros_like(w), k, v, chunk=self.chunk, scale=self.scale)
        return torch.cat(pool_chunks(w, k, v, chunk=self.chunk, scale=self.scale), -1)

    def truth(self) -> Pooling:
        return dataclasses.replace(self, leaves=[x.detach().double().requires_grad_() for x in self.leaves])

    def expected(self) -> Tensor:
        key, value = plain_pooling.pool_chunks(*self.leaves, self.chunk, self.scale, self.features)
        return value if self.features else torch.cat((key, value), -1)


def pooling(
    tokens: int,
    chunk: int = 4,
    *,
    rows: int = 1,
    kv_heads: int = 2,
    width: int = 16,
    features: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Pooling:
    """Keys and values with the strides of projections: heads inside of tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    k, v = (normal(rows, tokens, kv_heads, width).transpose(1, 2) for _ in range(2))
    w = normal(rows, kv_heads, -(-tokens // chunk), width)
    return Pooling([x.requires_grad_() for x in (w, k, v)], chunk, features)
