"""Suites of other projects: what a table in `suite_tables/` says of their tasks, and their files as readings."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.suite_records import LETTERS, READERS, RecordInputs, records
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import PLACES

SAMPLE_STORIES, SAMPLE_WORDS, SAMPLE_SEED = 4, 400, 51


@dataclasses.dataclass(frozen=True)
class SuiteTask:
    """One task of a suite.

    Attributes:
        name: of the task.
        about: one line of description.
        file: of its records, below the folder of the suite; `{task}` and `{length}` stand for name and length.
        reader: name of the function that takes the parts of a prompt from a record.
        prompt: text with `{context}` once; the part up to it is read before the questions.
        new_tokens: the most tokens of an answer.
        metric: name of a function of `metrics.suites`.
        id: field with the publisher's name of a record; "" for none.
        companions: files that the reader needs beside the records.
        chat: whether upstream asks in a chat template.
        first_line: whether only the first line of an answer counts.
        most: the most different questions that are taken; 0 for all.
        forms: further texts with placeholders, for the reader.
        lengths: by the names of lengths, the text in the names of files.
    """

    name: str
    about: str
    file: str
    reader: str
    prompt: str
    new_tokens: int
    metric: str
    id: str = ""
    companions: tuple[str, ...] = ()
    chat: bool = True
    first_line: bool = False
    most: int = 0
    forms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lengths: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def files(self, length: str = "") -> tuple[str, ...]:
        """The file of the records and those beside it, for a length."""
        named = {"{task}": self.name, "{length}": self.lengths.get(length, "")}
        return tuple(_filled(file, named) for file in (self.file, *self.companions))

    def worded(self, values: Mapping[str, str]) -> tuple[str, str]:
        """What is read before a question, and the question.

        White space between the two belongs to the first, so that a question alone begins with a word.

        Args:
            values: by placeholder.
        """
        named = {f"{{{place}}}": value for place, value in values.items()}
        head, _, tail = self.prompt.partition("{context}")
        after = _filled(tail, named)
        question = after.lstrip()
        return _filled(head, named) + values["context"] + after.removesuffix(question), question


@dataclasses.dataclass(frozen=True)
class SuiteTable:
    """A suite of tasks.

    Attributes:
        title: its name in notes.
        default: the task that is used when none is named.
        by: details of questions that the score is also reported for.
        tasks: by their names.
        groups: tasks that are also evaluated together, by the name of the group.
    """

    title: str
    default: str
    by: tuple[str, ...]
    tasks: Mapping[str, SuiteTask]
    groups: Mapping[str, tuple[str, ...]]

    def splits(self) -> dict[str, str]:
        """Names and descriptions of the tasks and of the groups."""
        groups = {name: f"{len(names)} tasks; the score is the mean over them" for name, names in self.groups.items()}
        return {name: task.about for name, task in self.tasks.items()} | groups

    def chosen(self, split: str) -> tuple[SuiteTask, ...]:
        """The tasks of a split."""
        return tuple(self.tasks[name] for name in self.groups.get(split, (split,)))


@functools.cache
def suite(name: str) -> SuiteTable:
    """The suite that a table of the package describes."""
    content = tomllib.loads((resources.files(__package__) / "suite_tables" / f"{name}.toml").read_text("utf-8"))
    fields = {field.name for field in dataclasses.fields(SuiteTask)}
    common = {key: value for key, value in content.items() if key in fields}
    tasks = {key: _task(key, common | row) for key, row in content["tasks"].items()}
    groups = {"all": tuple(tasks)} if len(tasks) > 1 and content.get("together") else {}
    for suffix, names in content.get("variants", {}).items():
        variants = {f"{key}_{suffix}": tasks[key] for key in names}
        tasks |= {key: dataclasses.replace(task, name=key) for key, task in variants.items()}
        groups[f"all_{suffix}"] = tuple(variants)
    return SuiteTable(content["title"], content["default"], tuple(content["by"]), tasks, groups)


def readings(task: SuiteTask, files: Sequence[Path]) -> tuple[Reading, ...]:
    """Every context of a task with all questions about it, in the order of the file.

    Args:
        task: of a suite.
        files: as `SuiteTask.files` names them.

    Raises:
        UserError: naming the record and the field that cannot be used.
    """
    read = READERS[task.reader](RecordInputs(task.prompt, task.forms, [list(records(path)) for path in files[1:]]))
    contexts: dict[str, list[Question]] = {}
    subjects: set[str] = set()
    for number, record in enumerate(records(files[0]), start=1):
        parts = read(record)
        if task.metric == "classes" and not parts.options:
            raise record.fault("all_classes", "holds no classes")
        subject = str(parts.details.get("cluster", number))
        if task.most and subject not in subjects and len(subjects) == task.most:
            continue
        subjects.add(subject)
        context, text = task.worded(parts.values)
        name = {"record_id": record.text(task.id)} if task.id else {}
        details = {"task": task.name, **name, **parts.details}
        question = Question(
            f"{task.name}/{number}", text, parts.answers, parts.options, details, max_new_tokens=task.new_tokens
        )
        contexts.setdefault(context, []).append(question)
    return tuple(
        Reading(f"{task.name}/text {n}", f"{task.name}/text {n}", context, tuple(questions))
        for n, (context, questions) in enumerate(contexts.items(), start=1)
    )


def sample(task: SuiteTask) -> tuple[Reading, ...]:
    """Generated stories in the words of a task: they show its prompt, and say nothing about the task."""
    stories = [story for story in sample_readings(SAMPLE_STORIES, SAMPLE_WORDS, SAMPLE_SEED) if story.questions]
    return tuple(_sample_reading(task, story) for story in stories)


def _sample_reading(task: SuiteTask, story: Reading) -> Reading:
    options = tuple(dict.fromkeys(question.answers[0] for question in story.questions))[: len(LETTERS)]
    values = dict.fromkeys(PLACES.findall(task.prompt), "")
    for letter, option in zip(LETTERS, options, strict=False):
        values |= {f"option_{letter.lower()}": option, f"choice_{letter}": option}
    details = {"task": task.name, **dict.fromkeys(("difficulty", "length", "domain", "ability"), "")}
    context, questions = "", {}
    for question, letter in zip(story.questions, LETTERS, strict=False):
        placeholders = dict.fromkeys(("input", "question", "query"), question.text)
        context, text = task.worded({**values, **placeholders, "context": story.context})
        questions[text] = dataclasses.replace(
            question,
            id=f"{task.name}/{question.id}",
            text=text,
            answers=(question.answers[0], letter),
            options=options,
            details=details,
            max_new_tokens=task.new_tokens,
        )
    name = f"{task.name}/{story.id}"
    return Reading(name, name, context, tuple(questions.values()))


def _task(name: str, row: Mapping[str, Any]) -> SuiteTask:
    return SuiteTask(name, **{**row, "companions": tuple(row.get("companions", ()))})


def _filled(text: str, named: Mapping[str, str]) -> str:
    """A text with its placeholders replaced; what is put in is not looked at again."""
    return PLACES.sub(lambda place: named.get(place[0], place[0]), text)
