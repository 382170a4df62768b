"""A corpus as tokens: those of direct tokenisation, kept once, with stable documents held back."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_corpus import corpus, corpus_of, folder, text, tiny

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.training.corpus import ABOUT, TOKENS, prepare


@pytest.mark.parametrize("vocabulary", [257, 2**17])
def test_the_stored_tokens_are_those_of_direct_tokenisation(
    vocabulary: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny()
    backbone.vocab_size = vocabulary
    built = corpus(tmp_path, monkeypatch, backbone)
    for n, entry in enumerate(built.documents):
        assert built.piece(n).tolist() == backbone.encode(text(n, 120 + 7 * n)) != []
        assert entry.name == f"books.txt#{n}"
    assert built.piece(2, 5, 9).tolist() == built.piece(2).tolist()[5:9]
    assert built.piece(2, 5, 10**6).tolist() == built.piece(2).tolist()[5:]


def test_a_corpus_is_tokenised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = corpus(tmp_path, monkeypatch)
    monkeypatch.setattr(Backbone, "encode", lambda *_: pytest.fail("tokenised again"))
    again = prepare(tmp_path / "texts", tiny())
    assert (again.key, again.documents) == (first.key, first.documents)
    assert np.array_equal(again.ids, first.ids)


def test_another_text_file_or_tokenizer_is_another_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = corpus(tmp_path, monkeypatch)
    (tmp_path / "texts" / "more.txt").write_text("more")
    second = prepare(tmp_path / "texts", tiny())
    assert second.key != first.key
    assert len(second.documents) == len(first.documents) + 1
    backbone = tiny()
    backbone.__dict__["tokenizer_digest"] = "other"
    assert prepare(tmp_path / "texts", backbone).key not in (first.key, second.key)


@pytest.mark.parametrize("damage", ["tokens", "about", "gone", "other", "bit"])
def test_a_file_in_the_cache_that_is_not_whole_is_made_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = corpus(tmp_path, monkeypatch)
    (kept,) = (tmp_path / "cache" / "corpora-2").glob("*")
    before = first.ids.tolist()
    if damage == "tokens":
        (kept / TOKENS).write_bytes((kept / TOKENS).read_bytes()[:-3])
    elif damage == "bit":
        content = bytearray((kept / ABOUT).read_bytes())
        content[len(content) // 2] ^= 1
        (kept / ABOUT).write_bytes(content)
    elif damage == "other":
        (kept / TOKENS).write_bytes(np.zeros_like(first.ids).tobytes())
    else:
        (kept / ABOUT).write_text('{"documents": 3') if damage == "about" else (kept / ABOUT).unlink()
    (tmp_path / "cache" / "corpora-2" / ".partial-x").mkdir()
    capsys.readouterr()
    assert prepare(tmp_path / "texts", tiny()).ids.tolist() == before
    assert ("is not what was written" in capsys.readouterr().err) == (damage != "gone")
    assert [path.name for path in (tmp_path / "cache" / "corpora-2").glob("*")] == [kept.name]


def test_what_fails_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.txt").write_bytes(b"fine\f\n")
    (tmp_path / "bad" / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"b\.txt is not UTF-8"):
        prepare(tmp_path / "bad", tiny())
    assert list((tmp_path / "cache" / "corpora-2").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b" \n\f\n\f\n"])
def test_a_corpus_without_text_is_one_sentence(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt holds no text"):
        prepare(tmp_path / "a.txt", tiny())


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set CONTEXTLAB_CACHE"):
        prepare(folder(tmp_path / "texts"), tiny())


def test_tokens_that_the_model_does_not_know_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone: Any = tiny()
    backbone.vocab_size = 20
    with pytest.raises(UserError, match="the model knows 20"):
        corpus(tmp_path, monkeypatch, backbone)


@pytest.mark.parametrize(("count", "least"), [(3, 2), (9, 2), (30, 6), (60, 12), (70, 12), (400, 12)])
def test_about_a_twentieth_is_held_back_and_at_least_twelve_or_a_fifth(count: int, least: int) -> None:
    built = corpus_of([10] * count)
    assert set(built.held_back) | set(built.training) == set(range(count))
    assert not set(built.held_back) & set(built.training)
    assert least <= len(built.held_back) <= max(least, 0.1 * count)


def test_documents_that_are_added_change_little_of_what_is_held_back() -> None:
    small, large = corpus_of([10] * 200), corpus_of([10] * 220)
    assert set(small.held_back) <= set(large.held_back)


def test_copies_of_a_held_back_text_are_not_trained_on() -> None:
    shas = [f"{n % 5:064x}" for n in range(10)]
    built = corpus_of([10] * 10, shas)
    held = {shas[n] for n in built.held_back}
    assert len(built.held_back) == len(held) == 2
    assert not held & {shas[n] for n in built.training}


def test_of_copies_one_end_is_held_back() -> None:
    shas = [f"{n % 2:064x}" for n in range(4)]
    few = corpus_of([100] * 4, shas).with_ends_held_back()
    assert [few.documents[n].sha256 for n in few.held_back] == [f"{sha256} end" for sha256 in shas[:2]]
    assert not {few.documents[n].sha256 for n in few.held_back} & {few.documents[n].sha256 for n in few.training}


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_documents_are_one_sentence(count: int) -> None:
    with pytest.raises(UserError, match=f"has {count} documents, and 2 are held back.*give at least 3"):
        corpus_of([10] * count).training  # noqa: B018


def test_texts_shorter_than_a_segment_are_one_sentence() -> None:
    built = corpus_of([9] * 8)
    built.check(9)
    with pytest.raises(UserError, match="has 9 tokens, fewer than a segment of 10: give longer texts, or --segment 9"):
        built.check(10)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_of_few_documents_the_ends_are_held_back(count: int) -> None:
    few = corpus_of([100] * count).with_ends_held_back()
    assert len(few.training) == len(few.held_back) == count
    for beginning, end in zip(few.training, few.held_back, strict=True):
        assert (few.documents[beginning].tokens, few.documents[end].tokens) == (80, 20)
        both = torch.cat((few.piece(beginning), few.piece(end))).tolist()
        assert both == list(range(both[0], both[0] + 100))
    many = corpus_of([100] * 5)
    assert many.with_ends_held_back() is many
    short = corpus_of([100, 5])
    assert short.with_ends_held_back() is short


def test_another_corpus_to_validate_on_leaves_the_whole_corpus_to_train_on() -> None:
    texts, other = corpus_of([10] * 9), corpus_of([10] * 3, [f"{n:063x}f" for n in range(3)])
    assert len(texts.beside(other).training) == 9
    assert len(dataclasses.replace(other, held="all").held_back) == 3
    with pytest.raises(UserError, match="9 texts of made are in made too, as d0: take them out"):
        texts.beside(texts)
