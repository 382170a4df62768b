"""Memorizing Transformer (Wu et al. 2022), as LongMem's comparison has it: one layer also attends to past segments."""

from __future__ import annotations

from contextlab.methods.memtrm.config import MemTRMConfig
from contextlab.methods.memtrm.method import MemTRM

__all__ = ["MemTRM", "MemTRMConfig"]
