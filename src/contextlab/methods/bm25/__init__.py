"""Retrieval of text (Ram et al. 2023): chunks that match the end of what was read stand in front of it."""

from __future__ import annotations

from contextlab.methods.bm25.config import BM25Config
from contextlab.methods.bm25.method import BM25

__all__ = ["BM25", "BM25Config"]
