from __future__ import annotations

import math
import re
import string
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem import PorterStemmer

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.tasks.locomo import CATEGORIES, REFUSALS, LoCoMo, f1, stemmed_f1

STEMMER = PorterStemmer()
WORDS = st.lists(st.sampled_from(["hiking", "hikes", "the", "and", "dog", "Dogs,", "a", "-", "2022", ";", ","]))
TEXTS = WORDS.map(" ".join)


def question(category: str, answer: str) -> Question:
    return Question("q", "?", (answer,), details={"category": category})


def plain(prediction: str, answer: str) -> float:
    """F1 of stems by precision and recall, written down from the definition."""
    stem = STEMMER.stem

    def stems(text: str) -> Counter[str]:
        bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return Counter(stem(word) for word in re.sub(r"\b(a|an|the|and)\b", " ", bare).split())

    one, two = stems(prediction), stems(answer)
    same = sum((one & two).values())
    if not same:
        return 0.0
    precision, recall = same / sum(one.values()), same / sum(two.values())
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_stems_are_compared(prediction: str, answer: str) -> None:
    assert math.isclose(stemmed_f1(prediction, answer), plain(prediction, answer))


@pytest.mark.parametrize(
    ("category", "answer", "text", "value"),
    [
        ("single-hop", "hiking and camping", "camping, hikes", 1.0),
        ("temporal", "May 2022; June", "May 2022", 0.8),
        ("open-domain", "yes; she likes dogs", "Yes", 1.0),
        ("open-domain", "yes; no", "no", 0.0),
        ("multi-hop", "pottery, camping, painting", "painting, pottery", 2 / 3),
        ("multi-hop", "pottery, red dogs", "dog", 0.5 * 2 / 3),
        ("adversarial", REFUSALS[0], "That is not mentioned.", 1.0),
        ("adversarial", REFUSALS[0], "mentioned", 0.0),
    ],
)
def test_every_category_is_compared_as_upstream_does(category: str, answer: str, text: str, value: float) -> None:
    assert f1(text, question(category, answer)) == pytest.approx(value)


@settings(deadline=None)
@given(st.sampled_from(sorted(CATEGORIES.values())), TEXTS, TEXTS)
def test_f1_lies_between_0_and_1_and_a_list_is_the_mean_of_its_parts(category: str, text: str, answer: str) -> None:
    value = f1(text, question(category, answer))
    assert 0 <= value <= 1
    if category == "multi-hop":
        parts = [max(plain(one, part) for one in text.split(",")) for part in answer.split(",")]
        assert value == pytest.approx(sum(parts) / len(parts))


def test_the_first_measure_is_upstreams_and_squads_is_the_second() -> None:
    protocol: Any = LoCoMo().protocol("all")
    assert protocol.measures == ("f1", "f1_squad", "exact_match")
    entry = protocol.compare("dogs", question("single-hop", "the dog"))
    assert (entry["f1"], entry["f1_squad"], entry["exact_match"]) == (1.0, 0.0, 0.0)
