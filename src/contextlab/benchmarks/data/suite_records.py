"""Records of other projects' suites: the fields of their files as parts of a prompt, answers and details."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contextlab.benchmarks.data.sources import SURROGATE, json_file, lines, parse_json
from contextlab.benchmarks.prompts import PLACES
from contextlab.errors import UserError, short

LETTERS = "ABCD"
LONGBENCH_E = ((4_000, "0-4k"), (8_000, "4-8k"))
"""Lengths below which a text belongs to a group of LongBench-E; all longer ones are `8k+`."""
CALL = re.compile(r"(func_\d+)\(-?\d+\)")
NUMBERED = re.compile(r"The .+ of")
DEMONSTRATIONS = 2
START = "====== Now let's start! ======\n"


class SuiteRecord(NamedTuple):
    """A JSON object of a file, and the words that say where it stands."""

    where: str
    values: Mapping[str, Any]

    def text(self, name: str, empty: bool = False) -> str:
        """The text in a field; a number as JSON writes it.

        Args:
            name: of the field.
            empty: whether a text may be empty.

        Raises:
            UserError: when there is none.
        """
        value = self.values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return json.dumps(value)
        if not isinstance(value, str) or not (value.strip() or empty) or SURROGATE.search(value):
            raise self.fault(name, "holds no text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a list in a field, or the only one.

        Raises:
            UserError: when there are none, or one of them is no text.
        """
        value = self.values.get(name)
        items = value if isinstance(value, list) else [value]
        if not items:
            raise self.fault(name, "is an empty list")
        return tuple(SuiteRecord(self.where, {name: item}).text(name) for item in items)

    def items(self, name: str) -> list[SuiteRecord]:
        """The JSON objects of a list in a field.

        Raises:
            UserError: when it holds anything else.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.fault(name, "holds no list of objects")
        where = f"Item {{}} in '{name}' of {self.where[0].lower()}{self.where[1:]}"
        return [SuiteRecord(where.format(number), item) for number, item in enumerate(value, start=1)]

    def fault(self, name: str, reason: str) -> UserError:
        """The sentence for a field that cannot be used."""
        return UserError(f"{self.where}: field '{short(name)}' {reason}: replace the file with an intact copy.")


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a record says of one question.

    Attributes:
        values: texts by the placeholders of the prompt.
        answers: the right answers, as the metric of the task takes them.
        options: the answers or classes to choose from.
        details: stored with the result.
    """

    values: Mapping[str, str]
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class RecordInputs(NamedTuple):
    """What a reader knows beside a record.

    Attributes:
        prompt: of the task.
        forms: further texts with placeholders.
        companions: the records of the files beside.
    """

    prompt: str
    forms: Mapping[str, str]
    companions: Sequence[Sequence[SuiteRecord]]

    @property
    def places(self) -> list[str]:
        """The placeholders of the prompt."""
        return PLACES.findall(self.prompt)


Read = Callable[[SuiteRecord], Parts]


def records(path: Path) -> Iterator[SuiteRecord]:
    """The records of a file: one JSON object a line, or a list of them in a file that ends in `.json`.

    Raises:
        UserError: when the file cannot be read, naming the line, or holds no record.
    """
    if path.name.removesuffix(".gz").endswith(".json"):
        content, _ = json_file(path)
        listed = content if isinstance(content, list) else [content]
        numbered: Iterator[tuple[str, Any]] = (
            (f"Record {number} of {path}", value) for number, value in enumerate(listed, start=1)
        )
    else:
        numbered = _json_lines(path)
    empty = True
    for where, value in numbered:
        empty = False
        if not isinstance(value, dict):
            raise UserError(f"{where} is no JSON object: replace the file with an intact copy.")
        yield SuiteRecord(where, value)
    if empty:
        raise UserError(f"{path} holds no records: replace the file with an intact copy.")


