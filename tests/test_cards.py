"""Cards of trained weights: believed only beside their own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from damage import damaged, rounds
from toy_weights import method, moved, write

from contextlab import cards, seals, trained
from contextlab.cards import Card, short_count
from contextlab.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    return tmp_path


def test_weights_that_are_not_those_of_their_card_are_refused(folder: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    assert method(N=32, weights=path).card is not None
    moved(method(N=32, weights="none"), 0.5).save_weights(path)
    for weights in (path, path.parent, "auto"):
        with pytest.raises(UserError, match=r"is not the file that card\.json beside it describes"):
            method(N=32, weights=weights)
    other = folder / "other.safetensors"
    moved(method(N=32, weights="none"), 0.5).save_weights(other)
    assert method(N=32, weights=other).card is None


@pytest.mark.parametrize("with_card", [True, False])
def test_no_flipped_bit_of_weights_is_believed(with_card: bool, folder: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    if not with_card:
        (path.parent / cards.CARD).unlink()
    whole = path.read_bytes()
    for draw in rounds(20, salt="bits"):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(UserError, match=str(path)):
            method(N=32, weights=path)


def test_weights_that_change_afterwards_have_no_card(folder: Path) -> None:
    write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    loaded = method(N=32)
    assert loaded.card is not None
    assert moved(loaded, 0.1).card is None


def test_a_folder_stands_for_its_weights(folder: Path) -> None:
    path = write(folder / "one", moved(method(N=32, weights="none"), 0.01))
    assert cards.weights_file(folder / "one") == cards.weights_file(path) == path
    assert method(N=32, weights=folder / "one").config.as_dict()["weights"] == path


def test_narrow_weights_are_those_of_a_narrower_type(tmp_path: Path) -> None:
    trained_method = moved(method("evalm", W=32, c=8, weights="none"), 0.001)
    trained_method.save_weights(tmp_path / "narrow.safetensors", torch.float16)
    again = method("evalm", W=32, c=8, weights=tmp_path / "narrow.safetensors")
    for name, tensor in trained_method.learned.state_dict().items():
        assert torch.equal(again.learned.state_dict()[name], tensor.half().float())
    with torch.no_grad():
        next(trained_method.learned.parameters()).fill_(1e6)
    trained_method.save_weights(tmp_path / "wide.safetensors", torch.float16)
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
    assert all("is no card of trained weights" in sentence and "\n" not in sentence for sentence in sentences)


def test_no_change_of_a_sealed_card_is_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "one", method(N=32, weights="none")).parent / cards.CARD
    seals.write(path, {**json.loads(path.read_text()), "schema": 2})
    whole, card = path.read_bytes(), cards.read(path)
    assert card.cost.tokens == 5
    for draw in rounds(100, salt="sealed card"):
        path.write_bytes(damaged(whole, draw))
        if path.read_bytes() != whole:
            with pytest.raises(UserError, match="is no card of trained weights"):
                cards.read(path)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (999, "999"), (8192, "8.19k"), (200_000, "200k"), (1_200_000, "1.2M"), (26 * 10**9, "26G")],
)
def test_counts_are_short(count: int, words: str) -> None:
    assert short_count(count) == words
