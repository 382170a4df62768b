from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.benchmarks.protocols.similar import Similar

words = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "THE", "Cat,", "dog's", "don't", "dog", "é,é", "été"])
texts = st.lists(words, min_size=1, max_size=8).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_the_order_is_that_of_scikit_learns_vectors(indexed: list[str], text: str) -> None:
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = sklearn.TfidfVectorizer()
    try:
        vectors = vectorizer.fit_transform(indexed)
    except ValueError:  # no text has a word
        assert Similar(indexed).ranked(text) == list(range(len(indexed)))
        return
    cosines = (vectors @ vectorizer.transform([text]).T).toarray()[:, 0]
    expected = sorted(range(len(indexed)), key=lambda number: -round(float(cosines[number]), 9))
    assert [round(float(cosines[n]), 9) for n in Similar(indexed).ranked(text)] == [
        round(float(cosines[n]), 9) for n in expected
    ]


@settings(deadline=None)
@given(st.lists(texts, max_size=8), texts)
def test_every_text_is_ranked_once(indexed: list[str], text: str) -> None:
    assert sorted(Similar(indexed).ranked(text)) == list(range(len(indexed)))


def test_the_text_itself_comes_first_and_strangers_keep_their_order() -> None:
    similar = Similar(["one two", "three four", "two three four", "five six"])
    assert similar.ranked("Four, three!")[:2] == [1, 2]
    assert similar.ranked("seven") == [0, 1, 2, 3]


def test_rare_words_weigh_more() -> None:
    assert Similar(["film good", "film bad", "film odd", "odd plot"]).ranked("bad film")[0] == 1
    assert Similar(["common rare", "common", "common other"]).ranked("rare")[0] == 0
