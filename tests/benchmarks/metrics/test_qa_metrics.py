from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.benchmarks.metrics.qa import exact_match, f1, normalise, rouge_l_recall, shortest

WORDS = st.lists(st.sampled_from(["the", "a", "red", "blue", "Blue", "sea,", "1,000", "it's"]), max_size=8).map(
    " ".join
)
REFERENCES = st.lists(WORDS, min_size=1, max_size=4)


def test_they_equal_the_official_script(shared: Path) -> None:
    cases = json.loads((shared / "fixtures" / "hso_ga" / "squad_metrics.json").read_text())
    for case in cases:
        assert normalise(case["prediction"]) == case["normalized_prediction"]
        assert exact_match(case["prediction"], case["references"]) == case["em"]
        assert f1(case["prediction"], case["references"]) == pytest.approx(case["f1"], abs=1e-12)
    assert len(cases) == 12


@given(st.text(max_size=30))
def test_normalising_twice_changes_nothing_that_is_compared(text: str) -> None:
    assert exact_match(normalise(text), [text]) == 1.0


@given(WORDS, REFERENCES)
def test_scores_are_shares_and_a_match_has_all_of_them(prediction: str, answers: list[str]) -> None:
    assert 0 <= f1(prediction, answers) <= 1
    assert 0 <= rouge_l_recall(prediction, answers) <= 1
    if exact_match(prediction, answers) and normalise(prediction):
        assert f1(prediction, answers) == 1


@given(WORDS, REFERENCES, WORDS)
def test_another_reference_can_only_help(prediction: str, answers: list[str], more: str) -> None:
    for score in (exact_match, f1, rouge_l_recall):
        assert score(prediction, [*answers, more]) >= score(prediction, answers)
        assert score(prediction, answers) == max(score(prediction, [answer]) for answer in answers)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_its_own_definition(prediction: str, answer: str) -> None:
    assert f1(prediction, [answer]) == f1(answer, [prediction])
    a, b = normalise(prediction).split(), normalise(answer).split()
    same = sum((Counter(a) & Counter(b)).values())
    precision, recall = (same / max(len(a), 1), same / max(len(b), 1))
    expected = 2 * precision * recall / (precision + recall) if same else 0.0
    assert f1(prediction, [answer]) == pytest.approx(expected)


@given(st.text("ab c'1,\n", max_size=12), st.text("ab c'1,\n", max_size=12))
def test_rouge_is_the_longest_common_subsequence_over_the_length_of_the_answer(prediction: str, answer: str) -> None:
    _compare_with_all_subsequences(prediction, answer)


def test_rouge_counts_repeated_words_as_often_as_they_are_paired() -> None:
    texts = [" ".join(words) for size in range(5) for words in product("ab", repeat=size)]
    for prediction, answer in product(texts, texts):
        _compare_with_all_subsequences(prediction, answer)


def _compare_with_all_subsequences(prediction: str, answer: str) -> None:
    words, wanted = (re.findall("[a-z0-9]+", text.lower()) for text in (prediction, answer))
    kept = (part for size in range(len(wanted), 0, -1) for part in combinations(wanted, size))
    longest = next((len(part) for part in kept if _within(part, words)), 0)
    assert rouge_l_recall(prediction, [answer]) == pytest.approx(longest / max(len(wanted), 1))


def _within(part: tuple[str, ...], words: list[str]) -> bool:
    rest = iter(words)
    return all(word in rest for word in part)


def test_the_shortest_answer_is_the_first_of_the_shortest() -> None:
    assert shortest(["in Paris", "Rome", "Oslo"]) == ("Rome",)
    assert f1("in Paris", shortest(["in Paris", "Rome"])) == 0.0
