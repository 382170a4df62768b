"""The cost of a context that is read once, and of the questions that are asked about it."""

from __future__ import annotations

import dataclasses
import math

ALWAYS, NEVER = 0.0, math.inf


@dataclasses.dataclass(frozen=True)
class Line:
    """What one context and its questions cost: a straight line over the number of questions.

    Attributes:
        context: cost of reading the context.
        question: cost of one question.
    """

    context: float
    question: float

    def total(self, questions: float) -> float:
        """The cost of a context with so many questions."""
        return self.context + questions * self.question

    def each(self, questions: float) -> float:
        """The same for each of the questions."""
        return self.context / questions + self.question

    def meets(self, other: Line) -> float | None:
        """The number of questions at which both cost the same; None where one is cheaper for every number."""
        more, saved = self._beside(other)
        return more / saved if saved and more / saved > 0 else None

    def cheaper_from(self, other: Line) -> float:
        """The number of questions from which this costs less than the other.

        `ALWAYS` where it does so for any number of them, `NEVER` where it does not from any number on.
        """
        more, saved = self._beside(other)
        if saved > 0:
            return max(more / saved, ALWAYS)
        return ALWAYS if saved == 0 and more < 0 else NEVER

    def _beside(self, other: Line) -> tuple[float, float]:
        """What the context costs more than the other's, and what every question saves."""
        return self.context - other.context, other.question - self.question
