"""Cards of trained weights: found where they fit, nowhere else, and believed only beside their own file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import damaged, rounds

from contextlab import backbone as backbones
from contextlab import cards, registry
from contextlab.cards import Card, short_count
from contextlab.errors import UserError
from contextlab.method import AnyMethod

BACKBONE = backbones.load("tiny-gpt2", device="cpu")
SHIPPED_BYTES, ALL_BYTES = 8 * 2**20, 32 * 2**20


def method(name: str = "longmem", backbone: Any = BACKBONE, **settings: Any) -> AnyMethod:
    kind = registry.method_class(name)
    return kind(backbone, kind.Config.parse(settings))


def write(folder: Path, trained: AnyMethod, tokens: int = 5, **changed: Any) -> Path:
    """Trained weights with their card, as a run leaves them."""
    import hashlib

    folder.mkdir(parents=True)
    path = folder / cards.FILE
    trained.save_weights(path)
    card = {
        "schema": 1,
        "method": "longmem",
        "kind": type(trained).__name__,
        "label": "longmem",
        "settings": {key: value for key, value in trained.config.as_dict().items() if key != "weights"},
        "backbone": {"name": "tiny-gpt2", "digest": trained.backbone.digest},
        "weights": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size},
        "cost": {"flops": 7, "peak_bytes": None, "seconds": 2.5, "tokens": tokens},
        **changed,
    }
    (folder / cards.CARD).write_text(json.dumps(card))
    return path


def moved(one: AnyMethod, by: float) -> AnyMethod:
    assert one.learned is not None
    with torch.no_grad():
        for parameter in one.learned.parameters():
            parameter.add_(by)
    return one


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cards.FOLDERS, str(tmp_path))
    return tmp_path


def test_weights_that_fit_are_found_and_told_of(folder: Path) -> None:
    trained = moved(method(N=32, weights="none"), 0.01)
    write(folder / "one", trained)
    found = method(N=32)
    assert (found.untrained, found.weights_digest) == (False, trained.weights_digest)
    assert found.card is not None
    assert (found.card.cost.tokens, found.card.cost.flops) == (5, 7)
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


def test_a_folder_of_weights_may_be_named_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    monkeypatch.setenv(cards.FOLDERS, f"/nowhere:{folder / 'one'}")
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


def test_a_card_is_believed_only_beside_its_own_weights(folder: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    assert method(N=32, weights=path).card is not None
    moved(method(N=32, weights="none"), 0.5).save_weights(path)
    assert method(N=32, weights=path).card is None
    other = folder / "other.safetensors"
    moved(method(N=32, weights="none"), 0.5).save_weights(other)
    assert method(N=32, weights=other).card is None


def test_weights_that_change_afterwards_have_no_card(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    found = method(N=32)
    assert found.card is not None
    assert moved(found, 0.1).card is None


def test_a_folder_stands_for_its_weights(folder: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    assert cards.weights_file(folder / "one") == cards.weights_file(path) == path
    assert method(N=32, weights=folder / "one").config.as_dict()["weights"] == path


def test_narrow_weights_are_those_of_a_narrower_type(tmp_path: Path) -> None:
    one = moved(method("evalm", W=32, c=8, weights="none"), 0.001)
    one.save_weights(tmp_path / "narrow.safetensors", torch.float16)
    again = method("evalm", W=32, c=8, weights=tmp_path / "narrow.safetensors")
    for name, tensor in one.learned.state_dict().items():
        assert torch.equal(again.learned.state_dict()[name], tensor.half().float())
    with torch.no_grad():
        next(one.learned.parameters()).fill_(1e6)
    one.save_weights(tmp_path / "wide.safetensors", torch.float16)
    wide = method("evalm", W=32, c=8, weights=tmp_path / "wide.safetensors")
    assert float(next(wide.learned.parameters()).detach().max()) == 1e6


def test_a_state_belongs_to_its_weights_however_they_were_named(folder: Path, tmp_path: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    auto, named, none = (method(N=32, weights=weights) for weights in ("auto", path, "none"))
    auto.read(auto.start(), torch.arange(50)[None])[0].save(tmp_path / "state")
    named.load_state(tmp_path / "state")
    with pytest.raises(UserError, match="its weights differ"):
        none.load_state(tmp_path / "state")


def test_damaged_cards_are_read_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one", method(N=32, weights="none")).parent / cards.CARD
    whole, sentences = path.read_bytes(), list[str]()
    for draw in rounds(60, salt="card"):
        path.write_bytes(damaged(whole, draw))
        try:
            assert isinstance(cards.read(path), Card)
        except UserError as error:
            sentences.append(str(error))
    assert sentences
    assert all("is no card of trained weights" in one and "\n" not in one for one in sentences)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (999, "999"), (8192, "8.19k"), (200_000, "200k"), (1_200_000, "1.2M"), (26 * 10**9, "26G")],
)
def test_counts_are_short(count: int, words: str) -> None:
    assert short_count(count) == words


def test_shipped_weights_are_small_and_whole() -> None:
    shipped = [path for path in cards.SHIPPED.rglob("*") if path.is_file()]
    weights = [path for path in shipped if path.suffix == ".safetensors"]
    assert all(path.stat().st_size <= SHIPPED_BYTES for path in weights)
    assert sum(path.stat().st_size for path in shipped) <= ALL_BYTES
    assert all(cards.beside(path) is not None for path in weights)
