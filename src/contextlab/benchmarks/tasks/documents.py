"""Tasks over files with one document a line, each with several questions."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.configs import TurnsConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import sample_dataset
from contextlab.benchmarks.data.sources import json_lines, locate
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Dataset, Task

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import Score

SUMMARY_PROMPTS = (
    "## Instruction: Answer the question based on the text above, in one paragraph\n\nQuestion: {text}\nAnswer:",
    "## Instruction: Answer the question in one paragraph\n\nQuestion: {text}\nAnswer:",
)


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class WrittenConfig(TurnsConfig):
    """How much is read and written.

    Attributes:
        max_new_tokens: most tokens of an answer.
    """

    max_new_tokens: pydantic.PositiveInt = 512


class Documents(Task):
    """Base class: every document is read once for all its questions.

    Attributes:
        title: name of the data set.
        noun: what a document is.
        dataset: folder of the files.
        files: by split, its file.
        complete: by split, the number of the publisher's documents, where it is known.
    """

    title: ClassVar[str]
    noun: ClassVar[str]
    dataset: ClassVar[str]
    files: ClassVar[dict[str, str]]
    complete: ClassVar[dict[str, int]]

    def load(self, split: str, data: Path | None) -> Dataset:
        """The documents in the order of the file.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        split = self.check_split(split)
        location = locate(self.dataset, self.files[split], data)
        if location.path is None:
            return sample_dataset(self.sample(split), self.title)
        records, sha256 = json_lines(location.path)
        readings = tuple(self.reading(record, where, f"{split}/{n}") for n, (where, record) in enumerate(records))
        return Dataset(readings, location.source, sha256, self._note(split, [record for _, record in records]))

    @abstractmethod
    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A document of the file.

        Raises:
            UserError: when it lacks a part.
        """

    @abstractmethod
    def sample(self, split: str) -> Sequence[Reading]:
        """Generated documents with questions of the same form."""

    def _note(self, split: str, records: list[Any]) -> str:
        if proofs.verified(self.name, map(proofs.record_item, records)):
            of = f" of {self.complete[split]:,}" if split in self.complete else ""
            return f"real: {len(records):,}{of} {self.noun}s of {self.title}"
        return proofs.unverified(self.title, len(records), self.noun)


def rouge_scores() -> dict[str, Score]:
    """ROUGE-1, 2 and L against the best reference.

    Raises:
        UserError: without rouge-score, before anything is read.
    """
    qa_metrics.rouge_l("", [""])
    kinds = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
    return {name: functools.partial(_rouge, kind) for name, kind in kinds.items()}


def _rouge(kind: str, text: str, question: Question) -> float:
    return qa_metrics.rouge(kind, text, question.answers)
