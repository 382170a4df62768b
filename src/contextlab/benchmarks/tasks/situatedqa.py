"""SituatedQA (Zhang and Choi 2021): questions whose answers depend on the date, without a context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import sample_dataset
from contextlab.benchmarks.data.sources import field, json_lines, locate, texts
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

COMPLETE = {"dev": 3423, "test": 2795}
TOGETHER = 16


class SituatedQA(Task):
    """Short answers to questions that name a date, from what a model knows without a context."""

    name: ClassVar[str] = "situatedqa"
    splits: ClassVar[dict[str, str]] = {split: f"{split} questions of the temporal part" for split in COMPLETE}
    default_split: ClassVar[str] = "test"

    def load(self, split: str, data: Path | None) -> Dataset:
        """The questions in the order of the file, 16 to an example with an empty context.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        split = self.check_split(split)
        location = locate("streamingqa", f"situatedqa/temp.{split}.jsonl", data)
        if location.path is None:
            return sample_dataset(_readings([_sample(year) for year in range(1950, 2030)], split), "SituatedQA")
        records, sha256 = json_lines(location.path)
        questions = [_question(record, where, f"{split}/{n}") for n, (where, record) in enumerate(records)]
        note = _note([record for _, record in records], split)
        return Dataset(_readings(questions, split), location.source, sha256, note)

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Greedy answers of at most 20 tokens; `exact_match_any` also accepts answers that are right at another date.

        Raises:
            UserError: for a wrong context, since there is no own context.
        """
        from contextlab.benchmarks.protocols.answers import SQUAD_SCORES, AnswerProtocol

        self.check_split(split)
        if context == "wrong":
            raise UserError("situatedqa has nothing to read: run it without --context wrong.")
        scores = {
            **{name: SQUAD_SCORES[name] for name in ("f1", "exact_match")},
            "exact_match_any": lambda text, question: qa_metrics.exact_match(text, question.details["any_answer"]),
        }
        return AnswerProtocol(("question", "question"), self.options(context), scores, by="date_type")


def _note(records: list[Any], split: str) -> str:
    items = [proofs.record_item(record) for record in records]
    if proofs.verified(f"situatedqa-{split}", items):
        return f"real: {len(items):,} of {COMPLETE[split]:,} {split} questions of SituatedQA (temporal)"
    return proofs.unverified("SituatedQA (temporal)", len(items), f"{split} question")


def _question(record: Any, where: str, identity: str) -> Question:
    details = {name: field(record, name, str, where) for name in ("date", "date_type")}
    any_answer = texts(record, "any_answer", where)
    # The same question occurs with several dates.
    details["cluster"] = field(record, "question", str, where).strip()
    text = field(record, "edited_question", str, where).strip()
    return Question(identity, text, texts(record, "answer", where), details={**details, "any_answer": any_answer})


def _readings(questions: list[Question], split: str) -> tuple[Reading, ...]:
    parts = [questions[start : start + TOGETHER] for start in range(0, len(questions), TOGETHER)]
    return tuple(Reading(f"{split}/{n}", f"{split}/{n}", "", tuple(part)) for n, part in enumerate(parts))


def _sample(year: int) -> Question:
    others = tuple(str(other) for other in range(year - 5, year + 6))
    details = {"date": str(year), "date_type": "start", "any_answer": others}
    return Question(str(year), f"which year follows this one as of {year}", (str(year + 1),), details=details)
