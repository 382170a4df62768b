"""The attention weights that transformers' own model computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.backbone import Backbone


def weights_of(backbone: Backbone, text_BT: Tensor) -> list[Tensor]:
    """`weights_BKTS` of every layer, summed over the query heads of a key head."""
    model: Any = backbone.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            weights = model(text_BT, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(before)
    return [w_BHTS.unflatten(1, (backbone.kv_heads, -1)).sum(2) for w_BHTS in weights]
