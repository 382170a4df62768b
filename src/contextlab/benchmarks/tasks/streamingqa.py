"""StreamingQA (Liska et al. 2022), evaluation set, as in GenerativeAdapter (section 4.2): questions about dated news.

Questions name their article by its WMT sorting key, which ends in the sha256 of the encoded article in the archives.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pydantic

from contextlab.benchmarks.configs import AnswerConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import LENGTHS, grouped, sample_dataset, sample_documents
from contextlab.benchmarks.data.sources import field, json_lines, lines, locate, plain_or_packed, texts
from contextlab.benchmarks.examples import Passage, Question
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import QuestionProtocol

# Upstream's spelling.
FILE = "streaminqa_eval.jsonl"
AGES = ("recent", "past")
SAMPLE_SEED = 22


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class StreamingQAConfig(AnswerConfig):
    """The order of articles, the wording of questions, and what of an answer is measured.

    Attributes:
        order: order of the articles: by `date`, or `shuffled` by the rule of GenerativeAdapter's code.
    """

    order: Literal["date", "shuffled"] = "date"


class StreamingQA(Task):
    """Short answers to questions about news articles that are read together."""

    name: ClassVar[str] = "streamingqa"
    splits: ClassVar[dict[str, str]] = {
        length + suffix: f"{kind}articles joined to {tokens:,} tokens on average"
        for suffix, kind in (("", ""), *((f"-{age}", f"{age} ") for age in AGES))
        for length, tokens in LENGTHS.items()
    }
    default_split: ClassVar[str] = "512"
    Config = StreamingQAConfig
    config: StreamingQAConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """The articles by date, joined to texts, with all their questions.

        The digest covers the file of questions, and through the sha256 in sorting keys also the articles.

        Raises:
            UserError: when a file is missing or broken, or the archives lack an article.
        """
        split = self.check_split(split)
        age = split.partition("-")[2]
        location = locate(self.name, FILE, data)
        if location.path is None:
            return sample_dataset(grouped(_sample(age), split), "StreamingQA")
        records, sha256 = json_lines(location.path)
        questions = [_question(record, where) for where, record in records]
        chosen = [pair for pair in questions if age in ("", pair[1].details["age"])]
        if not chosen:
            raise UserError(f"{location.path} holds no {age} questions: choose another split.")
        documents = _documents(chosen, location.path.parent / "wmt")
        if self.config.order == "shuffled":
            documents, split = _shuffled(documents, chosen), f"{split}-shuffled"
        note = _note([record for _, record in records], location.path)
        return Dataset(grouped(documents, split), location.source, sha256, note)

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Greedy answers of at most 20 tokens, or reference answers; `tokens` keeps the end of a text."""
        from contextlab.benchmarks.protocols.references import answers_of_documents

        self.check_split(split)
        return answers_of_documents(self.options(context), self.config.answer, by="age", wording=self.config.prompt)


def _question(record: Any, where: str) -> tuple[str, Question]:
    """The sorting key of an article, and a question about it."""
    key, age = field(record, "evidence_id", str, where), field(record, "recent_or_past", str, where)
    digest = key[20:].strip("\0\1")
    if not key[:20].isascii() or not key[:20].isdigit() or len(digest) != 64 or age not in AGES:
        raise UserError(f"{where} has no sorting key or age: replace the file with an intact copy.")
    dates = {name: _date(record, f"{name}_ts", where) for name in ("question", "evidence")}
    answers = tuple(dict.fromkeys(texts(record, "answers", where)))
    text = field(record, "question", str, where).strip()
    return key, Question(field(record, "qa_id", str, where), text, answers, details={"age": age, **dates})


def _date(record: Any, name: str, where: str) -> str:
    try:
        return datetime.fromtimestamp(field(record, name, int, where), UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        raise UserError(f"{where} has no time in its field '{name}': replace the file with an intact copy.") from None


def _documents(questions: Sequence[tuple[str, Question]], folder: Path) -> list[Passage]:
    by_article: dict[str, list[Question]] = {}
    for key, question in questions:
        by_article.setdefault(key, []).append(question)
    articles: dict[str, str] = {}
    for year in sorted({key[:4] for key in by_article}):
        listed = folder / f"news-docs.{year}.en.filtered.gz"
        key_of_digest = {key[20:].strip("\0\1"): key for key in by_article if key[:4] == year}
        articles |= _articles(plain_or_packed(listed) or listed, key_of_digest)
    return [Passage(articles[key], tuple(by_article[key])) for key in sorted(by_article)]


def _shuffled(documents: Sequence[Passage], questions: Sequence[tuple[str, Question]]) -> list[Passage]:
    """The rule of GenerativeAdapter's code: questions are shuffled by numpy's seed 0; articles by first occurrence.

    The code shuffles the rows of a file that is not published, so that its exact order cannot be reproduced.
    """
    first: dict[str, int] = {}
    for rank, row in enumerate(np.random.RandomState(0).permutation(len(questions))):
        first.setdefault(questions[row][0], rank)
    by_key = zip(sorted(first), documents, strict=True)
    return [document for _, document in sorted(by_key, key=lambda pair: first[pair[0]])]


def _articles(path: Path, key_of_digest: dict[str, str]) -> dict[str, str]:
    """The articles of an archive whose digests have a key, by their keys."""
    articles: dict[str, str] = {}
    for where, line in lines(path):
        _, _, encoded = line.rpartition(b"\t")
        key = key_of_digest.get(hashlib.sha256(encoded).hexdigest())
        if key is not None:
            try:
                articles[key] = base64.b64decode(encoded, validate=True).decode().strip()
            except ValueError:
                raise UserError(f"{where} holds no article: replace the file with an intact copy.") from None
    missing = [key for key in key_of_digest.values() if not articles.get(key)]
    if missing:
        raise UserError(f"{path} lacks {len(missing)} articles of questions: replace it with a whole copy.")
    return articles


def _note(records: Sequence[Any], path: Path) -> str:
    if proofs.published("streamingqa", path):
        return "real: the StreamingQA evaluation set"
    if proofs.verified("streamingqa-relaid", [proofs.file_item(FILE, path)]):
        return "re-laid: SQuAD paragraphs in the StreamingQA layout with invented dates, not StreamingQA"
    # Upstream has answers of three people, which differ for some questions.
    if all(len(set(record["answers"])) == 1 for record in records):
        return "re-laid: data of other origin in the StreamingQA layout, one answer a question, not StreamingQA"
    return proofs.unverified("StreamingQA", len(records), "question")


def _sample(age: str) -> list[Passage]:
    documents = [
        Passage(
            document.text,
            tuple(dataclasses.replace(question, details={"age": AGES[n % 2]}) for question in document.questions),
        )
        for n, document in enumerate(sample_documents(SAMPLE_SEED))
    ]
    return documents if not age else documents[AGES.index(age) :: 2]
