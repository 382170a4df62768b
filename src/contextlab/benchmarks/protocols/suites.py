"""Written answers to the questions of other suites, each compared as the code of its suite does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contextlab.benchmarks.data.suites import SuiteTask
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics import suites as metrics
from contextlab.benchmarks.metrics.estimates import proportion
from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm, Score, question_parts
from contextlab.benchmarks.task import Metric, Options, Part

SCORE = "score"


class SuiteProtocol(AnswerProtocol):
    """Read a context once, and write an answer of at most the task's tokens to each of its questions.

    The score is the mean over tasks of the means over their questions. The text that is compared is all that was
    written, white space at its ends included; of some tasks its first line.

    Args:
        tasks: of the suite, all that are evaluated.
        options: of the run.
        judge: scores of a user's function by its name, which come before the suite's own score.
        by: details of questions that the first measure is also reported for.
        wording: whether a question is plain text or a turn of the user.
        form: how the context stands before the question.
    """

    def __init__(
        self,
        tasks: Sequence[SuiteTask],
        options: Options,
        judge: Mapping[str, Score],
        by: Sequence[str],
        wording: Wording,
        form: ContextForm,
    ) -> None:
        self.tasks, self.by = {task.name: task for task in tasks}, by
        scores = {**judge, SCORE: self.score}
        super().__init__(("{text}", "{text}"), options, scores, wording=wording, form=form, ends=())
        prompts = dict.fromkeys(f"{task.prompt}\n\n{task.metric}, {task.new_tokens} tokens" for task in tasks)
        self.prompt = "\n\n".join([*prompts, self.prompt])

    def score(self, text: str, question: Question) -> float:
        """The score of the suite's own metric."""
        return metrics.SCORES[self.tasks[question.details["task"]].metric](text, question)

    def compare(self, written: str, question: Question) -> dict[str, Any]:
        """The written text, of some tasks its first line, and its scores."""
        first_line = self.tasks[question.details["task"]].first_line
        text = written.lstrip("\n").partition("\n")[0] if first_line else written
        return {"prediction": text, **{name: score(text, question) for name, score in self.scores.items()}}

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """The mean of every measure, and of the first one for each value of a detail that has several."""
        metrics = {name: proportion(_parts(records, name)) for name in self.measures}
        first = _parts(records, self.measures[0])
        for detail in self.by:
            values = [entry[detail] for record in records for entry in record["questions"]]
            for value in dict.fromkeys(values) if len(set(values)) > 1 else ():
                chosen = [part for group, part in zip(values, first, strict=True) if group == value]
                metrics[f"{self.measures[0]}_{value}"] = proportion(chosen)
        return metrics

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """One part per question, whose stratum is its task."""
        return {self.measures[0]: _parts([record], self.measures[0])}


def _parts(records: Sequence[dict[str, Any]], measure: str) -> list[Part]:
    tasks = [entry["task"] for record in records for entry in record["questions"]]
    return [part._replace(stratum=task) for task, part in zip(tasks, question_parts(records, measure), strict=True)]
