"""RULER's prompts and its string match."""

from __future__ import annotations

import re
from typing import Any

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics import qa
from contextlab.benchmarks.metrics.estimates import proportion
from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm
from contextlab.benchmarks.task import Metric, Options, Part

MEASURE = "string_match"
CONTROL = re.compile(r"[\x00-\x1f]")
"""Characters that upstream's evaluation replaces by line ends."""


class RulerProtocol(AnswerProtocol):
    """The parts of a prompt follow each other as they are; the answer is all that is written.

    Args:
        options: of the run.
        wording: whether the prompt is plain text or uses the backbone's chat template.
    """

    def __init__(self, options: Options, wording: Wording) -> None:
        text = "{text}"
        super().__init__(
            (text, text),
            options,
            {MEASURE: string_match},
            wording=wording,
            bare=text,
            form=ContextForm(separator=""),
            ends=(),
        )

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """The mean over tasks of the mean over samples, and where there are several tasks that of each."""
        parts = [part for record in records for part in self.parts(record)[MEASURE]]
        tasks = dict.fromkeys(part.stratum for part in parts)
        single = {f"{MEASURE}_{task}": [part for part in parts if part.stratum == task] for task in tasks}
        metrics = {MEASURE: parts} | (single if len(tasks) > 1 else {})
        return {name: proportion(chosen) for name, chosen in metrics.items()}

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """A part for each question: tasks have equal weight, and a sample is a cluster."""
        entries = record["questions"]
        return {MEASURE: [Part(entry[MEASURE], 1.0, record["work"], entry["task"]) for entry in entries]}


def string_match(text: str, question: Question) -> float:
    """The share of the answers that occur in a text; of RULER's questions about documents, whether any does.

    As upstream's `scripts/eval/synthetic/constants.py`.
    """
    text = CONTROL.sub("\n", text.strip()).strip()
    match = qa.contains if str(question.details["task"]).startswith("qa") else qa.contains_all
    return match(text, question.answers)
