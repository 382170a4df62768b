"""LoCoMo (Maharana et al. 2024): questions of five categories about conversations over several months."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pydantic

from contextlab.benchmarks.configs import TurnsConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.conversations import locomo_sessions, transcript
from contextlab.benchmarks.data.locomo_audit import AUDITED, audited
from contextlab.benchmarks.data.questions import sample_dataset, sample_readings
from contextlab.benchmarks.data.sources import field, json_file, locate
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.metrics.estimates import proportion
from contextlab.benchmarks.task import Control, Dataset, Metric, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
LEFT_OUT = re.compile(r"\b(a|an|the|and)\b")
REFUSALS = ("not mentioned", "no information available")
COMPLETE = 10
LONGEST_ANSWER = 32
SAMPLE_SEED = 24
SAMPLE_WORDS = 3_000


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LoCoMoConfig(TurnsConfig):
    """How much is read, and what becomes of answers that are wrong in the data.

    Attributes:
        errors: a second score, `f1_audited`, without the questions whose answers the audit in errors.json finds wrong
            (`left-out`), or with its answers to them (`corrected`); none when `published`.
    """

    errors: Literal["published", "left-out", "corrected"] = "published"


class LoCoMo(Task):
    """Short answers to questions about a conversation of many sessions."""

    name: ClassVar[str] = "locomo"
    splits: ClassVar[dict[str, str]] = {"all": "all categories, whole conversations"}
    default_split: ClassVar[str] = "all"
    Config = LoCoMoConfig
    config: LoCoMoConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """One reading for each conversation, with all its questions.

        Raises:
            UserError: when the data folder lacks a file, or it is broken.
        """
        self.check_split(split)
        location = locate(self.name, "locomo10.json", data)
        if location.path is None:
            details = {"category": CATEGORIES[4]}
            return sample_dataset([*sample_readings(2, SAMPLE_WORDS, SAMPLE_SEED, details)], "LoCoMo")
        items, sha256 = json_file(location.path)
        if not isinstance(items, list) or not items:
            raise UserError(f"{location.path} holds no conversations: replace the file with an intact copy.")
        readings = tuple(
            _reading(item, f"Conversation {n} of {location.path}") for n, item in enumerate(items, start=1)
        )
        dataset = Dataset(readings, location.source, sha256, _note(items, location.path))
        return dataset if self.config.errors == "published" else audited(dataset, location.path.parent)

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Greedy answers of at most 32 tokens; `tokens` keeps the end of a conversation.

        An answer to an adversarial question is right when it says that the conversation does not mention it.
        """
        from contextlab.benchmarks.protocols.answers import AnswerProtocol

        self.check_split(split)
        scores = SCORES | ({"f1_audited": f1_audited} if self.config.errors == "corrected" else {})
        summary = _without_wrong if self.config.errors == "left-out" else None
        return AnswerProtocol(
            ("conversation-question", "question"),
            self.options(context),
            scores,
            max_new_tokens=LONGEST_ANSWER,
            by="category",
            summary=summary,
        )


def _note(items: list[Any], path: Path) -> str:
    if proofs.published("locomo", path):
        return "real: LoCoMo"
    if proofs.verified("locomo", map(proofs.record_item, items)):
        return f"real: {len(items)} of {COMPLETE} conversations of LoCoMo"
    return proofs.unverified("LoCoMo", len(items), "conversation")


def _reading(item: Any, where: str) -> Reading:
    identity = field(item, "sample_id", str, where)
    sessions = locomo_sessions(field(item, "conversation", dict, where), where)
    if not sessions:
        raise UserError(f"{where} has no sessions: replace the file with an intact copy.")
    records = field(item, "qa", list, where)
    questions = tuple(
        _question(record, f"{identity}/{n}", f"Question {n} of {where[0].lower()}{where[1:]}")
        for n, record in enumerate(records, start=1)
    )
    return Reading(identity, identity, transcript(sessions), questions)


def _question(record: Any, identity: str, where: str) -> Question:
    text = field(record, "question", str, where).strip()
    category = CATEGORIES.get(record.get("category")) if isinstance(record.get("category"), int) else None
    if category is None:
        raise UserError(f"{where} has no category: replace the file with an intact copy.")
    if category == "adversarial":
        answer = REFUSALS[0]
    else:
        answer = str(field(record, "answer", int if isinstance(record.get("answer"), int) else str, where))
    return Question(identity, text, (answer,), details={"category": category})


def _without_wrong(records: list[dict[str, Any]]) -> dict[str, Metric]:
    """The metrics, and as `f1_audited` the mean of `f1` over the questions that the audit finds nothing wrong with."""
    from contextlab.benchmarks.protocols.answers import means, question_parts

    entries = [entry for record in records for entry in record["questions"]]
    parts = zip(entries, question_parts(records, "f1"), strict=True)
    right = [part for entry, part in parts if entry.get(AUDITED) is None]
    audited = {"f1_audited": proportion(right)} if right else {}
    return means(records, tuple(SCORES), "category") | audited


def f1_audited(text: str, question: Question) -> float:
    """`f1` against the answer of the audit, where it finds the published one wrong."""
    answer = question.details.get(AUDITED)
    return f1(text, question if answer is None else dataclasses.replace(question, answers=(answer,)))


def f1(text: str, question: Question) -> float:
    """The F1 of LoCoMo's own code, by category.

    Words are compared by their Porter stems. A multi-hop answer is a list with commas: the score is the mean over its
    parts of the best F1 with a part of `text`. Of an open-domain answer with semicolons only the first part counts.
    """
    category, answer = question.details["category"], question.answers[0]
    if category == "adversarial":
        return _refuses(text)
    if category == "multi-hop":
        parts = [part.strip() for part in text.split(",")]
        references = [part.strip() for part in answer.split(",")]
        return sum(max(stemmed_f1(part, answer) for part in parts) for answer in references) / len(references)
    return stemmed_f1(text, answer.partition(";")[0].strip() if category == "open-domain" else answer)


def stemmed_f1(prediction: str, answer: str) -> float:
    """F1 of stems after lower-casing, without punctuation and without the words "a", "an", "the" and "and"."""
    return qa_metrics.overlap_f1(_stems(prediction), _stems(answer))


def _stems(text: str) -> list[str]:
    words = LEFT_OUT.sub(" ", text.lower().translate(qa_metrics.PUNCTUATION)).split()
    return [_stemmer().stem(word) for word in words]


@functools.cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()


def _f1_squad(text: str, question: Question) -> float:
    return _refuses(text) if _adversarial(question) else qa_metrics.f1(text, question.answers)


def _exact_match(text: str, question: Question) -> float:
    return _refuses(text) if _adversarial(question) else qa_metrics.exact_match(text, question.answers)


def _adversarial(question: Question) -> bool:
    return bool(question.details["category"] == "adversarial")


def _refuses(text: str) -> float:
    return float(any(refusal in text.lower() for refusal in REFUSALS))


SCORES = {"f1": f1, "f1_squad": _f1_squad, "exact_match": _exact_match}
