"""Questions about one of many passages, by its position, as in 'Lost in the middle' (Liu et al. 2024)."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.configs import ContextConfig
from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.sources import field, texts
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.documents import Documents
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

FILE = "qa_data/nq-open-oracle.jsonl"
INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)
PROMPT = "Question: {text}\nAnswer:"
HEADING = "Document [{number}]{passage}"
LONGEST_ANSWER = 100
STEP = 5
"""Distance of the positions of the passage that answers, beginning with the first and ending with the last."""
SAMPLE = (40, 130, 29)
"""Number of generated texts, words of each, and their seed."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class MultiDocConfig(ContextConfig):
    """The questions that are asked.

    Attributes:
        samples: the most samples: questions, each with the passage at every position.
        seed: of the draws of questions and of other passages.
    """

    samples: pydantic.PositiveInt = 100
    seed: pydantic.NonNegativeInt = 0


class MultiDoc(Documents):
    """Short answers that one of 10 to 30 passages holds, by the position of that passage."""

    name: ClassVar[str] = "multidoc"
    splits: ClassVar[dict[str, str]] = {str(count): f"{count} passages, one of which answers" for count in (10, 20, 30)}
    default_split: ClassVar[str] = "10"
    Config = MultiDocConfig
    config: MultiDocConfig
    title: ClassVar[str] = "NQ-open with gold passages"
    noun: ClassVar[str] = "question"
    dataset: ClassVar[str] = "lost_in_the_middle"
    files: ClassVar[dict[str, str]] = dict.fromkeys(splits, FILE)
    complete: ClassVar[dict[str, int]] = dict.fromkeys(splits, 2_655)

    def load(self, split: str, data: Path | None) -> Dataset:
        """Every question with its passage at every position among the same others.

        Raises:
            UserError: when the data folder lacks the file, it is broken, or it has too few passages.
        """
        dataset = super().load(split, data)
        alone: Sequence[Reading] = dataset.examples
        order = random.Random(self.config.seed).sample(alone, len(alone))
        count = int(self.check_split(split))
        readings = (case for gold in order[: self.config.samples] for case in self._at_positions(gold, alone, count))
        return Dataset(tuple(readings), dataset.source, dataset.sha256, dataset.note)

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Whether an answer occurs in what is written, over all questions and by position."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm

        self.check_split(split)
        return AnswerProtocol(
            (PROMPT, PROMPT),
            self.options(context),
            {"accuracy": holds_answer},
            max_new_tokens=LONGEST_ANSWER,
            by="position",
            form=ContextForm(head=INSTRUCTION),
        )

    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A question with the passage that answers it."""
        passage = field(record, "ctxs", list, where)[0]
        title, text = (field(passage, name, str, where) for name in ("title", "text"))
        question = Question(identity, field(record, "question", str, where).strip(), texts(record, "answers", where))
        return Reading(identity, identity, f"(Title: {title}) {text}", (question,))

    def sample(self, split: str) -> Sequence[Reading]:
        """Short generated stories with one question each."""
        return [
            dataclasses.replace(story, context=f"(Title: Story {n}) {story.context}", questions=story.questions[:1])
            for n, story in enumerate(sample_readings(*SAMPLE), start=1)
            if story.questions
        ]

    def _at_positions(self, gold: Reading, passages: Sequence[Reading], count: int) -> Iterator[Reading]:
        (question,) = gold.questions
        shuffled = random.Random(f"{self.config.seed} {question.id}").sample(passages, len(passages))
        others = (text for text in dict.fromkeys(other.context for other in shuffled) if not answers(text, question))
        distractors = list(itertools.islice((text for text in others if text != gold.context), count - 1))
        if len(distractors) < count - 1:
            raise UserError(
                f"multidoc has {len(distractors)} other passages here for a question: choose a smaller split."
            )
        for position in positions(count):
            texts_in_order = [*distractors[:position], gold.context, *distractors[position:]]
            context = "\n".join(
                HEADING.format(number=number, passage=text) for number, text in enumerate(texts_in_order, start=1)
            )
            name = f"{gold.id}/{position}"
            placed = dataclasses.replace(question, id=name, details={"position": position})
            yield Reading(name, gold.id, context, (placed,))


def positions(count: int) -> list[int]:
    """The positions of the passage that answers, counted from 0: the first, every fifth, and the last."""
    return [0, *range(STEP - 1, count, STEP)]


def answers(passage: str, question: Question) -> bool:
    """Whether an answer occurs in a passage as whole words, both normalised as by SQuAD's script.

    An answer of one letter occurs in the words of every passage.
    """
    words = f" {qa_metrics.normalise(passage)} "
    return any(f" {qa_metrics.normalise(answer)} " in words for answer in question.answers)


def holds_answer(text: str, question: Question) -> float:
    """1 when an answer occurs in a text, both normalised as by SQuAD's script."""
    normal = qa_metrics.normalise(text)
    return float(any(qa_metrics.normalise(answer) in normal for answer in question.answers))
