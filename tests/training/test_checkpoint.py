"""Checkpoints: a run that goes on from one is the run that never stopped, and damage is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import damaged, rounds
from test_loop import METHODS, trainer, weights
from toy_corpus import corpus, learner, tiny

from contextlab import files, seals, tensors
from contextlab.errors import UserError
from contextlab.training import checkpoint
from contextlab.training.checkpoint import Extra
from contextlab.training.corpus import Corpus


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return corpus(tmp_path, monkeypatch)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("before", [0, 1, 6])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(name: str, before: int, built: Corpus, tmp_path: Path) -> None:
    torch.manual_seed(5)
    whole = trainer(built, METHODS[name](), accumulate=2, rates="*0*:2")
    for _ in range(before):
        whole.step()
    folder = checkpoint.save(tmp_path / "out", whole, Extra(curve=7))
    expected = [whole.step() for _ in range(4)]
    torch.manual_seed(99)
    resumed = trainer(built, METHODS[name](), accumulate=2, rates="*0*:2")
    resumed.step()
    assert checkpoint.load(folder, resumed) == Extra(curve=7)
    steps = [resumed.step() for _ in range(4)]
    assert [(step.tokens, step.loss, step.rate, step.norm) for step in steps] == [
        (step.tokens, step.loss, step.rate, step.norm) for step in expected
    ]
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.progress.flops == whole.progress.flops


def test_draws_go_on_where_they_were(built: Corpus, tmp_path: Path) -> None:
    training = trainer(built)
    torch.manual_seed(3)
    folder = checkpoint.save(tmp_path / "out", training, Extra())
    drawn = torch.rand(5)
    torch.manual_seed(4)
    checkpoint.load(folder, training)
    assert torch.equal(torch.rand(5), drawn)


def test_the_one_before_is_kept_until_the_new_one_is_whole(
    built: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, out = trainer(built), tmp_path / "out"
    first = checkpoint.save(out, training, Extra())
    training.step()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_save_shared", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(UserError, match=r"no space left.*run the same command again"):
            checkpoint.save(out, training, Extra())
    assert checkpoint.stored(out) == [first]
    second = checkpoint.save(out, training, Extra())
    assert checkpoint.stored(out) == [second]
    assert [path.name for path in out.iterdir()] == [second.name]
    assert checkpoint.save(out, training, Extra()) == second


@pytest.mark.parametrize(
    "name", ["learned.safetensors", "optimiser.safetensors", "state-0.safetensors", "random-0.safetensors", "run.json"]
)
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_what_is_not_whole_is_one_sentence(name: str, how: str, built: Corpus, tmp_path: Path) -> None:
    training = trainer(built)
    training.step()
    folder = checkpoint.save(tmp_path / "out", training, Extra())
    path = folder / name
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=r"checkpoint .* is broken .*: delete it"):
        checkpoint.load(folder, trainer(built))


def test_a_checkpoint_of_another_backbone_is_one_sentence(built: Corpus, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path / "out", trainer(built), Extra())
    backbone = tiny()
    with torch.no_grad():
        next(backbone.model.parameters()).add_(0.1)
    with pytest.raises(UserError, match="trained beside another backbone"):
        checkpoint.load(folder, trainer(built, learner(backbone)))


def test_a_checkpoint_of_other_processes_is_one_sentence(built: Corpus, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path / "out", trainer(built), Extra())
    seals.write(folder / "run.json", {**json.loads((folder / "run.json").read_text()), "processes": 2})
    with pytest.raises(UserError, match="written by 2 processes and this run has 1: start as many"):
        checkpoint.load(folder, trainer(built))


@pytest.mark.parametrize("position", [[0, 99, 0], [0, 0, 10**6], [0, 0, -1], [0, 0], "x"])
def test_positions_that_are_none_are_one_sentence(position: Any, built: Corpus, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path / "out", trainer(built), Extra())
    path = folder / "streams-0.json"
    text = json.dumps([position, [0, 0, 0]])
    path.write_text(text)
    run = json.loads((folder / "run.json").read_text())
    seals.write(folder / "run.json", {**run, "files": {**run["files"], path.name: files.sha256(path)}})
    with pytest.raises(UserError, match="is broken"):
        checkpoint.load(folder, trainer(built))


def test_damage_is_seen_or_harmless(built: Corpus, tmp_path: Path) -> None:
    training = trainer(built)
    training.step()
    folder = checkpoint.save(tmp_path / "out", training, Extra())
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    sentences = list[str]()
    other = trainer(built)
    for draw in rounds(25, salt="checkpoint"):
        shutil.rmtree(folder)
        shutil.copytree(whole, folder)
        path = draw.choice([*folder.iterdir()])
        before = path.read_bytes()
        path.write_bytes(damaged(before, draw))
        if path.read_bytes() != before:
            with pytest.raises(UserError) as error:
                checkpoint.load(folder, other)
            sentences.append(str(error.value))
    assert len(sentences) > 20
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_a_checkpoint_of_another_run_is_one_sentence(built: Corpus, tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path / "out", trainer(built), Extra(course="one"))
    assert checkpoint.load(folder, trainer(built), "one") == checkpoint.read(folder) == Extra(course="one")
    with pytest.raises(UserError, match="belongs to another run"):
        checkpoint.load(folder, trainer(built), "two")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_moments_that_are_not_finite_are_one_sentence(value: float, built: Corpus, tmp_path: Path) -> None:
    training = trainer(built)
    training.step()
    folder = checkpoint.save(tmp_path / "out", training, Extra())
    held, about = tensors.read(folder / "optimiser.safetensors")
    held[next(name for name in held if name.endswith(".exp_avg"))].view(-1)[0] = value
    tensors.write(folder / "optimiser.safetensors", held, about)
    run = json.loads((folder / "run.json").read_text())
    digests = {**run["files"], "optimiser.safetensors": files.sha256(folder / "optimiser.safetensors")}
    seals.write(folder / "run.json", {**run, "files": digests})
    with pytest.raises(UserError, match="does not fit what is learned"):
        checkpoint.load(folder, trainer(built))
