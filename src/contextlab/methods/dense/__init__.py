"""Retrieval of text by an encoder of sentences: chunks whose vectors are near that of the end of what was read."""

from __future__ import annotations

from contextlab.methods.dense.method import Dense, DenseConfig

__all__ = ["Dense", "DenseConfig"]
