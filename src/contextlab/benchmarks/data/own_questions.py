"""Questions in a table of the user's: the layouts that people have, read as contexts with all their questions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from contextlab.benchmarks.data import named_files
from contextlab.benchmarks.data.named_files import NamedFiles
from contextlab.benchmarks.data.tables import OwnRow, rows, whole_text, without_column
from contextlab.benchmarks.examples import Question, Reading
from contextlab.errors import UserError, check_known, short

Layout = Literal["auto", "ours", "kvpress", "longbench", "scbench"]
Columns = Mapping[str, str | list[str]]
Need = Literal["always", "if there", "never"]
"""Whether a row needs a question: `if there` says, if the first row has a column for it."""

OURS = {
    "context": "context",
    "file": "file",
    "question": "question",
    "answer": "answer",
    "options": "options",
    "id": "id",
}
LAYOUTS: dict[str, dict[str, str]] = {
    "ours": OURS,
    "kvpress": {**OURS, "prefix": "answer_prefix", "max_new_tokens": "max_new_tokens"},
    "longbench": {**OURS, "question": "input", "answer": "answers", "options": "all_classes", "id": "_id"},
    "scbench": {**OURS, "question": "input", "turns": "multi_turns"},
}
"""By layout, the column of every role."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True)
class QuestionColumns:
    """Where a table has what.

    Attributes:
        layout: that is read, or `auto`: the one that the fields of the first row tell.
        names: columns of roles that differ from the layout's; `options` may be several.
        cluster: column of the cluster; "" for none.
        choice: whether the answer is one of the options.
        question: whether a row needs one.
        lengths: whether rows say how long an answer may be.
    """

    layout: Layout = "auto"
    names: Columns = dataclasses.field(default_factory=dict)
    cluster: str = ""
    choice: bool = False
    question: Need = "always"
    lengths: bool = True


