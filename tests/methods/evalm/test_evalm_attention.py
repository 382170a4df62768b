from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.methods.evalm import EVALM, EVALMConfig, eva_attention_of

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-qwen2", "tiny-mistral"]
OPEN = EVALMConfig(W=32, c=8, remote_bias=0.5, sinks=2)


@pytest.fixture(params=FAMILIES, scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param).model


def text(length: int, rows: int = 1) -> Any:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(0))


def of_model(model: Any, tokens: Tensor, **options: Any) -> Any:
    with torch.no_grad():
        return model(tokens, **options).logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"overlap": True},
        {"remote_visibility": "before_chunk"},
        {"c": 4, "sinks": 9},
        {"c": 4, "sinks": 4, "sink_summaries": True},
        {"sinks": 0, "overlap": True},
        {"sinks": 0, "remote_visibility": "before_chunk"},
    ],
)
def test_an_unmodified_model_computes_what_the_method_reads(model: Any, settings: dict[str, Any]) -> None:
    config = EVALMConfig(**{"W": 32, "c": 8, "remote_bias": 0.5, "sinks": 2, **settings})
    tokens, lengths = text(170, rows=2), torch.tensor([170, 101])
    mask = (torch.arange(170) < lengths[:, None]).long()
    with eva_attention_of(model, config) as method:
        logprobs = of_model(model, tokens, attention_mask=mask)
    expected = method.read(method.start(2), tokens, lengths)[1][:, 1:]
    torch.testing.assert_close(logprobs[mask[:, 1:] > 0], expected[mask[:, 1:] > 0], atol=1e-5, rtol=1e-4)


def test_it_is_undone_cleanly_also_after_an_exception(model: Any) -> None:
    tokens = text(100)
    model.train()
    model.base_model.eval()
    before = of_model(model, tokens), backbones.weights_digest(model), model.config._attn_implementation
    modes = [module.training for module in model.modules()]
    with eva_attention_of(model, OPEN):
        inside = of_model(model, tokens)
    with pytest.raises(ValueError, match="mine"), eva_attention_of(model, OPEN):
        raise ValueError("mine")
    after = of_model(model, tokens), backbones.weights_digest(model), model.config._attn_implementation
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert (inside - before[0]).abs().max() > 1e-3
    model.eval()


def test_within_one_window_it_is_the_models_own_attention(model: Any) -> None:
    tokens = text(30)
    with eva_attention_of(model, OPEN):
        inside = of_model(model, tokens)
    torch.testing.assert_close(inside, of_model(model, tokens), atol=1e-5, rtol=1e-5)


def test_it_generates_what_the_method_generates(model: Any) -> None:
    tokens = text(50)
    with eva_attention_of(model, OPEN) as method:
        written = model.generate(tokens, use_cache=False, max_new_tokens=20, do_sample=False)[0, 50:].tolist()
        read = method.generate(method.start(), tokens.tolist(), max_new_tokens=20, stop=[256])
    assert written[: len(read[0])] == read[0]


@pytest.mark.parametrize("pooling", ["eva", "learned"])
def test_gradients_reach_everything_that_trains(pooling: str) -> None:
    """And they equal finite differences of the read's loss."""
    backbone = backbones.load("tiny-llama", dtype="float64")
    method = EVALM(backbone, EVALMConfig(W=16, c=4, sinks=1, remote_bias=-0.5, pooling=pooling))
    tokens = text(60)
    with method.as_attention():
        loss = backbone.model(tokens, labels=tokens).loss
        loss.backward()
    for name, parameter in method.summaries.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name

    def read_loss() -> Any:
        return -method.read(method.start(), tokens)[1].double()[0, 1:].mean()

    bias = method.summaries[2].remote_bias_H
    assert bias.grad is not None
    with torch.no_grad():
        bias[1] += 0.1
        above = read_loss()
        bias[1] -= 0.2
        below = read_loss()
    assert float(bias.grad[1]) == pytest.approx(float(above - below) / 0.2, rel=2e-2, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "padding on the right only"),
        ({"attention_mask": torch.ones(1, 1, 5, 5)}, "padding on the right only"),
        ({"position_ids": torch.arange(3, 8)[None]}, "counts positions from 0"),
        ({"past_key_values": transformers.DynamicCache()}, "use_cache=False"),
    ],
)
def test_calls_that_it_does_not_serve_are_one_sentence(options: dict[str, Any], message: str) -> None:
    model = backbones.load("tiny-llama").model
    with eva_attention_of(model, OPEN), pytest.raises(UserError, match=message):
        model(text(5), **options)


def test_models_out_of_reach_are_one_sentence() -> None:
    config = transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
    model = transformers.BloomForCausalLM(config)
    model.config.max_position_embeddings = 32
    with pytest.raises(UserError, match="cannot be used"), eva_attention_of(model):
        pass
    assert model.training


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-opt"])
def test_a_whole_model_learns_from_random_weights(family: str) -> None:
    """Backbone and summaries together, on texts whose second half, a new window, repeats the first."""
    backbone = backbones.load(family)
    method = EVALM(backbone, EVALMConfig(W=16, c=4, sinks=0, remote_bias=0.0, weights="none"))
    tokens = torch.randint(0, 20, (2, 32), generator=torch.Generator().manual_seed(5)).repeat(1, 2)
    parameters = [*backbone.model.parameters(), *method.summaries.parameters()]
    before = [parameter.detach().clone() for parameter in parameters]
    optimiser, losses = torch.optim.Adam(parameters, lr=3e-3), []
    with method.as_attention():
        for _ in range(40):
            loss = backbone.model(tokens, labels=tokens).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    moved = [not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)]
    assert sum(moved) > 0.9 * len(moved)
    read = -method.read(method.start(2), tokens)[1][:, 1:].mean()
    with method.as_attention(), torch.no_grad():
        assert float(read) == pytest.approx(float(backbone.model(tokens, labels=tokens).loss), abs=1e-4)
