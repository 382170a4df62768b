"""What a text means by a method: a registered one, or trained weights, with settings that their card leaves free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_weights import BACKBONE, method, moved, write

import contextlab
from contextlab import backbone as backbones
from contextlab import naming, registry, trained
from contextlab.errors import UserError

FORM = {"N": 32, "reduction": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    return tmp_path


def weights(folder: Path, name: str = "one", by: float = 0.01, **card: Any) -> Path:
    return write(folder / name, moved(method(**FORM, weights="none"), by), free=["K", "M"], **card)


def test_a_name_of_weights_is_their_method_with_their_settings(folder: Path) -> None:
    path = weights(folder, use={"M": 512})
    for name in ("one", str(folder / "one")):
        named = naming.single(name)
        assert (named.name, named.label, named.bare) == ("longmem", name, False)
        settings = {key: value for key, value in named.config.changed().items() if key != "weights"}
        assert settings == {**FORM, "M": 512}
        built = named.build(BACKBONE)
        assert built.weights_digest == method(**FORM, weights=path).weights_digest
    assert naming.single("one(K=8)").label == "one(K=8)"
    assert naming.single("one(K=64,M=512)").label == "one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one(csz=2)", "one was trained with csz=4: leave csz out; only K, M may differ"),
        ("one(reduction=2)", "one was trained with reduction=1: leave reduction out"),
        ("one(form=paper)", r"write longmem\(form=paper\) instead"),
        ("one(weights=none)", "leave weights= out, or name longmem"),
        ("longmem(form=best)", "form=best of longmem is no form: write form=paper, or none"),
        ("onee", "There is no method 'onee': did you mean 'one'"),
        ("evalm-c5", "did you mean 'evalm-c4'"),
        ("longmen", "did you mean 'longmem'"),
    ],
)
def test_what_no_name_means_is_refused(folder: Path, text: str, message: str) -> None:
    weights(folder)
    with pytest.raises(UserError, match=message):
        naming.single(text)


def test_a_folder_without_a_card_says_so(folder: Path) -> None:
    with pytest.raises(UserError, match="holds no trained weights with a card: name the folder of a training that"):
        naming.single(str(folder))


def test_the_settings_of_weights_themselves_may_be_written(folder: Path) -> None:
    weights(folder)
    assert naming.single("one(N=32,reduction=1)").label == "one"


def test_weights_of_another_backbone_say_which_they_need(folder: Path) -> None:
    weights(folder)
    with pytest.raises(UserError, match="one was trained beside tiny-gpt2 and not beside tiny-llama: use"):
        naming.single("one").build(backbones.load("tiny-llama", device="cpu"))


def test_a_bare_name_stands_for_what_is_recommended_beside_its_backbone(folder: Path) -> None:
    weights(folder, recommended=True)
    other = backbones.load("tiny-llama", device="cpu")
    named = naming.single("longmem")
    assert named.on(BACKBONE).label == "one"
    assert "longmem stands for one, trained on 5 tokens: write longmem(form=paper)" in named.on(BACKBONE).explained
    assert named.on(other) == named
    for text in ("longmem(form=paper)", "longmem(K=64)", "longmem(weights=none)", "one(K=8)"):
        same = naming.single(text)
        assert same.on(BACKBONE) == same
        assert same.explained == "" or same.weights is not None
    assert naming.single("longmem()").on(BACKBONE).label == "one"
    assert naming.single("longmem(form=paper)").config.changed() == {}


def test_weights_of_the_papers_form_are_not_told_apart_from_it(folder: Path) -> None:
    write(folder / "one", moved(method("memtrm", weights="none"), 0.01), method="memtrm", recommended=True)
    named = naming.single("memtrm").on(BACKBONE)
    assert named.explained == "memtrm stands for one, trained on 5 tokens, in the paper's form."


def test_loading_in_python_means_the_same(folder: Path) -> None:
    weights(folder, recommended=True)
    for text, settings, name in (
        ("longmem", {}, "one"),
        ("one", {}, "one"),
        ("one", {"K": 8}, "one"),
        ("longmem", {"form": "paper"}, None),
        ("longmem", {"N": 32}, None),
    ):
        loaded = contextlab.load(text, BACKBONE.model, tokenizer=BACKBONE.tokenizer, **settings)
        loaded_weights = loaded.trained_weights
        assert (None if loaded_weights is None else loaded_weights.name) == name
    tokens = torch.arange(40)[None]
    assert loaded.read(loaded.start(), tokens)[1] is not None


@pytest.mark.parametrize(
    "text", ["longmem(init=difference,reduction=1,rank=2,weights=none)", "retrieval(rank=2,weights=none)"]
)
def test_what_has_not_learned_is_the_same_whatever_was_drawn_before(text: str, tmp_path: Path) -> None:
    """A state that one program has saved fits the method that the next one loads."""
    before = contextlab.load(text, "tiny-llama", device="cpu")
    torch.rand(3)
    drawn = torch.random.get_rng_state()
    after = contextlab.load(text, "tiny-llama", device="cpu")
    assert torch.equal(torch.random.get_rng_state(), drawn)
    state, _ = before.read(before.start(), torch.arange(40)[None])
    state.save(tmp_path / "state")
    assert torch.equal(after.load_state(tmp_path / "state").length_B, state.length_B)


OF_LONGMEM = {"N": 64, "K": 16, "csz": 8, "M": 128, "reduction": 1}


@given(names=st.sets(st.sampled_from(sorted(OF_LONGMEM))), beside=st.sets(st.sampled_from(sorted(OF_LONGMEM))))
def test_a_setting_means_the_same_in_brackets_and_beside_them(names: set[str], beside: set[str]) -> None:
    values = {name: OF_LONGMEM[name] for name in sorted(names)}
    whole = f"longmem({','.join(f'{name}={value}' for name, value in values.items())})"
    inside = {name: value for name, value in values.items() if name not in beside}
    further = {name: value for name, value in values.items() if name in beside}
    text = f"longmem({','.join(f'{name}={value}' for name, value in inside.items())})"
    named = naming.single(text, further)
    assert named == naming.single(whole)
    assert named.config.as_dict() == {**named.kind.Config.defaults(), **values}
    for name in inside:
        with pytest.raises(UserError, match=f"longmem is given {name} twice"):
            naming.single(text, {name: 4})


def test_form_of_a_method_that_has_such_a_setting_is_its_own() -> None:
    assert naming.single("finetune(form=sft)").config.changed() == {"form": "sft"}
    with pytest.raises(UserError, match="form"):
        naming.single("finetune(form=paper)")


def test_form_is_a_word_of_every_method_that_has_weights_recommended() -> None:
    for name, _ in trained.recommendations():
        named = naming.single(f"{name}(form=paper)")
        assert (named.config.changed(), named.bare) == ({}, False)
        assert naming.single(f"{name}(form=paper)").on(BACKBONE) == named


def test_no_weights_are_recommended_beside_small_models() -> None:
    for name in registry.methods():
        named = naming.single(name)
        assert named.on(BACKBONE) == named


def test_weights_as_initialised_keep_their_settings(folder: Path) -> None:
    weights(folder)
    named = naming.single("one").as_initialised()
    assert named.config.changed() == {**FORM, "weights": "none"}
    assert named.build(backbones.load("tiny-llama", device="cpu")).untrained
    assert naming.single("longmem(K=8)").as_initialised().config.changed() == {"K": 8}
