"""Adapted twins: the four baselines with a low-rank update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from contextlab import backbone as backbones
from contextlab import grammar, registry
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.testing.parts import read, texts

TWINS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"N": 24},
    "sliding": {"N": 20, "sinks": 3},
    "sinks": {"sinks": 2, "recent": 21},
}


def twin(name: str, backbone: Backbone, **settings: Any) -> AnyMethod:
    kind = registry.method_class(name)
    return kind(backbone, kind.Config.parse({**TWINS[name], **settings}))


def learned(method: AnyMethod, steps: int = 20) -> list[float]:
    assert method.learned is not None
    text, losses = texts(1)[:, :100], []
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = -method.learn(method.start(), text)[1].logprobs_BT.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("name", TWINS)
def test_untrained_it_is_the_plain_method_bitwise(name: str, family: str, dtype: str) -> None:
    backbone = backbones.load(family, device="cpu", dtype=dtype)
    plain, updated = twin(name, backbone), twin(name, backbone, rank=2, targets="all")
    (state, expected), (other, logprobs) = (read(method, texts(2)) for method in (plain, updated))
    assert torch.equal(logprobs, expected)
    assert all(torch.equal(tensor, other.tensors()[key]) for key, tensor in state.tensors().items())
    prompts = [[1, 2, 3], [4]]
    assert torch.equal(plain.score(state, prompts), updated.score(other, prompts))
    assert plain.generate(state, prompts, max_new_tokens=4) == updated.generate(other, prompts, max_new_tokens=4)


@pytest.mark.parametrize("name", TWINS)
def test_without_rank_there_is_nothing_to_learn(name: str) -> None:
    method = twin(name, backbones.load("tiny-llama", device="cpu"))
    assert method.learned is None
    assert method.baseline() is None
    assert not method.untrained
    assert method.weights_digest is None
    assert method.added_parameters == 0


@pytest.mark.parametrize("name", TWINS)
def test_its_baseline_is_the_method_without_update_until_it_has_learned(name: str) -> None:
    backbone = backbones.load("tiny-gpt2", device="cpu")
    method = twin(name, backbone, rank=2)
    baseline = method.baseline()
    assert type(baseline) is type(method)
    assert baseline.config == twin(name, backbone).config
    assert method.untrained
    digest = method.weights_digest
    losses = learned(method)
    assert losses[-1] < losses[0] - 0.3
    assert not method.untrained
    assert method.baseline() is None
    assert method.weights_digest != digest
    assert not torch.allclose(read(method, texts(1))[1], read(baseline, texts(1))[1], atol=0.1)


@pytest.mark.parametrize("name", TWINS)
def test_the_first_prediction_follows_what_is_learned(name: str) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method = twin(name, backbone, rank=2)
    assert torch.equal(method.start().pending_BC[0], backbone.bos_hidden_C)
    learned(method, steps=1)
    assert not torch.equal(method.start().pending_BC[0], backbone.bos_hidden_C)
    assert torch.equal(twin(name, backbone).start().pending_BC[0], backbone.bos_hidden_C)


def test_parameters_are_those_of_the_update_alone() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    whole = sum(parameter.numel() for parameter in backbone.model.parameters())
    # Queries and outputs map 32 to 32, keys and values 32 to 16; the MLP has three maps between 32 and 64.
    attention, mlp = 2 * (32 + 32) + 2 * (32 + 16), 3 * (32 + 64)
    for targets, sizes in (("attention", attention), ("all", attention + mlp)):
        method = twin("window", backbone, rank=5, targets=targets)
        assert method.trained_parameters == method.added_parameters == 4 * 5 * sizes
    assert sum(parameter.numel() for parameter in method.backbone.model.parameters()) == whole


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_weights_are_saved_in_16_bits_too(dtype: torch.dtype | None, tmp_path: Path) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method = twin("window", backbone, rank=4)
    learned(method, steps=5)
    method.save_weights(tmp_path / "weights", dtype)
    with safe_open(tmp_path / "weights", "pt") as file:
        kinds = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert kinds == {dtype or torch.float32}
    loaded = twin("window", backbone, rank=4, weights=tmp_path / "weights")
    assert not loaded.untrained
    expected, logprobs = (read(reader, texts(1))[1] for reader in (method, loaded))
    assert torch.equal(logprobs, expected) == (dtype is None)
    torch.testing.assert_close(logprobs, expected, atol=0.05, rtol=0.05)


def test_a_twin_trained_as_one_method_is_not_another(tmp_path: Path) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    twin("window", backbone, rank=4).save_weights(tmp_path / "weights")
    for name, settings, message in (
        ("full", {"rank": 4}, "written for Window"),
        ("window", {"rank": 3}, "has the shape"),
        ("window", {"rank": 4, "targets": "all"}, "is missing"),
        ("window", {}, "give it, as in rank=16"),
    ):
        with pytest.raises(UserError, match=message):
            twin(name, backbone, weights=tmp_path / "weights", **settings)
    with pytest.raises(UserError, match="beside another backbone"):
        twin("window", backbones.load("tiny-qwen2", device="cpu"), rank=4, weights=tmp_path / "weights")


def test_a_state_belongs_to_the_weights_that_made_it() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method, plain = twin("window", backbone, rank=2), twin("window", backbone)
    state, _ = read(method, texts(1))
    with pytest.raises(UserError, match="another method, backbone or settings"):
        plain.read(state, texts(1))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("longmem", "window(rank=16,targets=all)"),
        ("longmem(local=sliding,rank=4,N=20)", "sliding(N=20,rank=4,targets=all)"),
        ("memtrm(rank=3)", "window(rank=3)"),
        ("memtrm(rank=3,targets=all,local=sliding)", "sliding(rank=3,targets=all)"),
        ("trime(N=20)", "window(N=20,rank=16)"),
        ("retrieval(rank=8)", "sliding(rank=8)"),
        ("generative-adapter(chunk=20,d_r=8,r=3)", "window(N=20,rank=3)"),
        ("generative-adapter(d_r=8,normalisation=polar,modules=*mlp.*)", "window(rank=8,targets=all)"),
        ("sliding", None),
    ],
)
def test_every_method_that_learns_to_use_a_memory_names_its_twin(method: str, expected: str | None) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    item = grammar.single(method, "method")
    kind = registry.method_class(item.name)
    twin_method = kind(backbone, kind.Config.parse(item.settings))
    assert twin_method.twin == expected
    if expected is not None:
        named = grammar.single(expected, "method")
        other = registry.method_class(named.name)
        assert other(backbone, other.Config.parse(named.settings)).learned is not None
