"""Retrieval of text by the words that a chunk shares with the end of what was read."""

from __future__ import annotations

from contextlab.methods.bm25.method import BM25, BM25Config

__all__ = ["BM25", "BM25Config"]
