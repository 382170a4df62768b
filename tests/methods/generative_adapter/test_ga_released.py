from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.generative_adapter.released import generator_weights, is_released


def released(d_r: int = 8, inner: int = 8, suffix: str = ".default", layers: int = 4, width: int = 32) -> Any:
    shapes = {"A1": (inner, width), "A2": (inner, width), "A3": (d_r, width), "B": (width, d_r)}
    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj.fastlora_"
        weights |= {f"{name}{part}{suffix}.weight": torch.randn(shape) for part, shape in shapes.items()}
        weights[f"{name}hidden_state_norm{suffix}.weight"] = torch.rand(width)
    return weights


def load(path: Path, **settings: Any) -> Any:
    config = GenerativeAdapterConfig(**{"d_r": 8, "weights": path} | settings)
    return GenerativeAdapter(backbones.load("tiny-llama"), config)


@pytest.mark.parametrize("suffix", ["", ".default"])
def test_released_parameters_land_where_the_paper_has_them(tmp_path: Path, suffix: str) -> None:
    weights = released(suffix=suffix)
    save_file(weights, tmp_path / "released.safetensors")
    layer = load(tmp_path / "released.safetensors").generator.layer(2)
    name = "base_model.model.model.layers.2.self_attn.o_proj.fastlora_{}" + suffix + ".weight"
    hidden = torch.randn(1, 7, 32)
    normed = torch.nn.functional.rms_norm(hidden, (32,), weights[name.format("hidden_state_norm")], 1e-6)
    keys, values = (normed[0] @ weights[name.format(part)].mT for part in ("A2", "A3"))
    torch.testing.assert_close(layer.gram(hidden)[0].mT, keys.mT @ values, atol=1e-4, rtol=1e-4)
    x = torch.randn(5, 32)
    theirs = (x @ weights[name.format("A1")].mT @ (keys.mT @ values)) @ weights[name.format("B")].mT
    ours = x @ (layer.A1 @ layer.gram(hidden)[0] @ layer.B2).mT
    torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-3)


def test_other_names_are_left_out_and_recognised() -> None:
    weights = released(layers=1)
    assert is_released(weights)
    assert not is_released(generator_weights(weights))
    assert len(generator_weights(weights | {"model.embed_tokens.weight": torch.ones(1)})) == 5


@pytest.mark.parametrize(
    ("change", "settings"),
    [({"d_r": 4}, {}), ({"inner": 6}, {}), ({"layers": 3}, {}), ({"width": 16}, {}), ({}, {"modules": "*v_proj"})],
)
def test_shapes_or_layers_that_do_not_fit_are_one_sentence(
    tmp_path: Path, change: dict[str, int], settings: dict[str, str]
) -> None:
    save_file(released(**change), tmp_path / "released.safetensors")
    with pytest.raises(UserError, match="does not hold GenerativeAdapter weights for this backbone and configuration"):
        load(tmp_path / "released.safetensors", **settings)
