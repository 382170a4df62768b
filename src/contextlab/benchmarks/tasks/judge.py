"""A user's function that scores written answers: a metric of one's own, or a model that judges."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

from contextlab import foreign_code
from contextlab.benchmarks.examples import Question
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import Score


def own_scores(metric: str) -> dict[str, Score]:
    """The score of a user's function, by the name of the function.

    The function takes the answer that was written and the list of right answers. One that has a parameter `question`
    is also given the question, with its text and its details.

    Args:
        metric: as path.py:function.

    Raises:
        UserError: when there is none, and from the score when it fails or gives no number from 0 to 1.
    """
    function = foreign_code.attribute("metric", metric, "function")
    if not callable(function):
        raise UserError(f"{metric} is no function: name one of a prediction and a list of answers.")
    asks = "question" in inspect.signature(function).parameters

    @functools.wraps(function)  # whose module is part of the code of a run
    def score(text: str, question: Question) -> float:
        with foreign_code.foreign(f"{metric} fails on the answer to '{question.id}'", "correct the function"):
            more = {"question": question} if asks else {}
            value = float(function(text, list(question.answers), **more))
            if not 0 <= value <= 1:  # not a number is not either
                raise ValueError(f"it gives {value}, which is not between 0 and 1")
        return value

    return {metric.rpartition(":")[2]: score}
