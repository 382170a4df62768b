"""Configurations of models that are known without their checkpoints, as their makers publish them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers

SIZE_OF_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
"""What both models of 8 billion parameters have in common."""


def _llama() -> Any:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return transformers.LlamaConfig(
        **SIZE_OF_8B,
        num_hidden_layers=32,
        intermediate_size=14336,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_parameters=rope,
    )


def _qwen() -> Any:
    return transformers.Qwen3Config(
        **SIZE_OF_8B,
        num_hidden_layers=36,
        intermediate_size=12288,
        vocab_size=151936,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    )


MODELS: dict[str, Callable[[], Any]] = {"llama-3.1-8b": _llama, "qwen3-8b": _qwen}
