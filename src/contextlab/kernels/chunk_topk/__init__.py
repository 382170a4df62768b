"""Search of a bank of chunks by the inner product with their mean keys (LongMem, section 2.3)."""

from __future__ import annotations

from contextlab.kernels.chunk_topk.reference import chunk_topk

__all__ = ["chunk_topk"]
