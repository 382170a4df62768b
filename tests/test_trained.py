"""Trained weights: found where they fit and nowhere else, by their names, and by what they learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toy_weights import BACKBONE, method, moved, smaller, write

from contextlab import backbone as backbones
from contextlab import cards, registry, trained
from contextlab.errors import UserError

SHIPPED_BYTES, ALL_BYTES, CARD_BYTES = 6 * 2**20, 48 * 2**20, 2**20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    return tmp_path


def test_weights_that_fit_are_found_and_told_of(folder: Path) -> None:
    trained = moved(method(N=32, weights="none"), 0.01)
    write(folder / "one", trained)
    loaded = method(N=32)
    assert (loaded.untrained, loaded.weights_digest) == (False, trained.weights_digest)
    assert loaded.card is not None
    assert (loaded.card.cost.tokens, loaded.card.cost.flops) == (5, 7)
    assert method(N=32, weights="none").untrained
    assert method(N=32, weights="none").card is None


def test_settings_that_are_free_at_test_time_may_differ(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, K=8, weights="none"), 0.01))
    assert not method(N=64, K=16, M=1024, csz=2).untrained
    assert method(N=32, reduction=1).untrained
    assert method(N=32, init="paper").untrained


def test_another_backbone_or_method_finds_nothing(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    assert method(N=32, backbone=backbones.load("tiny-llama", device="cpu")).untrained
    assert method("evalm", W=32).untrained


def test_of_several_the_one_trained_longest_is_taken(folder: Path) -> None:
    for tokens in (5, 500, 50):
        write(folder / str(tokens), moved(method(N=32, weights="none"), tokens / 1e4), tokens)
    assert method(N=32).card.cost.tokens == 500


def test_of_several_that_are_recommended_or_equal_the_first_is_taken(folder: Path) -> None:
    """In the order in which they are listed, so that folders of the environment come before the package."""
    for name, by in (("b", 0.02), ("a", 0.01), ("c", 0.01)):
        write(folder / name, moved(method(N=32, weights="none"), by), recommended=True)
    assert trained.names()[:3] == ["a", "b", "c"]
    assert trained.recommendations()["longmem", BACKBONE.digest].name == "a"
    ours = {
        shipped.name: digest for digest, shipped in trained.by_digest().items() if shipped.file.is_relative_to(folder)
    }
    assert ours.keys() == {"a", "b"}


def test_a_folder_of_weights_may_be_named_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    monkeypatch.setenv(trained.FOLDERS, f"/nowhere:{folder / 'one'}")
    assert not method(N=32).untrained


def test_a_card_that_is_older_than_a_setting_fits_its_default(folder: Path) -> None:
    trained = moved(method(N=32, weights="none"), 0.01)
    settings = {key: value for key, value in trained.config.as_dict().items() if key not in ("weights", "init")}
    write(folder / "one", trained, settings=settings)
    assert not method(N=32).untrained
    assert method(N=32, init="paper").untrained


def test_a_card_that_knows_a_setting_more_does_not_fit(folder: Path) -> None:
    trained = moved(method(N=32, weights="none"), 0.01)
    write(folder / "one", trained, settings={**trained.config.as_dict(), "later": 3})
    assert method(N=32).untrained


def test_shipped_weights_are_small_and_whole() -> None:
    shipped = [path for path in trained.SHIPPED.rglob("*") if path.is_file()]
    weights = [path for path in shipped if path.suffix == ".safetensors"]
    assert all(path.stat().st_size <= SHIPPED_BYTES for path in weights)
    assert sum(path.stat().st_size for path in weights) <= ALL_BYTES
    assert sum(path.stat().st_size for path in shipped if path.suffix == ".json") <= CARD_BYTES
    assert all(cards.beside(path) is not None for path in weights)


def test_a_form_that_a_card_does_not_declare_free_finds_nothing(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01), free=["K"])
    assert not method(N=32, K=8).untrained
    assert method(N=64).untrained
    assert method(N=32, csz=2).untrained


def test_of_several_that_fit_the_one_with_the_same_settings_is_taken(folder: Path) -> None:
    write(folder / "longer", moved(method(N=32, K=8, weights="none"), 0.01), 500)
    write(folder / "same", moved(method(N=32, K=16, weights="none"), 0.02), 5)
    assert method(N=32, K=16).card.cost.tokens == 5


def test_evalm_with_overlap_takes_no_weights_trained_without() -> None:
    """What may differ from the training is declared in the card, and evalm's own settings do not declare the form."""
    for name in ("overlap", "c", "pooling"):
        assert name not in registry.method_class("evalm").Config.free_at_test
    assert not {"representatives", "shared"} & registry.method_class("retrieval").Config.free_at_test


def test_weights_are_found_by_their_name_and_by_their_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    for name in ("one", str(folder / "one")):
        weights = trained.find(name)
        assert weights is not None
        assert (weights.name, weights.file) == (name, path)
    assert trained.find("two") is None
    assert trained.find(str(folder)) is None
    monkeypatch.delenv(trained.FOLDERS)
    assert trained.find("one") is None
    assert trained.find(str(folder / "one")) is not None


