"""Cartridges (Eyuboglu et al. 2025): a small cache of keys and values that is trained to stand for a context."""

from __future__ import annotations

from contextlab.methods.cartridge.config import CartridgeConfig
from contextlab.methods.cartridge.method import Cartridge

__all__ = ["Cartridge", "CartridgeConfig"]
