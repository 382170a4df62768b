from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contextlab.accounting.flops import count
from contextlab.accounting.formulas import Model, pairs, triangle, update_flops
from contextlab.backbone import TINY, load

SIZES = st.integers(0, 30)


def sizes(name: str) -> Model:
    model = Model.of(load(name))
    assert model is not None
    return model


LLAMA = sizes("tiny-llama")


@given(SIZES, SIZES, st.integers(1, 20))
def test_pairs_are_those_of_every_query(used: int, tokens: int, most: int) -> None:
    assert pairs(used, tokens) == sum(used + step + 1 for step in range(tokens))
    assert pairs(used, tokens, most) == sum(min(used + step + 1, most) for step in range(tokens))
    assert triangle(tokens) == pairs(0, tokens)


@given(SIZES, SIZES, st.integers(1, 20), st.integers(1, 20), st.integers(0, 4))
def test_pairs_within_the_models_own_window_are_those_of_every_query(
    used: int, tokens: int, window: int, band: int, first: int
) -> None:
    model = dataclasses.replace(LLAMA, window=window)
    seen = [range(max(0, slot - window + 1), slot + 1) for slot in range(used, used + tokens)]
    assert model.pairs(used, tokens) == sum(map(len, seen))
    in_band = (key for keys in seen for key in keys if key < first or key > keys[-1] - band)
    assert model.pairs(used, tokens, band, first) == len(list(in_band))


@pytest.mark.parametrize("name", TINY)
def test_blocks_and_head_are_those_of_the_model_itself(name: str) -> None:
    backbone, model = load(name), sizes(name)
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        _, flops = count(lambda: backbone.model(tokens, use_cache=False))
    assert flops == pytest.approx(model.blocks(24, triangle(24)) + model.head(24), rel=0.001)


@pytest.mark.parametrize("name", TINY)
def test_a_cache_has_the_bytes_of_its_tensors(name: str) -> None:
    model = sizes(name)
    numbers = 2 * 3 * 7 * model.kv_heads * model.head_width
    assert model.cache_bytes(7, 3) == 4 * numbers + 8
    assert model.cache_bytes(7, 3, 2) == 2 * numbers + 8
    assert model.cache_bytes(7, 3, 2, parts=1) == numbers + 8


def test_a_backbone_without_a_formula_has_no_sizes() -> None:
    backbone: Any = load("tiny-llama")
    assert backbone.family == "llama"
    quantised = SimpleNamespace(model=SimpleNamespace(hf_quantizer=object()), config=backbone.config)
    other = SimpleNamespace(model=backbone.model, config=SimpleNamespace(model_type="mixtral"))
    narrow = SimpleNamespace(model_type="opt", word_embed_proj_dim=8)
    projected = SimpleNamespace(model=backbone.model, config=narrow)
    for unknown in (quantised, other, projected):
        unknown.width, unknown.own_window = backbone.width, None
        assert type(backbone).family.fget(unknown) is None
    uneven = load("tiny-mistral")
    assert uneven.family == "llama"
    uneven.config.layer_types = ["sliding_attention", "full_attention"] * 2
    assert uneven.family is None


def test_updates_cost_two_products_per_token() -> None:
    down, up = torch.nn.Linear(10, 3, bias=False), torch.nn.Linear(3, 20, bias=False)
    assert update_flops(torch.nn.ModuleList([down, up])) == 2 * 3 * (10 + 20)
    assert update_flops(None) == 0