def test_one_name_for_two_weights_is_refused_and_for_two_copies_is_not(folder: Path, monkeypatch: Any) -> None:
    trained_method = moved(method(N=32, weights="none"), 0.01)
    write(folder / "a" / "one", trained_method)
    write(folder / "b" / "one", trained_method)
    monkeypatch.setenv(trained.FOLDERS, f"{folder / 'a'}:{folder / 'b'}")
    assert trained.find("one") is not None
    write(folder / "c" / "one", moved(trained_method, 0.01))
    monkeypatch.setenv(trained.FOLDERS, f"{folder / 'a'}:{folder / 'c'}")
    with pytest.raises(UserError, match=r"names the weights in .* and .*: give the path of one of them"):
        trained.find("one")


def test_weights_are_known_by_the_digests_of_the_files_that_theirs_was_made_from(folder: Path) -> None:
    before = write(folder / "wide" / "one", moved(method(N=32, weights="none"), 0.01))
    digest = method(N=32, weights=before).weights_digest
    smaller(folder / "one", before)
    (weights,) = (shipped for shipped in trained.every() if shipped.name == "one")
    assert digest != weights.digest == method(N=32).weights_digest
    assert trained.by_digest()[digest] == trained.by_digest()[weights.digest] == weights
    file = weights.earlier(digest)
    assert file is not None
    assert (file.dtype, file.difference, file.bytes) == ("float16", 2e-4, before.stat().st_size)
    assert weights.earlier(weights.digest) is None
    assert weights.earlier(None) is None


def test_of_one_set_of_weights_in_more_and_in_fewer_bits_the_first_listed_is_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(folder / "z" / "one", moved(method(N=32, weights="none"), 0.01))
    small = smaller(folder / "a" / "one", before)
    for first, second in ((before, small), (small, before)):
        monkeypatch.setenv(trained.FOLDERS, f"{first.parents[1]}:{second.parents[1]}")
        weights = trained.find("one")
        assert weights is not None
        assert weights.file == first
        assert method(N=32).trained_weights == weights


def test_a_folder_with_the_name_of_a_method_is_named_by_its_path(folder: Path) -> None:
    write(folder / "longmem", moved(method(N=32, weights="none"), 0.01))
    assert str(folder / "longmem") in trained.names()
    assert "longmem" not in trained.names()


def test_a_method_says_which_weights_it_has(folder: Path, tmp_path: Path) -> None:
    trained_method = moved(method(N=32, weights="none"), 0.01)
    path = write(folder / "one", trained_method)
    for weights in ("auto", "one", path, folder / "one"):
        weights_of_name = method(N=32, K=8, weights=weights).trained_weights
        assert weights_of_name is not None
        assert weights_of_name.name == "one"
    settings = method(N=32, K=8).config.as_dict()
    assert weights_of_name.differing(settings, {}) == {"K": 64}
    assert weights_of_name.changed(settings, {}) == ["K"]
    assert method(N=32, weights="none").trained_weights is None
    digest = method(N=32).weights_digest
    assert trained.by_digest()[digest].name == "one"


def test_the_name_of_weights_may_stand_for_other_settings_than_the_training(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, M=512, weights="none"), 0.01), use={"M": 65536})
    weights = method(N=32).trained_weights
    assert weights is not None
    assert weights.differing(method(N=32).config.as_dict(), {}) == {"M": 512}
    assert weights.changed(method(N=32).config.as_dict(), {}) == []


def test_a_broken_card_takes_no_other_from_the_names(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    path = write(folder / "two", moved(method(N=32, weights="none"), 0.02))
    (path.parent / cards.CARD).write_text("{")
    names = [shipped.name for shipped in trained.every()]
    assert "one" in names
    assert "two" not in names
    with pytest.raises(UserError, match="is no card"):
        trained.find("two")


def test_an_unknown_name_of_weights_is_read_as_a_path(folder: Path) -> None:
    kind = registry.method_class("longmem")
    with pytest.raises(UserError, match="nowhere"):
        kind(backbones.load("tiny-gpt2", device="cpu"), kind.Config.parse({"weights": "nowhere"}))


def test_shipped_names_are_no_methods_and_one_is_recommended_for_each_method() -> None:
    shipped = [cards.read(path) for path in trained.SHIPPED.glob(f"*/{cards.CARD}")]
    assert not {path.name for path in trained.SHIPPED.iterdir()} & registry.methods().keys()
    recommended = [(card.method, card.backbone.digest) for card in shipped if card.recommended]
    assert len(set(recommended)) == len(recommended) > 0
    assert all("form" not in registry.method_class(name).Config.defaults() for name, _ in recommended)


def test_shipped_cards_declare_what_may_differ_and_name_settings_that_exist() -> None:
    for path in trained.SHIPPED.glob(f"*/{cards.CARD}"):
        card, config = cards.read(path), registry.method_class(cards.read(path).method).Config
        assert card.free is not None
        assert {*card.free, *card.use, *card.settings} <= config.defaults().keys()
        assert card.use.keys() <= set(card.free)
        told = json.loads(path.read_text())
        assert told["weights"]["digest"] == card.weights.digest
        assert told["corpus"]["licences"], path
        config.parse({**card.named, "weights": path.parent.name})
