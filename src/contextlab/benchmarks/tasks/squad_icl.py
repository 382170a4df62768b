"""SQuAD after demonstrations, a few in the context and many more in the memory (LongMem, section 3.3 and table 4)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import pydantic

from contextlab.benchmarks.configs import QuestionConfig
from contextlab.benchmarks.data.questions import sample_dataset, sample_documents
from contextlab.benchmarks.data.sources import json_file, locate
from contextlab.benchmarks.examples import Passage, Question, Reading
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.benchmarks.tasks import squad
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

ITEM = "{text} Answer:"
SEPARATOR = "\n\n"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SQuADICLConfig(QuestionConfig):
    """Demonstrations of answers to questions about passages.

    Attributes:
        k: number of demonstrations.
        memory: further ones that are read before these (200 in LongMem).
        n: number of questions that are answered after the same demonstrations.
    """

    k: Annotated[int, pydantic.Field(ge=0)] = 3
    memory: pydantic.NonNegativeInt = 0
    n: pydantic.PositiveInt = 25


class SQuADICL(Task):
    """Short answers to questions about a paragraph, after 0 to 200 demonstrations from other articles."""

    name: ClassVar[str] = "squad-icl"
    splits: ClassVar[dict[str, str]] = {"dev": "every second article of the development set"}
    default_split: ClassVar[str] = "dev"
    Config = SQuADICLConfig
    config: SQuADICLConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """Questions of every second article in a fixed random order, n after one draw of demonstrations.

        Raises:
            UserError: when the data folder lacks the file, it is broken, or it has too few demonstrations.
        """
        self.check_split(split)
        location = locate("squad", "dev-v1.1.json", data)
        if location.path is None:
            return sample_dataset(
                self._readings([[document] for document in sample_documents(squad.SAMPLE_SEED)]), "SQuAD"
            )
        content, sha256 = json_file(location.path)
        articles = squad.articles(content, str(location.path))
        return Dataset(self._readings(articles), location.source, sha256, squad.note(articles, location.path))

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Greedy answers of at most 20 tokens with the scores of SQuAD; draws are clusters."""
        from contextlab.benchmarks.protocols.answers import SQUAD_SCORES, AnswerProtocol

        self.check_split(split)
        options, wording = self.options(context), self.config.prompt
        return AnswerProtocol((ITEM, ITEM), options, SQUAD_SCORES, wording=wording, bare=ITEM)

    def _readings(self, articles: Sequence[Sequence[Passage]]) -> tuple[Reading, ...]:
        """One draw of demonstrations for n questions; those of a smaller k or memory are also in larger ones."""
        config = self.config
        tested, shown = (
            [item for article in articles[first::2] for passage in article for item in _items(passage)]
            for first in (0, 1)
        )
        if len(shown) < config.k + config.memory:
            raise UserError(
                f"squad-icl has {len(shown)} demonstrations here: lower k={config.k} or memory={config.memory}."
            )
        tested = _shuffled(tested, "questions")
        readings = []
        for number, start in enumerate(range(0, len(tested), config.n)):
            demonstrations = _shuffled(shown, f"draw {number}")[: config.k + config.memory]
            context = SEPARATOR.join(map(_demonstration, reversed(demonstrations)))
            name = f"draw/{number}"
            readings.append(
                Reading(name, name, context, tuple(tested[start : start + config.n]), tuple(demonstrations))
            )
        return tuple(readings)


def _items(passage: Passage) -> list[Question]:
    """Every question about a passage, with the passage in front."""
    text = f"Passage: {passage.text}\n Question: "
    return [Question(question.id, text + question.text, question.answers) for question in passage.questions]


def _demonstration(question: Question) -> str:
    return f"{ITEM.format(text=question.text)} {question.answers[0].strip()}"


def _shuffled(items: Sequence[Question], draw: str) -> list[Question]:
    order = random.Random(draw)
    return order.sample(items, len(items))
