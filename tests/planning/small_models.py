"""Random models with the proportions of smollm2-135m, with weights or as shapes alone."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from contextlab import naming
from contextlab.backbone import Backbone
from contextlab.method import AnyMethod
from contextlab.planning.shaped import built

METHODS = (
    "full",
    "window",
    "sliding",
    "sinks",
    "snapkv",
    "h2o",
    "selfextend",
    "retrieval",
    "longmem",
    "evalm",
    "memtrm",
    "trime",
    "ultragist",
    "generative-adapter",
)
"""All that read without gradients and whose reading does not depend on numbers."""


def model(layers: int = 2, positions: int = 32768) -> Any:
    """A model on the device that is the default one."""
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def shapes(layers: int = 2, positions: int = 32768) -> Backbone:
    """A backbone without weights, in float32."""
    with torch.device("meta"):
        return Backbone(model(layers, positions), None, "shapes", digest="shapes alone")


def real(layers: int = 2) -> Backbone:
    """The same with weights."""
    return Backbone(model(layers), None, "real")


def method(text: str, backbone: Backbone) -> AnyMethod:
    """A method as initialised."""
    return built(naming.single(text), backbone)
