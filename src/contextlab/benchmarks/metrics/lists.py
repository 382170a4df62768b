"""Scores of answers that end with a list in brackets, as in LOFT's evaluation/rag.py and retrieval.py."""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics import qa

Score = Callable[[str, Question], float]


def listed(text: str) -> list[str]:
    """The items of the list in the first line that has one; none where it is no list of Python."""
    for line in text.replace("*", "").replace("`", "").strip().split("\n"):
        start, end = line.find("["), line.rfind("]")
        if start < 0 or end < 0:
            continue
        # An apostrophe within a word does not end a text.
        quoted = re.sub(r"([a-zA-Z0-9])'([a-zA-Z0-9])", r"\1\'\2", line[start : end + 1].strip())
        try:
            items = ast.literal_eval(quoted)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return []
        return [str(item) for item in items] if isinstance(items, list | tuple) else []
    return []


def listed_answer(text: str, question: Question) -> float:
    """1 when an answer occurs in the first item of the list, both normalised (`subspan_em`)."""
    items = [_normalise(item) for item in listed(text)[:1]]
    return float(any(_normalise(answer) in item for item in items for answer in question.answers))


def listed_all(text: str, question: Question) -> float:
    """1 when every answer has an item of its own that contains it or is contained in it (`subspan_em` of sets)."""
    from scipy import optimize

    items = [_normalise(item) for item in listed(text)]
    answers = [_normalise(answer) for answer in question.answers]
    alike = np.array([[answer in item or item in answer for item in items] for answer in answers])
    if not items:
        return 0.0
    rows, columns = optimize.linear_sum_assignment(alike, maximize=True)  # type: ignore[attr-defined]
    return float(alike[rows, columns].sum() == len(answers))


def recall(text: str, question: Question, most: int, whole: bool) -> float:
    """The share of the right texts among the first `most` of the list, or whether it holds as many as it can."""
    hits = len({item.strip() for item in listed(text)[:most]} & set(question.answers))
    return float(hits == min(most, len(question.answers))) if whole else hits / len(question.answers)


def recall_1(text: str, question: Question) -> float:
    """Recall of the first item (`recall@1`)."""
    return recall(text, question, 1, whole=False)


def recall_all_2(text: str, question: Question) -> float:
    """1 when the first two items are right, or hold all that is right (`mrecall@2`)."""
    return recall(text, question, 2, whole=True)


def recall_all_3(text: str, question: Question) -> float:
    """The same of three items (`mrecall@3`)."""
    return recall(text, question, 3, whole=True)


def recall_all_5(text: str, question: Question) -> float:
    """The same of five items (`mrecall@5`)."""
    return recall(text, question, 5, whole=True)


SCORES: tuple[Score, ...] = (listed_answer, listed_all, recall_1, recall_all_2, recall_all_3, recall_all_5)


def _normalise(text: str) -> str:
    return qa.normalise(unicodedata.normalize("NFD", text))
