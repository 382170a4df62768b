from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.backbone import load
from contextlab.benchmarks.data.noise import Noise, first_tokens, hidden, noise, placed, random_gaps, sentences
from contextlab.benchmarks.data.questions import estimated_tokens
from contextlab.errors import UserError

SENTENCES = [f"The {n}th lamp was lit again before the evening." for n in range(40)]
numbers = st.integers(0, 10**6)


def words(text: str) -> int:
    return len(text.split())


def pairs(text: str) -> int:
    """Tokens of a tokenizer that joins two characters, so that one more character may not be one more token."""
    return len(text.replace("th", "t").replace("la", "l").replace("am", "a"))


@pytest.mark.parametrize("count", [words, len, pairs])
@given(tokens=st.integers(60, 900), facts=st.integers(0, 5), seed=numbers)
def test_a_text_has_exactly_the_wanted_tokens(count: Callable[[str], int], tokens: int, facts: int, seed: int) -> None:
    sentences = [f"Fact {n}." for n in range(facts)]
    text = hidden(
        sentences, random_gaps(facts, random.Random(seed)), itertools.cycle(SENTENCES), tokens, count, " Who?"
    )
    short = tokens - count(text + " Who?")
    # One token is left where a space and a character are two, and two where a character joins the one before it.
    assert short == 0 if count is words else 0 <= short <= 2
    places = [text.index(fact) for fact in sentences]
    assert places == sorted(places)


@given(facts=st.lists(st.text("abc", min_size=1, max_size=3)), total=st.integers(0, 9), seed=numbers)
def test_facts_keep_their_order_and_nothing_is_lost(facts: list[str], total: int, seed: int) -> None:
    noise_of = [f"noise {n}" for n in range(total)]
    parts = placed(facts, random_gaps(len(facts), random.Random(seed))(total), noise_of)
    assert [part for part in parts if not part.startswith("noise")] == facts
    assert [part for part in parts if part.startswith("noise")] == noise_of


def test_facts_stand_in_every_gap_and_may_share_one() -> None:
    drawn = [random_gaps(2, random.Random(seed))(3) for seed in range(300)]
    assert {gap for gaps in drawn for gap in gaps} == {0, 1, 2, 3}
    assert any(first == second for first, second in drawn)
    assert all(first <= second for first, second in drawn)
    assert placed(["a", "b"], [0, 3], ["x", "y", "z"]) == ["a", "x", "y", "z", "b"]


@given(st.text("thlam ", max_size=40), st.integers(-2, 50), st.sampled_from([len, pairs, words]))
def test_no_longer_beginning_has_as_many_tokens(text: str, tokens: int, count: Callable[[str], int]) -> None:
    cut = first_tokens(text, tokens, count)
    counts = [count(text[:end].rstrip()) for end in range(len(text) + 1)]
    assert text.startswith(cut)
    assert count(cut) == max(number for number in counts if number <= max(tokens, 0))


def test_sentences_end_before_capital_letters_but_not_after_titles() -> None:
    text = 'He came\nat 3.5 o\'clock. "Is it?" she said. Mr. Smith left; Dr. No too.\nThe “end.” “Yes!” He went'
    expected = ["He came at 3.5 o'clock.", '"Is it?" she said.', "Mr. Smith left; Dr. No too.", "The “end.”", "“Yes!”"]
    assert sentences(text) == [*expected, "He went"]
    assert " ".join(sentences(text)) == " ".join(text.split())


def book_folder(root: Path, *texts: str) -> Path:
    folder = root / "pg19/test"
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_text(text)
    return root


def test_sentences_of_a_book_follow_each_other_from_a_random_place(tmp_path: Path) -> None:
    root = book_folder(tmp_path, " ".join(SENTENCES))
    filler = noise("auto", root)
    assert filler.about == "1 book of pg19"
    starts = set()
    for seed in range(60):
        sentences = list(itertools.islice(filler.sentences(random.Random(seed), lambda _: True), 3))
        start = SENTENCES.index(sentences[0])
        starts.add(start)
        assert sentences[: 40 - start] == SENTENCES[start : start + 3]
    assert len(starts) > 20


def test_unusable_sentences_are_left_out_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    filler = noise("pg19", book_folder(tmp_path, " ".join(SENTENCES), "Short. Too short."))
    sentences = itertools.islice(filler.sentences(random.Random(1), lambda text: "3" in text), 30)
    assert all("3" in sentence for sentence in sentences)
    with pytest.raises(UserError, match="No sentence of 2 books of pg19 is long enough to be used"):
        next(filler.sentences(random.Random(1), lambda _: False))


def test_books_have_a_digest_and_stories_are_used_without_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    first = noise("pg19", book_folder(tmp_path / "a", "One book."))
    assert first == noise("pg19", tmp_path / "a")
    assert first.sha256 != noise("pg19", book_folder(tmp_path / "b", "Another book.")).sha256
    assert noise("auto", None) == noise("auto", tmp_path) == noise("stories", tmp_path / "a")
    assert isinstance(noise("auto", None), Noise)
    assert estimated_tokens(" ".join(noise("stories", None).texts[0])) > 5_000
    for data, message in ((None, "There are no books of pg22 here"), (tmp_path, "There is no folder .*pg22/texts")):
        with pytest.raises(UserError, match=message):
            noise("pg22", data)
    (tmp_path / "empty/pg19/test").mkdir(parents=True)
    with pytest.raises(UserError, match="holds no books"):
        noise("auto", tmp_path / "empty")


def test_tokens_of_a_backbone_are_met() -> None:
    backbone = load("tiny-llama", device="cpu")

    def count(text: str) -> int:
        return len(backbone.encode(text))

    short = []
    for tokens in range(90, 150):
        text = hidden(["A fact."], lambda _: [1], itertools.cycle(SENTENCES), tokens, count)
        short.append(tokens - count(text))
    # This tokenizer gives a space its own token, and no text ends with a space.
    assert set(short) == {0, 1}
    assert short.count(0) > 45
