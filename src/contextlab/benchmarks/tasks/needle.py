"""A retrieval probe: facts that a generated story says once, with questions at a controlled distance.

A story has four promises, whose people, things and places do not occur elsewhere in it. The other options of a question
do not occur in the story at all. A right answer therefore needs only the one sentence that says it. The probe needs no
data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from contextlab.benchmarks.configs import TurnsConfig
from contextlab.benchmarks.data.questions import sample_dataset
from contextlab.benchmarks.data.sample import TOKENS_PER_WORD, Fact, planted
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.task import Control, Dataset, Task

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import RankProtocol

DISTANCES = {
    "128": 128, "256": 256, "512": 512, "1k": 1024, "2k": 2048, "4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768,
}  # fmt: skip
PROMISES = 4
OPTIONS = 4
STORIES = 24
SEED = 31
BEFORE_WORDS = 150


class Needle(Task):
    """Which of four answers did a story give, by the distance in tokens between the answer and the question?"""

    name: ClassVar[str] = "needle"
    splits: ClassVar[dict[str, str]] = {
        longest: f"distances {', '.join(list(DISTANCES)[n - PROMISES + 1 : n + 1])}"
        for n, longest in enumerate(DISTANCES)
        if n >= PROMISES - 1
    }
    default_split: ClassVar[str] = "2k"
    Config = TurnsConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """Stories a little longer than the longest distance; the data folder is not used."""
        last = list(DISTANCES).index(self.check_split(split))
        names = list(DISTANCES)[last - PROMISES + 1 : last + 1]
        readings = [_reading(f"{split}/{index}", names, index) for index in range(STORIES)]
        dataset = sample_dataset(readings, "a data set")
        return Dataset(dataset.examples, "sample", dataset.sha256, "generated stories, made for this probe")

    def protocol(self, split: str, context: Control = "own") -> RankProtocol:
        """Accuracy over all questions and by distance; `tokens` keeps the end of a story."""
        from contextlab.benchmarks.protocols.answers import RankProtocol

        self.check_split(split)
        return RankProtocol(("recall-question", "recall-question"), self.options(context), by="reach")


def _reading(identity: str, names: list[str], index: int) -> Reading:
    distances = [int(DISTANCES[name] / TOKENS_PER_WORD) for name in names]
    story, decoys = planted(max(distances) + BEFORE_WORDS, distances, SEED, index)
    context = "\n\n".join(story.chapters)
    questions = [
        _question(f"{identity}/{n}", fact, decoys[n % 2 :: 2], names[n // 2], context)
        for n, fact in enumerate(story.facts)
    ]
    return Reading(identity, identity, context, tuple(questions))


def _question(identity: str, fact: Fact, others: tuple[Fact, ...], reach: str, context: str) -> Question:
    """A question; `distance` in its record counts from the last occurrence of the thing in the context."""
    options = tuple(sorted([fact.answer, *(other.answer for other in others[: OPTIONS - 1])]))
    what = fact.question.rpartition(" the ")[2].removesuffix("?")
    return Question(identity, fact.question, (fact.answer,), options, {"reach": reach}, context.rindex(what))
