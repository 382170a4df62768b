"""An audit of LoCoMo's answers (https://github.com/dial481/locomo-audit): `errors.json` beside the conversations."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from contextlab.benchmarks.data.sources import field, json_file, plain_or_packed
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.task import Dataset
from contextlab.errors import UserError

FILE = "errors.json"
AUDITED = "audited"
"""The detail of a question that holds the audit's answer; None where it finds the published one right."""
RIGHT_ANSWER = "WRONG_CITATION"
"""The finding that leaves the answer right."""
Answers = Mapping[tuple[str, str], str]
"""By question and published answer, the audit's answer, where the published one is wrong."""


def audited(dataset: Dataset, folder: Path) -> Dataset:
    """The conversations, in which every question has the answer of the audit as the detail `AUDITED`.

    Args:
        dataset: as published.
        folder: that holds the audit.

    Raises:
        UserError: when there is no audit of these questions, or it is broken.
    """
    path = plain_or_packed(folder / FILE)
    if path is None:
        raise UserError(f"There is no file {folder / FILE}: put the audit there, or leave errors= out.")
    answers, sha256 = _answers(path)
    readings = tuple(
        dataclasses.replace(reading, questions=tuple(_audited(question, answers) for question in reading.questions))
        for reading in dataset.examples
    )
    questions = [question for reading in readings for question in reading.questions]
    wrong = sum(question.details[AUDITED] is not None for question in questions)
    if not wrong:
        raise UserError(f"{path} names no question of the conversations: replace it with the audit of this data.")
    note = f"{dataset.note}; an audit finds the answers to {wrong} of {len(questions):,} questions wrong"
    both = hashlib.sha256(f"{dataset.sha256}\n{sha256}".encode()).hexdigest()
    return Dataset(readings, dataset.source, both, note)


def _answers(path: Path) -> tuple[Answers, str]:
    """The answers of an audit to the questions whose published answers are wrong, and its sha256."""
    findings, sha256 = json_file(path)
    if not isinstance(findings, list) or not findings:
        raise UserError(f"{path} holds no findings: replace the file with an intact copy.")
    answers = {}
    for number, finding in enumerate(findings, start=1):
        where = f"Finding {number} of {path}"
        if field(finding, "error_type", str, where) != RIGHT_ANSWER:
            question = field(finding, "question", str, where).strip()
            answers[question, str(finding.get("golden_answer"))] = field(finding, "correct_answer", str, where)
    return answers, sha256


def _audited(question: Question, answers: Answers) -> Question:
    answer = answers.get((question.text, question.answers[0]))
    return dataclasses.replace(question, details={**question.details, AUDITED: answer})
