"""Key-value retrieval of lost in the middle (Liu et al. 2024): one of many pairs of UUIDs, at a chosen position."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import pydantic

from contextlab.benchmarks.data import generated, proofs, sources
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.prompts import formatted, published
from contextlab.benchmarks.task import Answer, Control, Dataset, Options
from contextlab.benchmarks.tasks.sized import SizedTask
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.prompts import Wording
    from contextlab.benchmarks.protocols.answers import QuestionProtocol

Pair = tuple[str, str]
COMPLETE = 500
LONGEST_ANSWER = 100
KEYS = 75
RECORDS = "{formatted_kv_records}"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class KeyValueConfig(Config):
    """Which pairs are asked for, and where they stand.

    Attributes:
        positions: number of positions of the asked pair, equally spaced from the first to the last.
        samples: the most samples: records, each asked once for every position.
        query_aware: whether the key stands before the pairs too.
        keys: pairs of a record of the split `generated`.
        tokens: the most tokens read of a text, with its prompt and question, in the split `generated`; it has as many
            pairs as fit, in place of `keys`.
        seed: of generated pairs.
        chat: whether the prompt is a turn of the user in the backbone's chat template, whose tokens come on top.
        answer: `written` by the method, right when it contains the value; or `reference`: nats per token of the value.
    """

    positions: Annotated[int, pydantic.Field(ge=2)] = 5
    samples: pydantic.PositiveInt = 50
    query_aware: bool = False
    keys: Annotated[int, pydantic.Field(ge=2)] = KEYS
    tokens: pydantic.PositiveInt | None = None
    seed: pydantic.NonNegativeInt = 0
    chat: bool = False
    answer: Answer = "written"


@dataclasses.dataclass(frozen=True)
class Record:
    """Pairs of keys and values, and the one that is asked for."""

    id: str
    pairs: tuple[Pair, ...]
    target: Pair

    def at(self, position: int) -> tuple[Pair, ...]:
        """The pairs, with the asked one taken out and put in at a position."""
        others = [pair for pair in self.pairs if pair != self.target]
        return (*others[:position], self.target, *others[position:])


class KeyValue(SizedTask):
    """The value of one key in a JSON object of random pairs, by the position of the pair."""

    name: ClassVar[str] = "key-value"
    splits: ClassVar[dict[str, str]] = {
        **{keys: f"{keys} pairs, the published records" for keys in ("75", "140", "300")},
        "generated": "pairs from a seed, of any number or length",
    }
    default_split: ClassVar[str] = "75"
    Config = KeyValueConfig
    config: KeyValueConfig

    def check_split(self, split: str | None) -> str:
        """The split to use.

        Raises:
            UserError: when there is no such split, or the number of pairs is set for one with published records.
        """
        name = super().check_split(split)
        if name != "generated" and (self.config.keys != KEYS or self.config.tokens is not None):
            raise UserError(f"The records of split {name} have {name} pairs: set keys or tokens with split generated.")
        return name

    def load(self, split: str, data: Path | None) -> Dataset:
        """Every record at every position; the positions of a record follow each other.

        Raises:
            UserError: when the data folder lacks the file, or it is broken, or no two pairs fit into the length.
        """
        split, samples = self.check_split(split), self.config.samples
        if split == "generated":
            return self._generated(split, self.config.keys, "generated pairs of UUIDs, made for this task")
        file = f"kv_retrieval_data/kv-retrieval-{split}_keys.jsonl"
        location = sources.locate("lost_in_the_middle", file, data)
        if location.path is None:
            return self._generated(split, int(split), "generated pairs of UUIDs, not those of lost in the middle")
        lines, sha256 = sources.json_lines(location.path)
        records = [_record(line, where, f"{split}/{n}") for n, (where, line) in enumerate(lines)]
        readings = tuple(self.readings(records[:samples]))
        return Dataset(readings, location.source, sha256, _note(split, location.path, len(records), len(readings)))

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Greedy answers of at most 100 tokens, right when they contain the value, or its nats; also by position."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm
        from contextlab.benchmarks.protocols.references import ReferenceProtocol

        self.check_split(split)
        before, after = self.template
        prompts, form = (after, after.lstrip()), ContextForm("" if self.config.query_aware else before, "")
        wording: Wording = "chat" if self.config.chat else "plain"
        if self.config.answer == "reference":
            return ReferenceProtocol(prompts, Options(context), by="position", wording=wording, form=form)
        return AnswerProtocol(
            prompts,
            Options(context),
            {"accuracy": lambda text, question: qa_metrics.contains(text, question.answers)},
            max_new_tokens=LONGEST_ANSWER,
            by="position",
            wording=wording,
            form=form,
            ends=(),
        )

    @property
    def template(self) -> tuple[str, str]:
        """The published prompt: the text before the pairs, and after them with `{text}` for the key."""
        text = published("key-value")["query_aware" if self.config.query_aware else "prompt"]
        before, _, after = text.partition(RECORDS)
        return before, formatted(after, {"key": "text"})

    def readings(self, records: Sequence[Record]) -> Iterator[Reading]:
        """One reading for every position of each record."""
        for record in records:
            key, value = record.target
            for position in places(len(record.pairs), self.config.positions):
                identity = f"{record.id}/{position}"
                question = Question(f"{identity}/question", key, (value,), details={"position": position})
                yield Reading(identity, record.id, self.context(record, position), (question,))

    def context(self, record: Record, position: int) -> str:
        """What is read before the question: the pairs, and the prompt before them where it has the key."""
        before = self.template[0].replace("{key}", record.target[0]) if self.config.query_aware else ""
        return before + as_json(record.at(position))

    def _generated(self, split: str, keys: int, note: str) -> Dataset:
        names = ("positions", "samples", "query_aware", "tokens", "seed")
        settings = {**self.made_with(split, *names), "keys": keys}
        if self.config.tokens is None:
            settings["tokenizer"] = ""
        return generated.dataset(settings, _Generated(self, split, keys), note)


class _Generated(generated.ReadingGenerator):
    """Records of random pairs."""

    def __init__(self, task: KeyValue, split: str, keys: int) -> None:
        self.task, self.split, self.keys = task, split, keys

    def readings(self) -> Iterator[Reading]:
        """Every record at every position.

        Raises:
            UserError: when no two pairs fit into the length.
        """
        count = self.keys if self.task.config.tokens is None else self._most(self.task.config.tokens)
        yield from self.task.readings([self._record(n, count) for n in range(self.task.config.samples)])

    def _record(self, number: int, count: int) -> Record:
        identity = f"{self.split}/{number}"
        draw = random.Random(f"{self.task.config.seed}/{identity}")
        pairs = tuple((_uuid(draw), _uuid(draw)) for _ in range(count))
        return Record(identity, pairs, pairs[0])

    def _most(self, tokens: int) -> int:
        """The largest number of pairs with which every text has at most so many tokens.

        Raises:
            UserError: when that are not even two.
        """
        fewest, most = 1, tokens // 4  # a pair has more than four tokens in every tokenizer
        while fewest < most:
            middle = (fewest + most + 1) // 2
            fits = all(self._length(number, middle) <= tokens for number in range(self.task.config.samples))
            fewest, most = (middle, most) if fits else (fewest, middle - 1)
        if fewest < 2:
            raise UserError(f"Two pairs have more tokens than tokens={tokens}: raise tokens.")
        return fewest

    def _length(self, number: int, count: int) -> int:
        record = self._record(number, count)
        before, after = self.task.template
        opening = 0 if self.task.config.query_aware else self.task.count(before)
        return opening + self.task.count(self.task.context(record, 0) + after.format(text=record.target[0]))


def places(keys: int, positions: int) -> list[int]:
    """Equally spaced positions from the first to the last of so many pairs, rounded down as in the paper."""
    return list(dict.fromkeys(number * (keys - 1) // (positions - 1) for number in range(positions)))


def as_json(pairs: Sequence[Pair]) -> str:
    """Pairs as a JSON object with one pair a line, as upstream writes it."""
    return "{" + ",\n ".join(f'"{key}": "{value}"' for key, value in pairs) + "}"


def _uuid(draw: random.Random) -> str:
    bits = int.from_bytes(bytes(int(draw.random() * 256) for _ in range(16)))
    return str(uuid.UUID(int=bits, version=4))


def _record(line: Any, where: str, identity: str) -> Record:
    target = (sources.field(line, "key", str, where), sources.field(line, "value", str, where))
    rows = sources.field(line, "ordered_kv_records", list, where)
    pairs = tuple(tuple(sources.texts({"pair": row}, "pair", where)) for row in rows)
    if target not in pairs or any(len(pair) != 2 for pair in pairs) or len(set(pairs)) < len(pairs):
        raise UserError(f"{where} has not the asked pair among its different pairs: replace it with an intact copy.")
    return Record(identity, pairs, target)  # type: ignore[arg-type]


def _note(split: str, path: Path, records: int, questions: int) -> str:
    if proofs.verified("key-value", [proofs.file_item(split, path)]):
        about = f"real: {records:,} of {COMPLETE:,} records of lost in the middle"
    else:
        about = proofs.unverified("lost in the middle", records, "record")
    return f"{about}, {questions:,} questions"
