"""The speed of this machine, by which plans divide FLOPs."""

from __future__ import annotations

import time

import torch
from transformers import LlamaConfig, LlamaModel

from contextlab.reports.papers.plan import EMBEDDED, PIECE, Shape

LAYERS = 2
TRIALS = 5


@torch.no_grad()
def speed_here() -> float:
    """FLOPs per second in layers of the embedded model's size with random weights: the fastest of several passes."""
    config = LlamaConfig(
        hidden_size=EMBEDDED.width,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=LAYERS,
        vocab_size=3,
    )
    layers = LlamaModel(config)
    size = Shape(sum(weights.numel() for weights in layers.parameters()), LAYERS, EMBEDDED.width, cached=0)
    tokens_BT = torch.zeros(1, PIECE, dtype=torch.int64)
    seconds = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        layers(tokens_BT, use_cache=False)
        seconds.append(time.perf_counter() - started)
    return size.flops(PIECE, PIECE / 2) / min(seconds)
