"""Texts with questions, and the joining of documents to texts of a wanted length."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from contextlab.benchmarks.data.sample import Fact, story
from contextlab.benchmarks.examples import Passage, Question, Reading
from contextlab.benchmarks.task import Dataset

T = TypeVar("T")

# Tokens of SmolLM2 for each word or punctuation mark of a SQuAD paragraph.
TOKENS_PER_MARK = 1.16
LENGTHS = {"512": 512, "1k": 1024, "2k": 2048, "4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768}
SAMPLE_DOCUMENTS = 40
SAMPLE_WORDS = 130


def grouped(documents: Sequence[Passage], split: str) -> tuple[Reading, ...]:
    """Documents in their order, joined by empty lines to texts whose average length is that of the split.

    The texts have nearly equal numbers of documents (GenerativeAdapter, section 4.2). Lengths are estimated from words
    and punctuation marks, so that the texts are the same for every tokenizer.
    """
    total = sum(estimated_tokens(document.text) for document in documents)
    count = min(len(documents), math.ceil(total / LENGTHS[split.partition("-")[0]]))
    size, longer = divmod(len(documents), count)
    ends = list(itertools.accumulate([size + 1] * longer + [size] * (count - longer)))
    parts = [documents[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(
        Reading(
            f"{split}/{n}",
            f"{split}/{n}",
            "\n\n".join(document.text for document in part),
            tuple(question for document in part for question in document.questions),
        )
        for n, part in enumerate(parts)
    )


def estimated_tokens(text: str) -> float:
    """How many tokens a text has, to a few percent for English."""
    return TOKENS_PER_MARK * len(re.findall(r"\w+|[^\w\s]", text))


def in_turns(rows: Iterable[Sequence[T]]) -> tuple[T, ...]:
    """The first item of every row, then the second item of every row, and so on."""
    missing = object()
    turns = itertools.zip_longest(*rows, fillvalue=missing)
    return tuple(item for turn in turns for item in turn if item is not missing)  # type: ignore[misc]


def sample_documents(seed: int) -> tuple[Passage, ...]:
    """Short stories of the generated sample, with questions about them."""
    stories = [story(SAMPLE_WORDS, seed, index) for index in range(SAMPLE_DOCUMENTS)]
    return tuple(
        Passage("\n\n".join(tale.chapters), _fact_questions(f"{seed}-{n}", tale.facts, {}))
        for n, tale in enumerate(stories)
        if tale.facts
    )


def sample_readings(count: int, words: int, seed: int, details: Mapping[str, Any] | None = None) -> tuple[Reading, ...]:
    """Generated stories of at least `words` words, each with questions about its facts, all with these details."""
    stories = [story(words, seed, index) for index in range(count)]
    return tuple(
        Reading(f"sample/{n}", f"sample/{n}", tale.text, _fact_questions(f"{n}", tale.facts, details or {}))
        for n, tale in enumerate(stories)
    )


def sample_dataset(readings: Sequence[Reading], name: str) -> Dataset:
    """Generated readings in place of a data set."""
    digest = hashlib.sha256(repr(readings).encode()).hexdigest()
    return Dataset(tuple(readings), "sample", digest, f"generated sample, not {name}")


def _fact_questions(prefix: str, facts: Sequence[Fact], details: Mapping[str, Any]) -> tuple[Question, ...]:
    return tuple(
        Question(f"{prefix}-{i}", fact.question, (fact.answer,), details=details) for i, fact in enumerate(facts)
    )
