"""Two memories at once: a cache, read with the weights that another method makes of earlier text."""

from __future__ import annotations

from contextlab.methods.composed.config import ComposedConfig
from contextlab.methods.composed.method import Composed

__all__ = ["Composed", "ComposedConfig"]
