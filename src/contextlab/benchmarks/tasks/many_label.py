"""In-context learning of many labels that have no names, as in HELMET (Yen et al. 2024).

Demonstrations and prompt are those of HELMET's `data.py`, function `load_icl`.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import pydantic

from contextlab.benchmarks.data.label_sets import SETS, Row, load
from contextlab.benchmarks.data.questions import in_turns
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.metrics.estimates import proportion
from contextlab.benchmarks.task import Control, Dataset, Metric, Part
from contextlab.benchmarks.tasks.sized import SizedTask
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import QuestionProtocol

T = TypeVar("T")
ByLabel = Mapping[str, Sequence[Row]]
"""The rows of every label."""

INSTRUCTION = (
    "Use the provided mapping from the text to label to assign a label to the text. "
    'Only output "label: {label}" and nothing else. \n\n'
)
ITEM = "{text}\nlabel:"
SEPARATOR = "\n\n"
LONGEST_ANSWER = 20
MOST_TOKENS = 131_072
MEASURED = 5
"""Draws whose lengths are measured, to choose a number of demonstrations for all of them."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ManyLabelConfig(Config):
    """Demonstrations and queries.

    Attributes:
        tokens: the most tokens read of a text, which consists of demonstrations.
        shots: number of demonstrations; as many as fit when null.
        samples: the most samples: texts to classify; fewer, where the set has fewer.
        together: number of texts that are classified after the same demonstrations (1 in HELMET).
        seed: of the draws of texts, demonstrations and numbers of labels.
        scoring: the number of the label is written (`write`, as in HELMET), or the numbers of all labels are ranked by
            their likelihood (`rank`).
    """

    tokens: Annotated[int, pydantic.Field(gt=0, le=MOST_TOKENS)] = 8192
    shots: pydantic.PositiveInt | None = None
    samples: pydantic.PositiveInt = 500
    together: pydantic.PositiveInt = 1
    seed: pydantic.NonNegativeInt = 42
    scoring: Literal["write", "rank"] = "write"


class ManyLabel(SizedTask):
    """What is the number of the label of a text, after demonstrations of 6 to 151 labels?"""

    name: ClassVar[str] = "many-label"
    splits: ClassVar[dict[str, str]] = {name: f"{texts.title}: {texts.labels} labels" for name, texts in SETS.items()}
    default_split: ClassVar[str] = "banking77"
    Config = ManyLabelConfig
    config: ManyLabelConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """One reading for each draw of demonstrations, with the texts that are classified after it.

        Raises:
            UserError: when a file is missing or broken, or the demonstrations do not fit.
        """
        split, settings = self.check_split(split), self.config
        texts = load(split, data)
        tested = balanced(by_label(texts.tested), _draw(settings.seed, split))[: settings.samples]
        parts = [tested[start : start + settings.together] for start in range(0, len(tested), settings.together)]
        train = by_label(texts.train)
        shots = self._shots(train, parts)
        readings = (self._reading(train, f"draw/{number}", part, shots) for number, part in enumerate(parts))
        return Dataset(tuple(readings), texts.source, texts.sha256, texts.note)

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Accuracy over all texts and over all labels; draws of demonstrations are clusters."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm, RankProtocol

        self.check_split(split)
        options, form = self.options(context), ContextForm(head=INSTRUCTION)
        if self.config.scoring == "rank":
            return RankProtocol((ITEM, ITEM), options, summary=summary, form=form)
        scores = {"accuracy": right}
        return AnswerProtocol(
            (ITEM, ITEM), options, scores, max_new_tokens=LONGEST_ANSWER, summary=summary, form=form, ends=("\n",)
        )

    def _shots(self, train: ByLabel, parts: Sequence[Sequence[Row]]) -> int:
        """The number of demonstrations of every draw.

        It is chosen by the longest of the first draws. A longer draw after these is cut like every context.

        Raises:
            UserError: when those of the settings, or not even one, fit.
        """
        fits = min(self._fitting(self._demonstrations(train, part)) for part in parts[:MEASURED])
        shots = self.config.shots or fits
        if not fits or shots > fits:
            raise UserError(
                f"{max(shots, 1):,} demonstrations are longer than tokens={self.config.tokens}, {fits:,} fit: "
                "raise tokens or lower shots."
            )
        return shots

    def _fitting(self, demonstrations: Iterator[str]) -> int:
        """The most demonstrations that are no longer than `tokens`."""
        most, shown = self.config.tokens, list[str]()
        while self.count(SEPARATOR.join(shown)) <= most:
            shown += itertools.islice(demonstrations, len(shown) + 1)
        sizes = range(len(shown) + 1)
        return bisect.bisect_right(sizes, most, key=lambda size: self.count(SEPARATOR.join(shown[:size]))) - 1

    def _demonstrations(self, train: ByLabel, part: Sequence[Row]) -> Iterator[str]:
        """Demonstrations without end, drawn for the texts that are classified after them."""
        draw = self._draw_for(part)
        numbers = _numbers(train, draw)
        return (f"{ITEM.format(text=text)} {numbers[label]}" for text, label in rounds(train, draw))

    def _draw_for(self, part: Sequence[Row]) -> random.Random:
        return _draw(self.config.seed, *(text for text, _ in part))

    def _reading(self, train: ByLabel, name: str, part: Sequence[Row], shots: int) -> Reading:
        numbers = _numbers(train, self._draw_for(part))
        options = tuple(map(str, range(len(numbers))))
        questions = tuple(
            Question(f"{name}/{n}", text, (numbers[label],), options, {"label": label})
            for n, (text, label) in enumerate(part)
        )
        context = SEPARATOR.join(itertools.islice(self._demonstrations(train, part), shots))
        return Reading(name, name, context, questions)


