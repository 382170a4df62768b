"""UltraGist (Zhang et al. 2024, "Compressing Lengthy Context With UltraGist")."""

from __future__ import annotations

from contextlab.methods.ultragist.config import UltraGistConfig
from contextlab.methods.ultragist.method import UltraGist

__all__ = ["UltraGist", "UltraGistConfig"]
