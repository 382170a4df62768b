"""Stretched positions: those of transformers, beyond what the model was trained on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import PARTS, broken

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.full import Full, FullConfig
from contextlab.testing import laws

LENGTH, FACTOR = 300, 4.0
ROTARY = ["tiny-llama", "tiny-mistral", "tiny-qwen3", "tiny-phi3", "tiny-gpt-neox"]
KINDS = ("linear", "yarn", "dynamic")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))


def read(method: Full, tokens: torch.Tensor, *cuts: int) -> torch.Tensor:
    state, parts = method.start(), []
    for part in tokens.tensor_split(cuts, dim=1):
        state, logprobs = method.read(state, part)
        assert logprobs is not None
        parts.append(logprobs)
    return torch.cat(parts, dim=1)


def of_transformers(backbone: Backbone, rope: str, tokens: torch.Tensor, layers: int | None = None) -> torch.Tensor:
    """Log-probabilities from the second token on, by a model that transformers builds with the same weights."""
    config = copy.deepcopy(backbone.config)
    config.rope_parameters = {**config.rope_parameters, "rope_type": rope, "factor": FACTOR}
    if rope == "yarn":
        config.rope_parameters["original_max_position_embeddings"] = backbone.max_positions
    if layers is not None:
        config.num_hidden_layers = layers
    model: Any = type(backbone.model)(config).eval()
    model.load_state_dict(backbone.model.state_dict(), strict=False)
    with torch.no_grad():
        every = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
    picked: torch.Tensor = every[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    return picked


def near(first: torch.Tensor, second: torch.Tensor) -> None:
    torch.testing.assert_close(first, second, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ROTARY)
@pytest.mark.parametrize("rope", ["linear", "yarn"])
def test_stretched_positions_are_those_of_transformers(name: str, rope: str) -> None:
    """YaRN's factor of the scores is in them: without it the difference is a hundred times as large."""
    backbone = backbones.load(name, device="cpu")
    method = Full(backbone, FullConfig(rope=rope, factor=FACTOR))
    assert method.capabilities.max_context == 4 * backbone.max_positions
    near(read(method, text())[:, 1:], of_transformers(backbone, rope, text()))
    assert (method.network.rotary_scale > 1) == (rope == "yarn")


def test_dynamic_positions_of_one_layer_are_those_of_transformers_for_a_text_of_a_steps_end(llama: Backbone) -> None:
    """Keys of one layer depend on their own tokens alone: what was read with other frequencies leaves no trace."""
    model = copy.deepcopy(llama.model)
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1
    backbone = backbones.wrap(model, llama.tokenizer)
    tokens, step = text(384), backbone.max_positions
    scores = read(Full(backbone, FullConfig(rope="dynamic")), tokens)
    for end in (step, 2 * step, 3 * step):
        # The first token of a step is predicted before it, with the frequencies of the step before.
        expected = of_transformers(backbone, "dynamic", tokens[:, :end], layers=1)
        near(scores[:, end - step + 1 : end], expected[:, end - step :])
    assert (scores[:, 2:step] - of_transformers(backbone, "dynamic", tokens, 1)[:, 1 : step - 1]).abs().max() > 1e-2


def test_dynamic_positions_are_the_models_own_as_far_as_these_reach(llama: Backbone) -> None:
    tokens = text(llama.max_positions)
    assert torch.equal(read(Full(llama, FullConfig(rope="dynamic")), tokens), read(Full(llama), tokens))


@settings(max_examples=15, deadline=None)
@given(
    rope=st.sampled_from(KINDS),
    cuts=st.lists(st.integers(0, 600), max_size=4).map(sorted),
    factor=st.sampled_from([1.5, 4.0]),
)
def test_any_division_of_a_text_gives_the_same(llama: Backbone, rope: Any, cuts: list[int], factor: float) -> None:
    method, tokens = Full(llama, FullConfig(rope=rope, factor=factor)), text(600)
    near(read(method, tokens, *cuts), read(method, tokens))


def test_rows_of_different_lengths_have_their_own_frequencies(llama: Backbone) -> None:
    method, lengths = Full(llama, FullConfig(rope="dynamic")), [40, 300, 129]
    tokens = text(340).expand(3, -1)
    state, _ = method.read(method.start(3), tokens, torch.tensor(lengths))
    after = method.read(state, tokens[:, :30])[1]
    assert after is not None
    for row, length in enumerate(lengths):
        alone = read(method, torch.cat((tokens[:1, :length], tokens[:1, :30]), dim=1))
        near(after[row], alone[0, length:])


@pytest.mark.parametrize("around", PARTS)
def test_dynamic_positions_keep_the_laws(around: bool) -> None:
    assert broken(lambda b: Full(b, FullConfig(rope="dynamic")), "tiny-llama", around=around) == {}


@pytest.mark.parametrize("form", [{"rope": "yarn"}, {"cache": "int4"}, {"rank": 2}, {"rank": "full"}])
@pytest.mark.parametrize("law", ["silent reading", "rows", "formula"])
def test_stretched_positions_go_with_other_settings(form: dict[str, Any], law: str) -> None:
    config = FullConfig(**{"rope": "dynamic", **form})
    assert laws.Case(law, "tiny-llama", "float32").broken(lambda b: Full(b, config)) is None


@pytest.mark.parametrize("rope", KINDS)
def test_the_backbone_stays_as_it_is_for_the_methods_beside(llama: Backbone, rope: Any) -> None:
    before, parameters = read(Full(llama), text()), dict(llama.config.rope_parameters)
    method = Full(llama, FullConfig(rope=rope))
    read(method, text())
    assert torch.equal(read(Full(llama), text()), before)
    assert llama.config.rope_parameters == parameters
    own = {id(weight) for weight in llama.model.parameters()}
    assert {id(weight) for weight in method.network.model.parameters()} == own


@pytest.mark.parametrize(
    ("backbone", "config", "message"),
    [
        ("tiny-gpt2", {"rope": "yarn"}, "has no rotary positions"),
        ("tiny-llama-linear", {"rope": "yarn"}, "stretched already"),
        ("tiny-llama", {"factor": 2.0}, "say how, as in rope=yarn"),
    ],
)
def test_what_cannot_be_stretched_is_refused(backbone: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Full(backbones.load(backbone, device="cpu"), FullConfig(**config))