def _json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, (where, line) in enumerate(lines(path), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise UserError(f"{where} is not UTF-8: replace the file with an intact copy.") from None
        if text.strip():
            yield where, parse_json(text, path, number)


def _longbench(inputs: RecordInputs) -> Read:
    """LongBench: `context`, `input`, `answers`, in classification `all_classes`; `length` in words or characters."""
    asks = "input" in inputs.places

    def read(record: SuiteRecord) -> Parts:
        values = {"context": record.text("context"), "input": record.text("input") if asks else ""}
        classes = record.texts("all_classes") if record.values.get("all_classes") else ()
        length = record.values.get("length")
        if not isinstance(length, int):
            raise record.fault("length", "holds no number")
        group = next((name for most, name in LONGBENCH_E if length < most), "8k+")
        return Parts(values, record.texts("answers"), classes, {"length": group})

    return read


def _longbench_v2(inputs: RecordInputs) -> Read:
    """LongBench v2: `context`, `question`, `choice_A` to `choice_D`; `answer` is a letter."""
    places = inputs.places

    def read(record: SuiteRecord) -> Parts:
        values = {place: record.text(place).strip() for place in places}
        answer = record.text("answer").strip()
        if answer not in tuple(LETTERS):
            raise record.fault("answer", "is none of the letters A, B, C and D")
        options = tuple(values[f"choice_{letter}"] for letter in LETTERS)
        details = {name: record.text(name) for name in ("domain", "sub_domain", "difficulty", "length")}
        return Parts(values, (answer,), options, details)

    return read


def _infinitebench(inputs: RecordInputs) -> Read:
    """InfiniteBench: `context`, `input`, `answer`, in tasks with options `options`.

    As in upstream's code, an option is asked for by its letter, the call of a function stands in `input`, and a number
    is announced by the words of `input` in front of the list.
    """
    places = inputs.places

    def read(record: SuiteRecord) -> Parts:
        values = {"context": record.text("context"), "input": record.text("input") if "input" in places else ""}
        answers = record.texts("answer")
        if "prefix" in places:
            numbered = NUMBERED.search(values["input"])
            if not numbered:
                raise record.fault("input", "does not say which number it asks for")
            values["prefix"] = f"What is {numbered[0].lower()[:-3]} in the following list?"
        if "func" in places:
            call = CALL.search(record.text("input"))
            if not call:
                raise record.fault("input", "holds no call of a function")
            values |= {"func": call[1], "func_call": call[0]}
        if "option_a" not in places:
            return Parts(values, answers)
        options = record.texts("options")
        if len(options) != len(LETTERS) or answers[0] not in options:
            raise record.fault("options", "holds no four texts with the answer among them")
        values |= {f"option_{letter.lower()}": option for letter, option in zip(LETTERS, options, strict=True)}
        return Parts(values, (answers[0], LETTERS[options.index(answers[0])]), options)

    return read


def _longmemeval(record: SuiteRecord) -> Parts:
    """LongMemEval: sessions with dates as one transcript in the order of their dates, as upstream writes them in words.

    Five abilities: the three kinds of a single session are information extraction, and a question whose id ends in
    `_abs` asks for abstention.
    """
    sessions, dates = record.values.get("haystack_sessions"), record.texts("haystack_dates")
    if not isinstance(sessions, list) or len(sessions) != len(dates):
        raise record.fault("haystack_sessions", "holds not as many sessions as there are dates")
    dated = sorted(zip(dates, range(len(dates)), strict=True))
    history = "".join(
        f"\n### Session {n}:\nSession Date: {date}\nSession Content:\n{_turns(record, sessions[index])}\n"
        for n, (date, index) in enumerate(dated, start=1)
    )
    kind = record.text("question_type")
    ability = "information-extraction" if kind.startswith("single-session") else kind
    if record.text("question_id").endswith("_abs"):
        ability = "abstention"
    values = {name: record.text(name) for name in ("question", "question_date")}
    details = {"question_type": kind, "ability": ability}
    return Parts({"context": history, **values}, (record.text("answer"),), (), details)


def _turns(record: SuiteRecord, session: Any) -> str:
    if not session:
        return ""
    turns = SuiteRecord(record.where, {"haystack_sessions": session}).items("haystack_sessions")
    return "".join(f"\n\n{turn.text('role')}: {turn.text('content', empty=True).strip()}" for turn in turns)


def _helmet_documents(inputs: RecordInputs) -> Read:
    """HELMET's questions over passages: `question`, `answers`, `ctxs` with `title` and `text`, and a file of such.

    Demonstrations are two neighbours in that file, from a place that depends on the question.
    """
    shown = list({record.text("question"): record for record in inputs.companions[0]}.values())

    def read(record: SuiteRecord) -> Parts:
        question = record.text("question")
        others = [other for other in shown if other.values["question"] != question]
        start = int(hashlib.sha256(question.encode()).hexdigest(), 16) % max(len(others), 1)
        chosen = [*others[start:], *others][:DEMONSTRATIONS]
        demos = "".join(
            f"{_passages(other)}\n\nQuestion: {other.text('question')}\nAnswer: {other.texts('answers')[0]}\n\n"
            for other in chosen
        )
        values = {"context": _passages(record), "demos": demos, "question": question}
        return Parts(values, record.texts("answers"), (), {"cluster": question})

    return read


def _passages(record: SuiteRecord) -> str:
    passages = record.items("ctxs")
    return "\n\n".join(f"Document (Title: {part.text('title', empty=True)}): {part.text('text')}" for part in passages)


def _helmet_json_kv(record: SuiteRecord) -> Parts:
    """HELMET's JSON: `context`, `question` (the key), `answer`, and `demos`, pairs of a key and its value."""
    pairs = record.values.get("demos")
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise record.fault("demos", "holds no list of keys and values")
    demos = "".join(f"Key: {key}\nCorresponding value: {value}\n\n" for key, value in pairs[:DEMONSTRATIONS])
    values = {"context": record.text("context"), "demos": demos, "question": record.text("question")}
    return Parts(values, record.texts("answer"), (), {"cluster": values["question"]})


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


def _loft(inputs: RecordInputs) -> Read:
    """LOFT: `query_text`, `answers`, and of the collection `pid`, `title_text`, `passage_text`.

    Texts have the numbers of their places; in retrieval these are the answers. The context is the collection with the
    demonstrations after it, each with the texts that `metadata.qrels` names, as upstream writes them.
    """
    corpus, few = inputs.companions
    numbers = {record.text("pid"): str(number) for number, record in enumerate(corpus)}
    texts = [
        {"id": str(number), "title": record.text("title_text", empty=True).strip() or "None",
         "passage": record.text("passage_text", empty=True).strip()}
        for number, record in enumerate(corpus)
    ]  # fmt: skip
    question = inputs.prompt.partition(START)[2]

    def places(record: SuiteRecord, pairs: Any, field: str) -> list[str]:
        """The numbers of the texts that pairs of a name and a 1 name."""
        named = [str(pair[0]) for pair in pairs if isinstance(pair, list) and pair] if isinstance(pairs, list) else []
        if not named or not numbers.keys() >= set(named):
            raise record.fault(field, "names texts that are not in corpus.jsonl")
        return [numbers[name] for name in named]

    def answers(record: SuiteRecord) -> tuple[str, ...]:
        right = record.values.get("answers")
        if isinstance(right, list) and any(isinstance(item, list) for item in right):
            return tuple(places(record, right, "answers"))
        return record.texts("answers")

    def demonstration(number: int, record: SuiteRecord) -> str:
        metadata = record.values.get("metadata")
        pairs = metadata.get("qrels") if isinstance(metadata, dict) else None
        evidence = [texts[int(place)] for place in places(record, pairs, "metadata")]
        query = question.replace("{query}", record.text("query_text").strip())
        named = "".join(inputs.forms["evidence"].format(**text) + "\n" for text in evidence)
        return f"====== Example {number} ======\n{query}{named}Final Answer: {list(answers(record))}\n"

    documents = "".join(inputs.forms["document"].format(**text) + "\n" for text in texts)
    context = documents + "".join(demonstration(number, record) for number, record in enumerate(few, start=1))

    def read(record: SuiteRecord) -> Parts:
        values = {"context": context, "query": record.text("query_text").strip()}
        return Parts(values, answers(record), (), {"record_id": record.text("qid")})

    return read


READERS: dict[str, Callable[[RecordInputs], Read]] = {
    "longbench": _longbench,
    "longbench_v2": _longbench_v2,
    "infinitebench": _infinitebench,
    "longmemeval": lambda _: _longmemeval,
    "helmet_documents": _helmet_documents,
    "helmet_json_kv": lambda _: _helmet_json_kv,
    "loft": _loft,
}
