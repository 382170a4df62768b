from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab.backbone import TINY, KeyValueProjections, load, wrap
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.methods.longmem.newgpt import NewGPTConfig, NewGPTForCausalLM

WITHOUT_ROTATION = ("tiny-gpt2", "tiny-opt")


def seen_by_attention(backbone: Backbone, tokens_BT: Tensor) -> Any:
    """Keys and values of every layer as the attention of one pass gets them, and its layers' inputs."""
    seen, inputs = [], []
    projections = KeyValueProjections(backbone)

    def attend(_layer: Any, q: Tensor, k: Tensor, v: Tensor, _scale: Any, _window: Any = None) -> Any:
        seen.append((k, v))
        return torch.zeros_like(q)

    with torch.no_grad(), projections.watching(lambda _layer, x: inputs.append(x) or x):
        backbone.forward(tokens_BT, torch.arange(tokens_BT.shape[1])[None], attend)
    return projections, seen, inputs


@pytest.mark.parametrize("family", [*TINY, "alibi"])
def test_keys_and_values_of_a_layers_input_are_those_that_its_attention_gets(family: str) -> None:
    backbone = wrap(NewGPTForCausalLM(NewGPTConfig(257, 24, 2, 3, 128)).float()) if family == "alibi" else load(family)
    projections, seen, inputs = seen_by_attention(backbone, torch.arange(14).view(2, 7))
    assert len(seen) == len(inputs) == backbone.layers
    for layer, (own, x_BSC) in enumerate(zip(seen, inputs, strict=True)):
        torch.testing.assert_close(projections(layer, x_BSC), own, atol=1e-5, rtol=1e-5)


def test_another_way_to_make_keys_is_refused() -> None:
    backbone = load("tiny-llama")
    attention = backbone.model.model.layers[2].self_attn

    KeyValueProjections(backbone)
    attention.forward = lambda hidden_states, _own=attention.forward, **kwargs: _own(2 * hidden_states, **kwargs)
    with pytest.raises(UserError, match="makes its keys and values in a way that is not known"):
        KeyValueProjections(backbone)
