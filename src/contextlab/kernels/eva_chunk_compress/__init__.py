"""Chunks of keys and values compressed to one key and value each (EVA, Zheng et al. 2023; EVALM, section 3)."""

from __future__ import annotations

from contextlab.kernels.eva_chunk_compress.reference import chunk_means, chunk_weights, eva_chunk_compress, pool

__all__ = ["chunk_means", "chunk_weights", "eva_chunk_compress", "pool"]
