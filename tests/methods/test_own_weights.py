"""rank=full: all weights of the backbone are the method's own, and training starts from them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.backbone import Backbone, wrap
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.testing.parts import read, texts

EVALM: dict[str, Any] = {"W": 32, "c": 8, "sinks": 2, "remote_bias": -0.5}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"N": 24},
    "sliding": {"N": 20, "sinks": 3},
    "sinks": {"sinks": 2, "recent": 21},
    "evalm": EVALM,
}


def built(name: str, backbone: Backbone, **settings: Any) -> AnyMethod:
    kind = registry.method_class(name)
    return kind(backbone, kind.Config.parse({**METHODS[name], "weights": "none", **settings}))


def moved(method: AnyMethod) -> AnyMethod:
    """The method with all weights changed a little."""
    random = torch.Generator().manual_seed(0)
    assert method.learned is not None
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=random))
    return method


def plain(name: str, method: AnyMethod) -> AnyMethod:
    """The same method without weights of its own, on a backbone that has them."""
    learned = copy.deepcopy(method.learned)
    assert learned is not None
    if name != "evalm":
        return built(name, wrap(learned, method.backbone.tokenizer))
    other = built(name, wrap(learned.get_submodule("updates"), method.backbone.tokenizer))
    assert other.learned is not None
    other.learned.load_state_dict(learned.get_submodule("summaries").state_dict())
    return other


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-opt"])
@pytest.mark.parametrize("name", METHODS)
def test_it_is_the_method_on_a_backbone_with_these_weights(name: str, family: str) -> None:
    backbone = backbones.load(family, device="cpu")
    before = {key: tensor.clone() for key, tensor in backbone.model.state_dict().items()}
    method = moved(built(name, backbone, rank="full"))
    other = plain(name, method)
    (state, expected), (same, logprobs) = (read(reader, texts(2)) for reader in (other, method))
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(method.next_logprobs(same), other.next_logprobs(state), atol=1e-5, rtol=1e-5)
    prompts = [[1, 2, 3], [4]]
    torch.testing.assert_close(method.score(same, prompts), other.score(state, prompts), atol=1e-5, rtol=1e-5)
    assert method.generate(same, prompts, max_new_tokens=4) == other.generate(state, prompts, max_new_tokens=4)
    assert not torch.allclose(logprobs, read(built(name, backbone), texts(2))[1], atol=1e-3)
    assert all(torch.equal(tensor, before[key]) for key, tensor in backbone.model.state_dict().items())


@pytest.mark.parametrize("name", METHODS)
def test_untrained_it_is_the_method_on_the_backbone_bitwise(name: str) -> None:
    backbone = backbones.load("tiny-gpt2", device="cpu")
    method = built(name, backbone, rank="full")
    assert method.untrained
    assert torch.equal(read(method, texts(2))[1], read(built(name, backbone), texts(2))[1])


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("name", ["window", "evalm"])
def test_every_weight_learns(name: str, family: str) -> None:
    method = built(name, backbones.load(family, device="cpu"), rank="full")
    assert method.learned is not None
    text, losses = texts(1)[:, :100], []
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=3e-3)
    for _ in range(10):
        loss = -method.learn(method.start(), text)[1].logprobs_BT.mean()
        optimiser.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        without = [key for key, parameter in method.learned.named_parameters() if parameter.grad is None]
        assert without == []
        optimiser.step()
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("name", ["window", "evalm"])
def test_weights_are_saved_and_loaded(name: str, family: str, tmp_path: Path) -> None:
    """Those of tiny-gpt2 have one tensor for embedding and head."""
    backbone = backbones.load(family, device="cpu")
    method = moved(built(name, backbone, rank="full"))
    method.save_weights(tmp_path / "weights")
    loaded = built(name, backbone, rank="full", weights=tmp_path / "weights")
    assert torch.equal(read(loaded, texts(1))[1], read(method, texts(1))[1])
    assert loaded.weights_digest == method.weights_digest
    assert loaded.added_parameters == method.added_parameters
    with pytest.raises(UserError):
        built(name, backbone, rank=2, weights=tmp_path / "weights")


def test_a_loss_over_the_backbones_head_is_refused() -> None:
    method = built("window", backbones.load("tiny-llama", device="cpu"), rank="full")
    with pytest.raises(UserError, match="train this one with the objective lm"):
        _ = method.learn(method.start(), texts(1))[1].hidden_BTC


def test_its_twin_learns_all_weights_too() -> None:
    assert built("evalm", backbones.load("tiny-llama", device="cpu"), rank="full").twin == "window(N=32,rank=full)"


@pytest.mark.parametrize("rank", [-1, "whole", 1.5])
def test_other_words_are_no_rank(rank: Any) -> None:
    with pytest.raises(UserError, match="rank"):
        built("window", backbones.load("tiny-llama", device="cpu"), rank=rank)


@pytest.mark.parametrize("name", ["window", "evalm"])
@pytest.mark.parametrize("around", PARTS)
def test_laws(name: str, around: bool) -> None:
    assert broken(lambda b: built(name, b, rank="full"), "tiny-gpt2", around=around) == {}