def by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of every label, in the order of the labels' names."""
    groups: dict[str, list[Row]] = {label: [] for label in sorted({label for _, label in rows})}
    for row in rows:
        groups[row[1]].append(row)
    return groups


def rounds(rows: ByLabel, draw: random.Random) -> Iterator[Row]:
    """Rows without end, in rounds in which every label occurs once in a random order.

    The rows of a label occur in a random order, and once more when all of them have occurred.
    """
    rows_left: dict[str, list[Row]] = {label: [] for label in rows}
    while True:
        for label in _shuffled(list(rows), draw):
            rows_left[label] = rows_left[label] or _shuffled(rows[label], draw)
            yield rows_left[label].pop()


def balanced(rows: ByLabel, draw: random.Random) -> tuple[Row, ...]:
    """All rows in a random order, the first so many of which have as equal numbers of every label as there are."""
    return in_turns([_shuffled(rows[label], draw) for label in _shuffled(list(rows), draw)])


def right(text: str, question: Question) -> float:
    """1 for the right number, also when the model repeats `label:` before it."""
    return qa_metrics.exact_match(text.removeprefix("label:"), question.answers)


def summary(records: list[dict[str, Any]]) -> dict[str, Metric]:
    """Accuracy over all texts, and the mean over labels of the accuracy of their texts."""
    from contextlab.benchmarks.protocols.answers import question_parts

    parts = question_parts(records, "accuracy")
    labels = [entry["label"] for record in records for entry in record["questions"]]
    by_label = [Part(*part[:3], label) for part, label in zip(parts, labels, strict=True)]
    return {"accuracy": proportion(parts), "macro_accuracy": proportion(by_label)}


def _shuffled(items: Sequence[T], draw: random.Random) -> list[T]:
    return draw.sample(items, len(items))


def _numbers(labels: Collection[str], draw: random.Random) -> dict[str, str]:
    """By label, its number: a random permutation of 0 to n - 1."""
    return dict(zip(labels, map(str, _shuffled(range(len(labels)), draw)), strict=True))


def _draw(seed: int, *texts: str) -> random.Random:
    """The source of random numbers of some texts, which depends on nothing else but the seed."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return random.Random(f"{digest} {seed}")