@dataclasses.dataclass(frozen=True)
class OwnQuestions:
    """What is in the tables of a user.

    Attributes:
        layout: of the tables.
        asks: whether there are questions.
        readings: contexts in the order of their first questions.
        digests: sha256 of every file that was read.
        left_out: paths of other files in the folder.
    """

    layout: str
    asks: bool
    readings: tuple[Reading, ...]
    digests: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Digest of all files: that of the only one, where it is one."""
        if len(self.digests) == 1:
            return self.digests[0]
        return hashlib.sha256("\n".join(self.digests).encode()).hexdigest()


def own_questions(files: NamedFiles, columns: QuestionColumns) -> OwnQuestions:
    """The questions of tables; rows with equal contexts are one reading.

    Raises:
        UserError: naming the row and the field that cannot be used; no row is left out.
    """
    reader = _Reader(columns)
    for path in files.files.values():
        for row in rows(path):
            reader.add(row)
    if not reader.contexts:
        raise UserError(f"{files.name} holds no questions: write a header and lines, or one JSON object a line.")
    digests = [named_files.digest(path) for path in (*files.files.values(), *reader.texts)]
    left_out = tuple(name for name in files.left_out if files.folder / name not in reader.texts)
    return OwnQuestions(reader.layout, reader.asks, tuple(reader.readings()), tuple(digests), left_out)


def told(row: OwnRow) -> str:
    """The layout that the fields of a row tell."""
    names = row.values.keys()
    if "multi_turns" in names:
        return "scbench"
    if {"input", "context", "answers"} <= names:
        return "longbench"
    return "kvpress" if {"answer_prefix", "max_new_tokens"} & names else "ours"


@dataclasses.dataclass
class _Context:
    where: str
    cluster: str | None
    questions: list[Question] = dataclasses.field(default_factory=list)


class _Reader:
    """Collects questions row by row.

    Attributes:
        layout: of the rows; "" before the first.
        asks: whether they have questions.
        contexts: by their text.
        texts: of files that rows name.
    """

    def __init__(self, columns: QuestionColumns) -> None:
        self.columns = columns
        self.layout = ""
        self.asks = False
        self.contexts: dict[str, _Context] = {}
        self.texts: dict[Path, str] = {}
        self._ids: dict[str, str] = {}

    def add(self, row: OwnRow) -> None:
        """Take the questions of one row.

        Raises:
            UserError: when it cannot be used.
        """
        if not self.layout:
            self._begin(row)
        text = self._context(row)
        cluster = row.text(self.columns.cluster) if self.columns.cluster else None
        context = self.contexts.setdefault(text, _Context(row.where, cluster))
        if context.cluster != cluster:
            raise row.fault(
                self.columns.cluster,
                f"is '{short(str(cluster))}', but {context.where} has '{short(str(context.cluster))}' for the same "
                "context: give a context one cluster",
            )
        if "turns" not in self.names:
            context.questions.append(self._question(row, self._identity(row, None), None))
            return
        for number, turn in enumerate(row.rows(self.names["turns"]), start=1):
            context.questions.append(self._question(turn, self._identity(row, number), number))

    def readings(self) -> Iterator[Reading]:
        """The contexts with their questions."""
        for number, (text, context) in enumerate(self.contexts.items(), start=1):
            work = f"text {number}" if context.cluster is None else context.cluster
            yield Reading(f"text {number}", work, text, tuple(context.questions))

    def _begin(self, row: OwnRow) -> None:
        self.layout = told(row) if self.columns.layout == "auto" else self.columns.layout
        layout = LAYOUTS[self.layout]
        check_known("role in columns", self.columns.names, layout)
        several = [role for role, name in self.columns.names.items() if isinstance(name, list) and role != "options"]
        if several:
            raise UserError(f"columns names several columns for {several[0]}: only options may have several.")
        if self.layout == "ours" and "answer" not in row.values and "answers" in row.values:
            layout = {**layout, "answer": "answers"}
        named = {role: name for role, name in self.columns.names.items() if isinstance(name, str)}
        self.names = {**layout, **named}
        needed = self.columns.question
        there = "turns" in self.names or self.names["question"] in row.values
        self.asks = needed == "always" or (needed == "if there" and there)
        self._check_columns(row)
        self.identified = self.names["id"] in row.values

    def _check_columns(self, row: OwnRow) -> None:
        of_files = self.names["file"] in row.values
        needed = [*([] if of_files else ["context"]), *(["question"] if self.asks else []), "answer"]
        if "turns" in self.names:
            needed = ["context", "turns"]
        for role in needed:
            if self.names[role] not in row.values:
                raise without_column(self.names[role], row, f'columns={{"{role}":"NAME"}}')

    def _context(self, row: OwnRow) -> str:
        column = self.names["file"]
        if self.names["context"] in row.values or column not in row.values:
            text = row.text(self.names["context"])
            # A prompt that follows kvpress or LongBench has the context's own line ends.
            return text.strip() if self.layout == "ours" else text
        path = row.file(column)
        if path not in self.texts:
            self.texts[path] = whole_text(path).strip()
        return self.texts[path]

    def _identity(self, row: OwnRow, turn: int | None) -> str:
        column = self.names["id"]
        suffix = "" if turn is None else f"/{turn}"
        identity = row.text(column) + suffix if self.identified else f"{len(self._ids) + 1}"
        if identity in self._ids:
            raise row.fault(column, f"is '{short(identity)}' as in {self._ids[identity]}: give every question its own")
        self._ids[identity] = row.where
        return identity

    def _question(self, row: OwnRow, identity: str, turn: int | None) -> Question:
        options = self._options(row)
        answers = (self._right(row, options),) if self.columns.choice else row.texts(self.names["answer"])
        prefix, most = self.names.get("prefix", ""), self.names.get("max_new_tokens", "")
        return Question(
            identity,
            self._question_text(row),
            answers,
            options,
            {} if turn is None else {"turn": turn},
            prefix=str(row.values[prefix]) if row.has(prefix) else "",
            max_new_tokens=row.number(most) if self.columns.lengths and row.has(most) else None,
        )

    def _question_text(self, row: OwnRow) -> str:
        column = self.names["question"]
        if not self.asks:
            if self.columns.question == "if there" and row.has(column):
                raise row.fault(column, "is not in the first row: give every row a question, or none")
            return ""
        # What comes before and after it is part of kvpress's prompts.
        return row.text(column) if self.layout == "kvpress" else row.text(column).strip()

    def _options(self, row: OwnRow) -> tuple[str, ...]:
        named = self.columns.names.get("options", self.names["options"])
        if isinstance(named, list):
            return tuple(row.text(column).strip() for column in named)
        if not row.has(named) and not self.columns.choice:
            return ()
        return tuple(option.strip() for option in row.texts(named))

    def _right(self, row: OwnRow, options: tuple[str, ...]) -> str:
        """The right option: its text, its letter, or its number from 0, which a number in JSON always is."""
        column = self.names["answer"]
        numbered = type(row.values.get(column)) is int
        if len(options) < 2 or len(set(options)) < len(options):
            raise row.fault(self.names["options"], "needs two options or more, all different: correct them")
        (answer, *more) = (text.strip() for text in row.texts(column))
        if more:
            raise row.fault(column, "holds several answers: name the one right option")
        if answer in options and not numbered:
            return answer
        place = LETTERS.find(answer) if len(answer) == 1 else -1
        if answer.isdecimal():
            place = int(answer[:9])
        if not 0 <= place < len(options):
            quoted = " (a text in quotes, as it is a number itself)" if answer in options else ""
            raise row.fault(
                column,
                f"is '{short(answer)}', which is no option: write the text of one, its letter, or its number from 0"
                f"{quoted}",
            )
        return options[place]
