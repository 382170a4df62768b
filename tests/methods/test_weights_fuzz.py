"""Files of weights, statistics and adapters that something has gone wrong with are refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import mutated, rounds
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.errors import UserError
from contextlab.methods.dynamic_eval.weights import gradient_statistics
from contextlab.methods.generative_adapter import Adapter, GenerativeAdapter

BACKBONE = backbones.load("tiny-gpt2", device="cpu")


PARTS = {
    "longmem": "side",
    "evalm": "summaries",
    "generative-adapter": "generator",
    "memtrm": "learned",
    "trime": "learned",
    "ultragist": "learned",
}


def module(name: str, **settings: Any) -> torch.nn.Module:
    kind = registry.method_class(name)
    part: torch.nn.Module = getattr(kind(BACKBONE, kind.Config.parse(settings)), PARTS[name])
    return part


def weights(name: str, path: Path) -> None:
    save_file({key: value.clone() for key, value in module(name).state_dict().items()}, path)


def held(name: str) -> Callable[[Path], dict[str, torch.Tensor]]:
    return lambda path: dict(module(name, weights=path).state_dict())


def statistics(path: Path) -> None:
    save_file(gradient_statistics(BACKBONE, [list(range(20))]), path)


def loaded_statistics(path: Path) -> dict[str, torch.Tensor]:
    kind = registry.method_class("dynamic-eval")
    method: Any = kind(BACKBONE, kind.Config.parse({"rule": "rms", "statistics": path}))
    return dict(zip(method.model.names, method._statistics(), strict=True))


GENERATOR = GenerativeAdapter(BACKBONE)


def adapter(path: Path) -> None:
    state, _ = GENERATOR.read(GENERATOR.start(2), torch.randint(0, 257, (2, 40)))
    GENERATOR.adapter(state).save(path)


FILES: dict[str, tuple[Callable[[Path], None], Callable[[Path], dict[str, torch.Tensor]]]] = {
    **{name: (lambda path, n=name: weights(n, path), held(name)) for name in PARTS},
    "statistics": (statistics, loaded_statistics),
    "adapter": (adapter, lambda path: {"S": Adapter.load(path, GENERATOR.generator).S_BLRR}),
}


@pytest.mark.parametrize("name", FILES)
def test_intact_files_are_loaded(name: str, tmp_path: Path) -> None:
    write, load = FILES[name]
    write(tmp_path / "file")
    loaded, whole = load(tmp_path / "file"), load_file(tmp_path / "file")
    assert all(torch.equal(loaded[key], whole[key]) for key in whole)


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    write, load = FILES[name]
    path = tmp_path / "file.safetensors"
    write(path)
    whole = load_file(path)
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
    tried = refused = 0
    for draw in rounds(16, 1 / len(FILES), name):
        kind, tensor = mutated(whole, about, path, draw)
        tried += 1
        try:
            loaded = load(path)
        except UserError as error:
            refused += 1
            message = str(error)
            assert str(path) in message or "another" in message, (kind, tensor, message)
            assert "\n" not in message, (kind, tensor)
            continue
        if kind in ("type", "extra", "rows") and loaded.keys() <= whole.keys():
            # Another width of numbers, more statistics than are wanted, more rows of an adapter: all of use.
            assert kind != "extra" or name == "statistics", kind
            assert kind != "rows" or name == "adapter", kind
            assert all(value.isfinite().all() for key, value in loaded.items() if "remote_bias_H" not in key)
            continue
        if kind == "dim" and name == "adapter":
            assert loaded["S"].shape[1:] == whole["S"].shape[1:]
            continue
        assert all(torch.equal(loaded[key], whole[key]) for key in loaded), (kind, tensor)
    assert refused > tried / 2
    print(f"{name}: {tried} tried, {refused} refused")


@pytest.mark.parametrize("name", [*PARTS, "dynamic-eval"])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 64])
def test_a_file_that_is_none_is_named(name: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)
    kind = registry.method_class(name)
    settings = {"rule": "rms", "statistics": path} if name == "dynamic-eval" else {"weights": path}
    with pytest.raises(UserError, match=r"weights\.safetensors"):
        kind(BACKBONE, kind.Config.parse(settings))


def test_weights_that_a_narrower_type_cannot_hold_are_refused(tmp_path: Path) -> None:
    part = module("longmem")
    save_file({k: torch.full_like(v, 1e30) for k, v in part.state_dict().items()}, tmp_path / "w")
    kind = registry.method_class("longmem")
    narrow = backbones.load("tiny-gpt2", device="cpu", dtype="float16")
    with pytest.raises(UserError, match="not finite in float16"):
        kind(narrow, kind.Config.parse({"weights": tmp_path / "w"}))
