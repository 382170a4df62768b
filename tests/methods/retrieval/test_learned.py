"""What retrieval learns: it starts as the form without training, with a gradient, and is kept in small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.retrieval.learned import LowRank, MemoryQuery

SETTINGS: dict[str, Any] = {"N": 24, "K": 8}


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def built(backbone: Backbone, **settings: Any) -> Retrieval:
    return Retrieval(backbone, RetrievalConfig(**{**SETTINGS, **settings}))


def text(length: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def loss(method: Retrieval, tokens: Tensor) -> Tensor:
    return -method.learn(method.start(len(tokens)), tokens)[1].logprobs_BT.mean()


def moved(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def test_without_a_rank_there_is_nothing_to_learn(llama: Backbone) -> None:
    method = built(llama)
    assert method.learned is None
    assert not method.untrained
    assert method.weights_digest is None
    with pytest.raises(UserError, match="has nothing to learn"):
        method.learn(method.start(), text(5))


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_it_starts_as_the_form_without_training_bitwise(llama: Backbone, rank: int) -> None:
    method, tokens = built(llama, rank=rank), text(100, rows=2)
    assert method.untrained
    plain = built(llama)
    assert torch.equal(method.read(method.start(2), tokens)[1], plain.read(plain.start(2), tokens)[1])


@pytest.mark.parametrize("rank", [0, 3])
def test_every_layer_has_a_gradient_from_the_first_step(llama: Backbone, rank: int) -> None:
    method = built(llama, rank=rank)
    loss(method, text(100)).backward()
    assert method.queries is not None
    for layer in method.queries:
        assert isinstance(layer, MemoryQuery)
        assert bool(layer.bias_H.grad.any())
        for change in (layer.q, layer.k):
            if change is not None:
                assert bool(change.up_HrD.grad.any())


def test_a_change_of_keys_is_one_of_queries() -> None:
    change = LowRank(3, 8, 2, torch.empty(0))
    moved(change)
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    torch.testing.assert_close(change.transposed(q) @ k.transpose(2, 3), q @ change(k).transpose(2, 3))


def test_what_is_learned_meets_the_bank_alone(llama: Backbone) -> None:
    """Before anything has left the view nothing differs, and a closed bank leaves the sliding window for ever."""
    method, tokens = built(llama, rank=2), text(120)
    plain = built(llama)
    expected = plain.read(plain.start(), tokens)[1]
    assert method.queries is not None
    moved(method.queries)
    result = method.read(method.start(), tokens)[1]
    assert result is not None
    assert expected is not None
    assert torch.equal(result[:, :48], expected[:, :48])
    assert not torch.allclose(result[:, 49:], expected[:, 49:], atol=1e-3)
    with torch.no_grad():
        for layer in method.queries:
            layer.bias_H.fill_(-1e9)
    closed = method.read(method.start(), tokens)[1]
    sliding = method.view.read(method.view.start(), tokens)[1]
    torch.testing.assert_close(closed, sliding, atol=1e-5, rtol=1e-5)


def test_a_few_steps_lower_the_loss(llama: Backbone) -> None:
    method, tokens = built(llama, rank=4), text(140)
    assert method.queries is not None
    optimiser, losses = torch.optim.Adam(method.queries.parameters(), lr=3e-2), []
    for _ in range(8):
        value = loss(method, tokens)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    assert losses[-1] < losses[0]
    assert not method.untrained


def test_weights_are_saved_and_loaded(llama: Backbone, tmp_path: Path) -> None:
    method = built(llama, rank=2)
    assert method.queries is not None
    moved(method.queries)
    method.save_weights(tmp_path / "w.safetensors")
    again = built(llama, rank=2, weights=tmp_path / "w.safetensors")
    assert again.weights_digest == method.weights_digest
    assert not again.untrained
    with pytest.raises(UserError, match="does not hold Retrieval weights"):
        built(llama, rank=3, weights=tmp_path / "w.safetensors")


def test_parameters_are_counted(llama: Backbone) -> None:
    layers, heads, width = llama.layers - 1, llama.heads, llama.head_width
    assert built(llama, rank=0).added_parameters == layers * heads
    assert built(llama, rank=3).added_parameters == layers * heads * (1 + 4 * 3 * width)


def test_half_precision_models_learn_in_float32() -> None:
    backbone = backbones.load("tiny-llama", device="cpu", dtype="bfloat16")
    method = built(backbone, rank=2)
    assert method.queries is not None
    assert {parameter.dtype for parameter in method.queries.parameters()} == {torch.float32}
    loss(method, text(100)).backward()
    assert all(parameter.grad is not None for parameter in method.queries.parameters())
