"""What several methods answer to the same questions about one text, side by side, with what it costs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from contextlab import harmless
from contextlab.benchmarks.examples import Question

if TYPE_CHECKING:
    import pandas

LOGPROB = "logprob_per_token"
COSTS = {
    "TFLOPs contextualize": ("contextualize", "flops", 1e12),
    "TFLOPs query": ("query", "flops", 1e12),
    "state MiB": ("state", "bytes", 2**20),
    "seconds contextualize": ("contextualize", "seconds", 1),
    "seconds query": ("query", "seconds", 1),
}
"""By heading: phase or state, the field there, and the unit."""


@dataclasses.dataclass(frozen=True)
class MethodAnswers:
    """What one method answers, and what it costs.

    Attributes:
        method: its label, as in tables.
        answers: to every question.
        logprobs: log-probability per token of every right answer, in nats; None where a question has none.
        cost: `contextualize`, `query` (all answers together) and `state`, with the fields of stored runs.
    """

    method: str
    answers: tuple[str, ...]
    logprobs: tuple[float | None, ...]
    cost: dict[str, dict[str, Any]]

    @property
    def costs(self) -> list[float | None]:
        """The numbers of `COSTS`; None for a phase without a call."""
        values = [(self.cost.get(part, {}).get(field), unit) for part, field, unit in COSTS.values()]
        return [None if value is None else value / unit for value, unit in values]


@dataclasses.dataclass(frozen=True, repr=False)
class SideBySide:
    """The answers of several methods to the same questions: a table in a notebook, and text elsewhere.

    Attributes:
        questions: each with its right answer, where it has one.
        methods: what every method answers.
    """

    questions: tuple[Question, ...]
    methods: tuple[MethodAnswers, ...]

    def to_pandas(self) -> pandas.DataFrame:
        """A row for every question and method: `question`, `expected`, `method`, `answer`, `logprob_per_token`."""
        import pandas

        rows = [
            (question.text, *(question.answers or (None,)), own.method, own.answers[number], own.logprobs[number])
            for number, question in enumerate(self.questions)
            for own in self.methods
        ]
        return pandas.DataFrame(rows, columns=["question", "expected", "method", "answer", LOGPROB])

    def costs(self) -> pandas.DataFrame:
        """A row for every method: FLOPs and seconds of the context and of all answers together, and bytes of the state.

        Scoring the right answers is not counted.
        """
        import pandas

        rows = [own.costs for own in self.methods]
        return pandas.DataFrame(rows, index=[own.method for own in self.methods], columns=[*COSTS])

    def __repr__(self) -> str:
        answers = self.to_pandas().map(_shown).drop(columns="question")
        blocks = []
        for number, question in enumerate(self.questions):
            here = answers.iloc[number * len(self.methods) : (number + 1) * len(self.methods)]
            expected = f" ({question.answers[0]})" if question.answers else ""
            here = here.drop(columns=["expected", *([] if question.answers else [LOGPROB])])
            blocks.append(f"{harmless.line(question.text + expected)}\n{_text(here.set_index('method'))}")
        return "\n\n".join([*blocks, _text(self.costs().map(_shown).rename(index=harmless.line))])

    def _repr_html_(self) -> str:
        """Two tables with a column for every method: answers, and costs; all texts are escaped."""
        import pandas

        scored = any(question.answers for question in self.questions)
        parts = ["answer", LOGPROB] if scored else ["answer"]
        rows = [
            [part for own in self.methods for part in (own.answers[number], own.logprobs[number])[: len(parts)]]
            for number in range(len(self.questions))
        ]
        keys = [(question.text, *(question.answers or ("",)))[: len(parts)] for question in self.questions]
        names = ["question", "expected"][: len(parts)]
        index = pandas.MultiIndex.from_tuples([tuple(map(_shown, key)) for key in keys], names=names)
        columns = pandas.MultiIndex.from_tuples([(_shown(own.method), part) for own in self.methods for part in parts])
        return _html(pandas.DataFrame(rows, index, columns)) + _html(self.costs().rename(index=_shown).T)


def _shown(value: object) -> str:
    """A text or a number for one line."""
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else harmless.line(value)


def _text(frame: pandas.DataFrame) -> str:
    return str(frame.rename_axis(index=None).to_string())


def _html(frame: pandas.DataFrame) -> str:
    import pandas

    # By default pandas cuts long texts off.
    with pandas.option_context("display.max_colwidth", None):
        return str(frame.map(_shown).to_html(border=0, escape=True, sparsify=True))
