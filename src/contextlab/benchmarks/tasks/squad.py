"""SQuAD v1.1 (Rajpurkar et al. 2016), development set: many questions per text, as in GenerativeAdapter (4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from contextlab.benchmarks.configs import AnswerConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import LENGTHS, grouped, sample_dataset, sample_documents
from contextlab.benchmarks.data.sources import field, json_file, locate
from contextlab.benchmarks.examples import Passage, Question
from contextlab.benchmarks.task import Control, Dataset, Task

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import QuestionProtocol

COMPLETE = 10_570
SAMPLE_SEED = 21


class SQuAD(Task):
    """Short answers to questions about Wikipedia paragraphs that are read together."""

    name: ClassVar[str] = "squad"
    splits: ClassVar[dict[str, str]] = {
        length: f"paragraphs joined to {tokens:,} tokens on average" for length, tokens in LENGTHS.items()
    }
    default_split: ClassVar[str] = "512"
    Config = AnswerConfig
    config: AnswerConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """All paragraphs in the order of the file, joined to texts, with all their questions.

        Raises:
            UserError: when the data folder lacks the file, or it is broken.
        """
        split = self.check_split(split)
        location = locate(self.name, "dev-v1.1.json", data)
        if location.path is None:
            return sample_dataset(grouped(sample_documents(SAMPLE_SEED), split), "SQuAD")
        content, sha256 = json_file(location.path)
        by_article = articles(content, str(location.path))
        readings = grouped([document for article in by_article for document in article], split)
        return Dataset(readings, location.source, sha256, note(by_article, location.path))

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Greedy answers of at most 20 tokens, or reference answers; `tokens` keeps the end of a text."""
        from contextlab.benchmarks.protocols.references import answers_of_documents

        self.check_split(split)
        return answers_of_documents(self.options(context), self.config.answer, wording=self.config.prompt)


def note(by_article: Sequence[Sequence[Passage]], path: Path) -> str:
    """The description of the articles of a file, for tables."""
    if proofs.published("squad", path):
        return "real: the SQuAD v1.1 development set"
    items = [
        proofs.item(document.text, question.id, question.text, *question.answers)
        for article in by_article
        for document in article
        for question in document.questions
    ]
    if proofs.verified("squad", items):
        return f"real: {len(items):,} of {COMPLETE:,} questions of the SQuAD v1.1 development set"
    return proofs.unverified("SQuAD v1.1", len(items), "question")


def articles(content: Any, where: str) -> list[list[Passage]]:
    """The paragraphs of every article of a SQuAD file.

    Raises:
        UserError: where the file does not have that form.
    """
    numbered = enumerate(field(content, "data", list, where), start=1)
    return [list(_paragraphs(article, number, where)) for number, article in numbered]


def _paragraphs(article: Any, number: int, where: str) -> Iterator[Passage]:
    paragraphs = field(article, "paragraphs", list, f"Article {number} of {where}")
    for position, paragraph in enumerate(paragraphs, start=1):
        here = f"Paragraph {position} of article {number} of {where}"
        cluster = {"cluster": f"article/{number}"}
        questions = tuple(_question(question, here, cluster) for question in field(paragraph, "qas", list, here))
        yield Passage(field(paragraph, "context", str, here), questions)


def _question(record: Any, where: str, details: dict[str, str]) -> Question:
    identity = field(record, "id", str, where)
    answers = [field(answer, "text", str, where) for answer in field(record, "answers", list, where)]
    return Question(
        identity, field(record, "question", str, where).strip(), tuple(dict.fromkeys(answers)), details=details
    )
