"""QMSum (Zhong et al. 2021): summaries of meetings, in answer to queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.sources import field
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.task import Control
from contextlab.benchmarks.tasks.documents import SUMMARY_PROMPTS, Documents, WrittenConfig, rouge_scores

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

KINDS = ("general", "specific")
SAMPLE = (4, 2_000, 25)
"""Number of generated texts, words of each, and their seed."""


class QMSum(Documents):
    """Summaries of a whole meeting, or of what it says about a matter."""

    name: ClassVar[str] = "qmsum"
    splits: ClassVar[dict[str, str]] = {"val": "validation meetings", "test": "test meetings"}
    default_split: ClassVar[str] = "test"
    Config = WrittenConfig
    config: WrittenConfig
    title: ClassVar[str] = "QMSum"
    noun: ClassVar[str] = "meeting"
    dataset: ClassVar[str] = "qmsum"
    files: ClassVar[dict[str, str]] = {split: f"data/ALL/jsonl/{split}.jsonl" for split in splits}
    complete: ClassVar[dict[str, int]] = dict.fromkeys(splits, 35)

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """ROUGE of greedy answers, over all queries and by their kind; `tokens` keeps the end of a meeting."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol

        self.check_split(split)
        most = self.config.max_new_tokens
        return AnswerProtocol(SUMMARY_PROMPTS, self.options(context), rouge_scores(), max_new_tokens=most, by="kind")

    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A meeting, a line for each turn, with its general and then its specific queries."""
        turns = field(record, "meeting_transcripts", list, where)
        text = "\n".join(_line(turn, where) for turn in turns)
        return Reading(identity, identity, text, tuple(_queries(record, where, identity)))

    def sample(self, split: str) -> Sequence[Reading]:
        """Generated stories with questions about facts."""
        return sample_readings(*SAMPLE, {"kind": KINDS[1]})


def _line(turn: Any, where: str) -> str:
    speaker = field(turn, "speaker", str, where)
    # Some turns are empty upstream.
    return f"{speaker}: {field(turn, 'content', str, where) if turn.get('content') != '' else ''}".rstrip()


def _queries(record: Any, where: str, identity: str) -> Iterator[Question]:
    for kind in KINDS:
        for number, query in enumerate(field(record, f"{kind}_query_list", list, where), start=1):
            text, answer = (field(query, name, str, where).strip() for name in ("query", "answer"))
            yield Question(f"{identity}/{kind}/{number}", text, (answer,), details={"kind": kind})
