"""EVALM with a low-rank update of the backbone's projections: what it adds, and what it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.evalm import EVALM, EVALMConfig, eva_attention_of
from contextlab.testing.parts import read, texts

FORM: dict[str, Any] = {"W": 32, "c": 8, "sinks": 2, "remote_bias": -0.5, "weights": "none"}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def built(backbone: Backbone, **changed: Any) -> EVALM:
    return EVALM(backbone, EVALMConfig(**{**FORM, **changed}))


def moved(method: EVALM, seed: int = 0) -> EVALM:
    random = torch.Generator().manual_seed(seed)
    assert method.learned is not None
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))
    return method


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_as_it_starts_it_is_the_form_without_rank_bitwise(family: str) -> None:
    backbone = backbones.load(family, device="cpu")
    plain, updated = (built(backbone, rank=rank) for rank in (0, 2))
    (state, expected), (other, logprobs) = (read(method, texts(2)) for method in (plain, updated))
    assert torch.equal(logprobs, expected)
    assert all(torch.equal(tensor, other.tensors()[key]) for key, tensor in state.tensors().items())
    candidates = [[1, 2, 3], [4]]
    assert torch.equal(plain.score(state, candidates), updated.score(other, candidates))


def test_closed_its_baseline_is_local_attention_without_an_update(backbone: Backbone) -> None:
    method = built(backbone, rank=2, remote_bias=None)
    baseline = method.baseline()
    assert baseline is not None
    assert baseline.learned is None
    torch.testing.assert_close(read(method, texts(1))[1], read(baseline, texts(1))[1])


@pytest.mark.parametrize(
    ("changed", "twin"),
    [
        ({"rank": 4}, "window(N=32,rank=4)"),
        ({"rank": 4, "targets": "all", "overlap": True}, "sliding(N=32,rank=4,targets=all)"),
        ({"rank": 0, "W": None}, "window(rank=16)"),
    ],
)
def test_its_twin_has_the_same_local_context_and_update(backbone: Backbone, changed: Any, twin: str) -> None:
    assert built(backbone, **changed).twin == twin


def test_all_that_is_learned_moves_predictions(backbone: Backbone) -> None:
    """Also the first token's, which is predicted from the updated model's BOS."""
    expected = read(built(backbone, rank=2), texts(1))[1]
    logprobs = read(moved(built(backbone, rank=2)), texts(1))[1]
    assert bool(((logprobs - expected).abs() > 1e-6)[0, :2].all())


def test_any_split_equals_the_parallel_form(backbone: Backbone) -> None:
    exact = backbones.load("tiny-llama", device="cpu", dtype="float64")
    method = moved(built(exact, rank=2))
    tokens = texts(1)[:, :100]
    with method.as_attention(), torch.no_grad():
        logprobs = method.network.model(tokens).logits.log_softmax(-1)[:, :-1]
    expected = logprobs.gather(-1, tokens[:, 1:, None])[..., 0]
    state, first = method.read(method.start(), tokens[:, :41])
    _, second = method.read(state, tokens[:, 41:])
    assert first is not None
    assert second is not None
    torch.testing.assert_close(torch.cat((first, second), 1)[:, 1:], expected.float(), atol=1e-5, rtol=1e-5)


def test_gradients_of_stepping_are_those_of_the_parallel_form() -> None:
    exact = backbones.load("tiny-llama", device="cpu", dtype="float64")
    method = moved(built(exact, rank=2))
    assert method.learned is not None
    tokens = texts(2)[:, :100]
    parameters = list(method.learned.parameters())
    with exact.frozen(), method.as_attention():
        logits = method.network.model(tokens).logits
    whole = -logits[:, :-1].log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum()
    hidden_BTC = method.learn(method.start(2), tokens)[1].hidden_BTC
    stepped = -exact.model.get_output_embeddings()(hidden_BTC[:, 1:]).log_softmax(-1).gather(-1, tokens[:, 1:, None])
    gradients = torch.autograd.grad(whole, parameters, allow_unused=True)
    other = torch.autograd.grad(stepped.sum(), parameters, allow_unused=True)
    for a, b, (name, parameter) in zip(gradients, other, method.learned.named_parameters(), strict=True):
        zero = torch.zeros_like(parameter)
        exactly = {} if parameter.dtype == torch.float64 else {"atol": 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b, **exactly, msg=name)


def test_weights_of_the_first_stage_are_what_the_second_begins_with(backbone: Backbone, tmp_path: Path) -> None:
    first = moved(built(backbone))
    first.save_weights(tmp_path / "one.safetensors")
    second = built(backbone, rank=2, weights=tmp_path / "one.safetensors")
    assert torch.equal(read(first, texts(1))[1], read(second, texts(1))[1])
    moved(second).save_weights(tmp_path / "two.safetensors")
    again = built(backbone, rank=2, weights=tmp_path / "two.safetensors")
    assert again.weights_digest == second.weights_digest
    with pytest.raises(UserError, match="does not hold EVALM weights"):
        built(backbone, rank=3, weights=tmp_path / "two.safetensors")
    with pytest.raises(UserError, match="does not hold EVALM weights"):
        built(backbone, weights=tmp_path / "two.safetensors")


def test_other_numbers_of_local_tokens_take_the_same_weights(backbone: Backbone, tmp_path: Path) -> None:
    moved(built(backbone)).save_weights(tmp_path / "one.safetensors")
    for changed in ({"W": 48}, {"overlap": True}, {"remote_bias": None}):
        assert not built(backbone, weights=tmp_path / "one.safetensors", **changed).untrained


@pytest.mark.parametrize("around", PARTS)
def test_laws_with_overlap_and_an_update_that_has_learned(around: bool) -> None:
    assert broken(lambda b: moved(built(b, rank=2, W=24, overlap=True)), "tiny-opt", around=around) == {}


def test_noise_reaches_the_summaries_while_they_are_trained(backbone: Backbone) -> None:
    """In both forms, and in no other mode; a window that sees no summary has no noise."""
    method, tokens = built(backbone, rank=2), texts(1)[:, :100]
    assert method.learned is not None
    plain = [method.learn(method.start(), tokens)[1].logprobs_BT for _ in range(2)]
    assert torch.equal(*plain)
    method.learned.train()
    stepped = [method.learn(method.start(), tokens)[1].logprobs_BT.detach() for _ in range(2)]
    with method.as_attention(), torch.no_grad():
        whole = [method.network.model(tokens).logits for _ in range(2)]
    method.learned.eval()
    for gradient, other in (stepped, whole):
        assert torch.equal(gradient[:, :32], other[:, :32])
        assert not torch.equal(gradient[:, 33:], other[:, 33:])
    assert torch.equal(method.learn(method.start(), tokens)[1].logprobs_BT, plain[0])


def test_a_model_of_ones_own_takes_no_update(backbone: Backbone) -> None:
    config = EVALMConfig(**{**FORM, "rank": 2})
    with pytest.raises(UserError, match="use rank=0"), eva_attention_of(backbone.model, config):
        pass
