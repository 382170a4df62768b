"""The development file of HotpotQA (Yang et al. 2018) with distractors, as it is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.ruler.documents import DocumentCorpus, DocumentQuestion
from contextlab.benchmarks.data.sources import field, json_file, texts
from contextlab.errors import UserError

FOLDER, FILE = "hotpotqa", "hotpot_dev_distractor_v1.json"


def read(path: Path) -> tuple[DocumentCorpus, str]:
    """All paragraphs and questions of a file, and its sha256.

    The two paragraphs that support an answer are a question's own; the other eight, written to distract, are related.

    Raises:
        UserError: when the file is missing or broken.
    """
    records, sha256 = json_file(path)
    documents: dict[str, int] = {}
    questions = [
        _question(record, f"Question {number} of {path}", documents)
        for number, record in enumerate(field({"records": records}, "records", list, str(path)), start=1)
    ]
    return DocumentCorpus(tuple(documents), tuple(questions)), sha256


def note(corpus: DocumentCorpus) -> str:
    """The description of a file, for tables; no digest of it is published."""
    return proofs.unverified("HotpotQA's development set", len(corpus.questions), "question")


def _question(record: Any, where: str, documents: dict[str, int]) -> DocumentQuestion:
    """A question; its paragraphs are added to the documents."""
    numbers: dict[str, int] = {}
    for paragraph in field(record, "context", list, where):
        title, sentences = _paragraph(paragraph, where)
        numbers[title] = documents.setdefault(f"{title}\n{''.join(sentences)}", len(documents))
    support = {texts({"fact": fact[:1]}, "fact", where)[0] for fact in _lists(record, "supporting_facts", where)}
    if not support <= set(numbers):
        raise UserError(f"{where} has supporting facts without a paragraph: replace the file with an intact copy.")
    return DocumentQuestion(
        field(record, "question", str, where),
        (field(record, "answer", str, where),),
        tuple(number for title, number in numbers.items() if title in support),
        tuple(number for title, number in numbers.items() if title not in support),
    )


def _paragraph(paragraph: Any, where: str) -> tuple[str, tuple[str, ...]]:
    """Title and sentences."""
    parts = field({"paragraph": paragraph}, "paragraph", list, where)
    if len(parts) != 2:
        raise UserError(f"{where} has a paragraph without title and sentences: replace the file with an intact copy.")
    return field({"title": parts[0]}, "title", str, where), texts({"sentences": parts[1]}, "sentences", where)


def _lists(record: Any, name: str, where: str) -> list[list[Any]]:
    return [field({name: item}, name, list, where) for item in field(record, name, list, where)]
