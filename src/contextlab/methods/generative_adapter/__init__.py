"""GenerativeAdapter (Chen et al., ICLR 2025): a context becomes a low-rank change of the backbone's weights."""

from __future__ import annotations

from contextlab.methods.generative_adapter.adapter import Adapter
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.generative_adapter.method import GenerativeAdapter

__all__ = ["Adapter", "GenerativeAdapter", "GenerativeAdapterConfig"]
