"""SQuALITY v1.3 (Wang et al. 2022): five questions about a story, each with four summaries as references."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.sources import field
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.task import Control
from contextlab.benchmarks.tasks.documents import SUMMARY_PROMPTS, Documents, WrittenConfig, rouge_scores

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

KINDS = ("plot", "other")
"""The first question about a story asks for its plot."""
SAMPLE = (4, 2_000, 26)
"""Number of generated texts, words of each, and their seed."""


class SQuALITY(Documents):
    """Summaries of a story's plot, and of what it says in answer to four other questions."""

    name: ClassVar[str] = "squality"
    splits: ClassVar[dict[str, str]] = {
        "train": "training stories",
        "dev": "validation stories",
        "test": "test stories",
    }
    default_split: ClassVar[str] = "test"
    Config = WrittenConfig
    config: WrittenConfig
    title: ClassVar[str] = "SQuALITY"
    noun: ClassVar[str] = "text"
    dataset: ClassVar[str] = "squality"
    files: ClassVar[dict[str, str]] = {split: f"data/v1-3/txt/{split}.jsonl" for split in splits}
    complete: ClassVar[dict[str, int]] = {"train": 50, "dev": 25, "test": 52}

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """ROUGE of greedy answers against the best reference; `tokens` keeps the end of a story."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol

        self.check_split(split)
        most = self.config.max_new_tokens
        return AnswerProtocol(SUMMARY_PROMPTS, self.options(context), rouge_scores(), max_new_tokens=most, by="kind")

    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A story with its questions."""
        questions = field(record, "questions", list, where)
        identified = (
            _question(question, where, f"{identity}/{n}", KINDS[n > 0]) for n, question in enumerate(questions)
        )
        return Reading(identity, identity, field(record, "document", str, where), tuple(identified))

    def sample(self, split: str) -> Sequence[Reading]:
        """Generated stories with questions about facts."""
        return sample_readings(*SAMPLE, {"kind": KINDS[1]})


def _question(record: Any, where: str, identity: str, kind: str) -> Question:
    responses = field(record, "responses", list, where)
    answers = tuple(field(response, "response_text", str, where).strip() for response in responses)
    text = field(record, "question_text", str, where).strip()
    return Question(identity, text, answers, details={"kind": kind})
