"""Scores of a written answer against reference answers."""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

from contextlab.errors import UserError

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and superfluous white space, as SQuAD's script does."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 when the prediction equals an answer after normalising (SQuAD v1.1), else 0."""
    return float(normalise(prediction) in map(normalise, answers))


def f1(prediction: str, answers: Sequence[str]) -> float:
    """The best F1 of words after normalising, over the answers (SQuAD v1.1)."""
    return max(overlap_f1(normalise(prediction).split(), normalise(answer).split()) for answer in answers)


def rouge_l_recall(prediction: str, answers: Sequence[str]) -> float:
    """The best share of an answer's words that the prediction has in the same order (ROUGE-L recall, unstemmed)."""
    return max(_common(_words(prediction), _words(answer)) / max(len(_words(answer)), 1) for answer in answers)


def contains(prediction: str, answers: Sequence[str]) -> float:
    """1 when an answer occurs in the prediction, whatever the case, else 0."""
    return float(any(answer.lower() in prediction.lower() for answer in answers))


def contains_all(prediction: str, answers: Sequence[str]) -> float:
    """The share of the answers that occur in the prediction, whatever the case."""
    return sum(answer.lower() in prediction.lower() for answer in answers) / len(answers)


def rouge(kind: str, prediction: str, answers: Sequence[str]) -> float:
    """The best ROUGE (F measure of rouge-score, unstemmed) over the answers.

    Args:
        kind: `rouge1`, `rouge2` or `rougeL`.
        prediction: the written answer.
        answers: the references.

    Raises:
        UserError: without rouge-score.
    """
    scorer = _rouge_scorer()
    return float(max(scorer.score(answer, prediction)[kind].fmeasure for answer in answers))


def rouge_l(prediction: str, answers: Sequence[str]) -> float:
    """The best ROUGE-L over the answers, see `rouge`."""
    return rouge("rougeL", prediction, answers)


def shortest(answers: Sequence[str]) -> tuple[str]:
    """The shortest answer in characters (the first of several), the only reference in GenerativeAdapter's code."""
    return (min(answers, key=len),)


@functools.cache
def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UserError(f"rouge-l needs rouge-score ({error}): pip install 'contextlab[rouge]'.") from error
    return RougeScorer(["rouge1", "rouge2", "rougeL"])


def overlap_f1(predicted: Sequence[str], expected: Sequence[str]) -> float:
    """F1 of the words, or characters, that both have, each as often as the other allows."""
    same = (Counter(predicted) & Counter(expected)).total()
    return 2 * same / (len(predicted) + len(expected)) if same else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _common(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        before = row
        row = [0]
        for index, other in enumerate(second):
            row.append(before[index] + 1 if word == other else max(before[index + 1], row[index]))
    return row[-1]
