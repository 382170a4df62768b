"""L-Eval (An et al. 2023): long documents with several questions each, and its part of QuALITY (Pang et al. 2022)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.configs import TurnsConfig
from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.sources import field, texts
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Control
from contextlab.benchmarks.tasks.documents import Documents, WrittenConfig, rouge_scores
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol, Score

TOPICS = "topic_retrieval_longchat"
OPTION = re.compile(r"^\s*\(([A-Z])\) ?", re.MULTILINE)
SAMPLE = (4, 2_000, 27)
"""Number of generated texts, words of each, and their seed."""


class LEvalFiles(Documents):
    """Base class of the tasks over L-Eval's files."""

    title: ClassVar[str] = "L-Eval"
    noun: ClassVar[str] = "document"
    dataset: ClassVar[str] = "leval"

    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A document with its questions."""
        instructions, outputs = (texts(record, name, where) for name in ("instructions", "outputs"))
        if len(instructions) != len(outputs):
            raise UserError(f"{where} has not as many answers as questions: replace the file with an intact copy.")
        pairs = enumerate(zip(instructions, outputs, strict=True))
        questions = (
            self.question(text.strip(), output.strip(), where, f"{identity}/{n}") for n, (text, output) in pairs
        )
        return Reading(identity, identity, field(record, "input", str, where), tuple(questions))

    def question(self, text: str, output: str, where: str, identity: str) -> Question:
        """A question of the file.

        Raises:
            UserError: when it lacks a part.
        """
        return Question(identity, text, (output,))


class LEval(LEvalFiles):
    """Written answers to questions about papers, web pages, several documents or a long chat."""

    name: ClassVar[str] = "leval"
    splits: ClassVar[dict[str, str]] = {
        "scientific_qa": "papers, questions of Qasper",
        "natural_question": "Wikipedia pages, questions of Natural Questions",
        "multidoc_qa": "several documents of MultiDoc2Dial",
        TOPICS: "chats of LongChat: the first, second and third topic",
    }
    default_split: ClassVar[str] = "natural_question"
    Config = WrittenConfig
    config: WrittenConfig
    files: ClassVar[dict[str, str]] = {
        split: f"LEval-data/{'Closed' if split == 'topic_retrieval_longchat' else 'Open'}-ended-tasks/{split}.jsonl"
        for split in splits
    }
    complete: ClassVar[dict[str, int]] = {
        "scientific_qa": 23,
        "natural_question": 21,
        "multidoc_qa": 23,
        TOPICS: 50,
    }

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """F1 and ROUGE of greedy answers, or exact match of topics; `tokens` keeps the end of a document."""
        from contextlab.benchmarks.protocols.answers import SQUAD_SCORES, AnswerProtocol

        scores: dict[str, Score] = {name: SQUAD_SCORES[name] for name in ("f1", "exact_match")}
        if self.check_split(split) == TOPICS:
            scores = {"exact_match": scores["exact_match"], "f1": scores["f1"]}
        else:
            rouge_scores()  # refuses a missing package before anything is read
            scores["rouge"] = mean_rouge
        prompts, most = ("document-question", "question"), self.config.max_new_tokens
        return AnswerProtocol(prompts, self.options(context), scores, max_new_tokens=most)

    def question(self, text: str, output: str, where: str, identity: str) -> Question:
        """A question; an open one states the length of the reference in words, as upstream does."""
        if identity.startswith(TOPICS):
            return Question(identity, text, (output,))
        words = len(output.split())
        return Question(identity, f"{text} (about {words} word{'s' * (words != 1)})", (output,))

    def sample(self, split: str) -> Sequence[Reading]:
        """Generated stories with questions about facts."""
        return sample_readings(*SAMPLE)


class QuALITY(LEvalFiles):
    """Which of four answers to a question about a story is right?"""

    name: ClassVar[str] = "quality"
    splits: ClassVar[dict[str, str]] = {"leval": "the stories of L-Eval's file"}
    default_split: ClassVar[str] = "leval"
    Config = TurnsConfig
    title: ClassVar[str] = "QuALITY in L-Eval"
    noun: ClassVar[str] = "text"
    files: ClassVar[dict[str, str]] = {"leval": "LEval-data/Closed-ended-tasks/quality.jsonl"}
    complete: ClassVar[dict[str, int]] = {"leval": 15}

    def protocol(self, split: str, context: Control = "own") -> RankProtocol:
        """Accuracy of the option with the lowest perplexity per token; `tokens` keeps the end of a story."""
        from contextlab.benchmarks.protocols.answers import RankProtocol

        self.check_split(split)
        return RankProtocol(("recall-question", "recall-question"), self.options(context))

    def question(self, text: str, output: str, where: str, identity: str) -> Question:
        """A question with its options, without their letters."""
        stem, *parts = OPTION.split(text)
        options = tuple(option.strip() for option in parts[1::2])
        answer = OPTION.match(output)
        number = parts[::2].index(answer.group(1)) if answer and answer.group(1) in parts[::2] else None
        if number is None or not stem.strip() or not all(options):
            raise UserError(f"{where} has a question without options or answer: replace the file with an intact copy.")
        return Question(identity, stem.strip(), (options[number],), options)

    def sample(self, split: str) -> Sequence[Reading]:
        """Generated stories; the options are the answers to all questions about the same story."""
        return [
            dataclasses.replace(reading, questions=tuple(_with_options(reading)))
            for reading in sample_readings(*SAMPLE)
        ]


def mean_rouge(text: str, question: Question) -> float:
    """The geometric mean of ROUGE-1, 2 and L, as in L-Eval."""
    kinds = [qa_metrics.rouge(kind, text, question.answers) for kind in ("rouge1", "rouge2", "rougeL")]
    return float((kinds[0] * kinds[1] * kinds[2]) ** (1 / 3))


def _with_options(reading: Reading) -> Iterator[Question]:
    options = tuple(sorted({question.answers[0] for question in reading.questions}))
    return (dataclasses.replace(question, options=options) for question in reading.questions)
