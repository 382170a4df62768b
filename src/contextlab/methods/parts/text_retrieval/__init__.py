"""Retrieval of text: chunks that match the end of what was read stand in front of it (Ram et al. 2023)."""

from __future__ import annotations

from contextlab.methods.parts.text_retrieval.config import TextConfig, View
from contextlab.methods.parts.text_retrieval.formula import TextFormula
from contextlab.methods.parts.text_retrieval.method import TextMethod, TextState

__all__ = ["TextConfig", "TextFormula", "TextMethod", "TextState", "View"]
