"""Hidden-state optimisation (Yoshida and Gimpel 2021): cached keys and values learn while the text is read."""

from __future__ import annotations

from contextlab.methods.hso.config import HSOConfig
from contextlab.methods.hso.method import HSO

__all__ = ["HSO", "HSOConfig"]
