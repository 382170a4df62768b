"""LongMem (Wang et al., NeurIPS 2023): a frozen backbone, a side network beside it, and a bank of cached chunks."""

from __future__ import annotations

from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.longmem.method import LongMem

__all__ = ["LongMem", "LongMemConfig"]
