"""Retrieval without training: a sliding window, and chunks of all that has left it in the same softmax."""

from __future__ import annotations

from contextlab.methods.retrieval.config import RetrievalConfig
from contextlab.methods.retrieval.method import Retrieval

__all__ = ["Retrieval", "RetrievalConfig"]
