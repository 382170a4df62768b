"""LoCoMo (Maharana et al. 2024): questions of five categories about conversations that last for months."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks import qa_metrics
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.conversations import locomo_sessions, transcript
from contextlab.benchmarks.data.questions import Question, Reading, sample_dataset
from contextlab.benchmarks.data.sample import story
from contextlab.benchmarks.data.sources import field, locate, parse_json, read
from contextlab.benchmarks.task import Dataset, Options, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.answers import AnswerProtocol

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
REFUSALS = ("not mentioned", "no information available")
COMPLETE = 10
LONGEST_ANSWER = 32
SAMPLE_SEED = 24
SAMPLE_WORDS = 3_000


class LoCoMo(Task):
    """Short answers to questions about a conversation of many sessions."""

    name: ClassVar[str] = "locomo"
    splits: ClassVar[dict[str, str]] = {"all": "all categories, whole conversations"}
    default_split: ClassVar[str] = "all"

    def load(self, split: str, data: Path | None) -> Dataset:
        """One reading a conversation, with all its questions.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        self.check_split(split)
        found = locate(self.name, "locomo10.json", data)
        if found.path is None:
            return sample_dataset([_sample(index) for index in range(2)], "LoCoMo")
        text, sha256 = read(found.path)
        items = parse_json(text, found.path)
        if not isinstance(items, list) or not items:
            raise UserError(f"{found.path} holds no conversations: replace the file with an intact copy.")
        readings = tuple(_reading(item, f"Conversation {n} of {found.path}") for n, item in enumerate(items, start=1))
        return Dataset(readings, found.source, sha256, _note(items, found.path))

    def protocol(self, split: str, options: Options) -> AnswerProtocol:
        """Greedy answers of 32 tokens at most; `tokens` keeps the end of a conversation.

        An answer to an adversarial question is right when it says that the conversation does not tell.
        """
        from contextlab.benchmarks.answers import AnswerProtocol

        self.check_split(split)
        scores = {"f1": _f1, "exact_match": _exact_match}
        prompts = ("conversation-question", "question")
        return AnswerProtocol(prompts, options, scores, max_new_tokens=LONGEST_ANSWER, by="category")


def _note(items: list[Any], path: Path) -> str:
    if proofs.published("locomo", path):
        return "real: LoCoMo"
    if proofs.verified("locomo", [proofs.item(json.dumps(item, sort_keys=True)) for item in items]):
        return f"real: {len(items)} of {COMPLETE} conversations of LoCoMo"
    return proofs.unverified("LoCoMo", len(items), "conversation")


def _reading(item: Any, where: str) -> Reading:
    identity = field(item, "sample_id", str, where)
    sessions = locomo_sessions(field(item, "conversation", dict, where), where)
    if not sessions:
        raise UserError(f"{where} has no sessions: replace the file with an intact copy.")
    asked = field(item, "qa", list, where)
    questions = tuple(
        _question(one, f"{identity}/{n}", f"Question {n} of {where[0].lower()}{where[1:]}")
        for n, one in enumerate(asked, start=1)
    )
    return Reading(identity, identity, transcript(sessions), questions)


def _question(asked: Any, identity: str, where: str) -> Question:
    text = field(asked, "question", str, where).strip()
    category = CATEGORIES.get(asked.get("category")) if isinstance(asked.get("category"), int) else None
    if category is None:
        raise UserError(f"{where} has no category: replace the file with an intact copy.")
    if category == "adversarial":
        answer = REFUSALS[0]
    else:
        answer = str(field(asked, "answer", int if isinstance(asked.get("answer"), int) else str, where))
    return Question(identity, text, (answer,), details={"category": category})


def _f1(text: str, question: Question) -> float:
    return _refuses(text) if _adversarial(question) else qa_metrics.f1(text, question.answers)


def _exact_match(text: str, question: Question) -> float:
    return _refuses(text) if _adversarial(question) else qa_metrics.exact_match(text, question.answers)


def _adversarial(question: Question) -> bool:
    return bool(question.details["category"] == "adversarial")


def _refuses(text: str) -> float:
    return float(any(refusal in text.lower() for refusal in REFUSALS))


def _sample(index: int) -> Reading:
    told = story(SAMPLE_WORDS, SAMPLE_SEED, index)
    details = {"category": CATEGORIES[4]}
    questions = (
        Question(f"{index}-{i}", one.question, (one.answer,), details=details) for i, one in enumerate(told.facts)
    )
    return Reading(f"sample/{index}", f"sample/{index}", told.text, tuple(questions))
