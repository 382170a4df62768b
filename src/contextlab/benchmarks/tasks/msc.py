"""Multi-Session Chat (Xu et al. 2022): questions about five sessions (MSC-Self-Instruct), perplexity of the fifth."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.configs import ContextConfig, QuestionConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.conversations import msc_sessions, sample_sessions, transcript
from contextlab.benchmarks.data.questions import in_turns, sample_dataset, sample_readings
from contextlab.benchmarks.data.sources import field, json_lines, locate
from contextlab.benchmarks.examples import Dialogue, Question, Reading, Session
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol
    from contextlab.benchmarks.protocols.responses import ResponseProtocol

# Ids of windows of LoCoMo conversations in the layout of MSC; upstream's ids have another form.
RELAID = re.compile(r"(conv-\d+)_[a-z]\d+")
DIALOGUES = "msc_dialogue/session_5/test.txt"
SAMPLE_SEED = 23
SAMPLE_CONVERSATIONS = 8
SAMPLE_WORDS = 1_500


class MSC(Task):
    """Short answers to questions about the five sessions of a conversation."""

    name: ClassVar[str] = "msc"
    splits: ClassVar[dict[str, str]] = {"self-instruct": "questions of MSC-Self-Instruct"}
    default_split: ClassVar[str] = "self-instruct"
    Config = QuestionConfig
    config: QuestionConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """Questions about the same five sessions share a reading; readings alternate between the conversations.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        self.check_split(split)
        location = locate(self.name, "msc_self_instruct.jsonl", data)
        if location.path is None:
            readings = sample_readings(SAMPLE_CONVERSATIONS, SAMPLE_WORDS, SAMPLE_SEED)
            return sample_dataset(readings, "MSC-Self-Instruct")
        records, sha256 = json_lines(location.path)
        works: dict[str, dict[str, list[Question]]] = {}
        for number, (where, record) in enumerate(records, start=1):
            sessions = works.setdefault(_work(record, where), {})
            sessions.setdefault(transcript(msc_sessions(record, where)), []).append(_question(record, number, where))
        readings = in_turns([_readings(work, sessions) for work, sessions in works.items()])
        return Dataset(readings, location.source, sha256, _note(records, "MSC-Self-Instruct", location.path))

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Greedy answers of at most 20 tokens; `tokens` keeps the end of the sessions."""
        from contextlab.benchmarks.protocols.answers import SQUAD_SCORES, AnswerProtocol

        self.check_split(split)
        scores = {
            "f1": SQUAD_SCORES["f1"],
            "rouge_l_recall": lambda text, question: qa_metrics.rouge_l_recall(text, question.answers),
            "exact_match": SQUAD_SCORES["exact_match"],
        }
        prompts = ("document-question", "question")
        return AnswerProtocol(prompts, self.options(context), scores, wording=self.config.prompt)


class MSCPerplexity(Task):
    """Perplexity of the responses of the fifth session after the four before it."""

    name: ClassVar[str] = "msc-ppl"
    splits: ClassVar[dict[str, str]] = {"session-5": "test conversations of five sessions"}
    default_split: ClassVar[str] = "session-5"
    Config = ContextConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """The conversations; those that are parts of one conversation alternate with others.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        self.check_split(split)
        location = locate("msc", DIALOGUES, data)
        if location.path is None:
            conversations = [sample_sessions(SAMPLE_SEED, index) for index in range(SAMPLE_CONVERSATIONS)]
            dialogues = [_dialogue(f"sample/{n}", f"sample/{n}", sessions) for n, sessions in enumerate(conversations)]
            digest = hashlib.sha256(repr(dialogues).encode()).hexdigest()
            return Dataset(tuple(dialogues), "sample", digest, "generated sample, not MSC")
        records, sha256 = json_lines(location.path)
        works: dict[str, list[Dialogue]] = {}
        for number, (where, record) in enumerate(records, start=1):
            work = _work(record, where)
            works.setdefault(work, []).append(_dialogue(f"test/{number}", work, msc_sessions(record, where), where))
        return Dataset(in_turns(works.values()), location.source, sha256, _note(records, "MSC", location.path))

    def protocol(self, split: str, context: Control = "own") -> ResponseProtocol:
        """Scores every turn of the last session but its first; `tokens` keeps the end of the earlier sessions."""
        from contextlab.benchmarks.protocols.responses import ResponseProtocol

        self.check_split(split)
        return ResponseProtocol(self.options(context))


def _work(record: Any, where: str) -> str:
    """The work of a conversation: windows of one re-laid conversation overlap."""
    identity: str = field(field(record, "metadata", dict, where), "initial_data_id", str, where)
    relaid = RELAID.fullmatch(identity)
    return relaid[1] if relaid else identity


def _question(record: Any, number: int, where: str) -> Question:
    question = field(record, "self_instruct", dict, where)
    return Question(f"{number}", field(question, "B", str, where).strip(), (field(question, "A", str, where),))


def _readings(work: str, sessions: dict[str, list[Question]]) -> list[Reading]:
    numbered = enumerate(sessions.items())
    return [Reading(f"{work}/{n}", work, text, tuple(questions)) for n, (text, questions) in numbered]


def _dialogue(identity: str, work: str, sessions: Sequence[Session], where: str = "") -> Dialogue:
    if len(sessions[-1].turns) < 2:
        raise UserError(f"{where} has no response in its field 'dialog': replace the file with an intact copy.")
    return Dialogue(identity, work, transcript(sessions[:-1]), sessions[-1])


def _note(records: Sequence[tuple[str, Any]], name: str, path: Path) -> str:
    if proofs.published("msc", path) or (name == "MSC" and proofs.in_archive("msc", path, DIALOGUES)):
        return f"real: {name}"
    if proofs.verified("msc-relaid", [proofs.file_item(name, path)]):
        return f"re-laid: LoCoMo conversations in the {name} layout, not {name}"
    if any(RELAID.fullmatch(record["metadata"]["initial_data_id"]) for _, record in records):
        return f"re-laid: conversations of other origin in the {name} layout, by their ids, not {name}"
    return proofs.unverified(name, len(records), "record")
