"""Presses of kvpress: which keys and values stay, chosen by another program through this package's attention."""

from __future__ import annotations

from contextlab.methods.press.config import PressConfig
from contextlab.methods.press.method import Press, PressState

__all__ = ["Press", "PressConfig", "PressState"]
