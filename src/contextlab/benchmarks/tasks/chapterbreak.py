"""ChapterBreak (Sun, Thai and Iyyer 2022): which of six texts begins the next chapter?

The context is the text before a chapter break, the candidates are the true beginning of the next chapter and five
beginnings of other chapters of the same work. The prediction is the candidate with the lowest perplexity per token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.sources import Location, field, json_file, locate, shuffled
from contextlab.benchmarks.examples import Choice
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.config import Config

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.spans import ChoiceProtocol

LENGTHS = {"ctx-512": 512, "ctx-1k": 1024, "ctx-2k": 2048, "ctx-4k": 4096, "ctx-6k": 6144, "ctx-8k": 8192}
# LongMem reports 6k, for which there is no file: its contexts are the ends of those of 8k.
FILES = {**{tokens: tokens for tokens in LENGTHS.values()}, 6144: 8192}
SUBSETS = {"": ("pg19",), "-ao3": ("ao3",), "-all": ("pg19", "ao3")}
SUFFIX_TOKENS = 128
SAMPLE_EXAMPLES = 24


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ChapterBreakConfig(Config):
    """The length of contexts.

    Attributes:
        upstream: whether contexts alone have the length of the split, as the publishers describe it; they are shorter
            only where the method cannot read context and candidate as one text.
    """

    upstream: bool = False


class ChapterBreak(Task):
    """Choose the true beginning of the next chapter among six, by perplexity after the text before it."""

    name: ClassVar[str] = "chapterbreak"
    splits: ClassVar[dict[str, str]] = {
        length + suffix: f"{tokens} tokens of context and candidate, sub-set {' and '.join(subsets)}"
        for suffix, subsets in SUBSETS.items()
        for length, tokens in LENGTHS.items()
    }
    default_split: ClassVar[str] = "ctx-4k"
    Config = ChapterBreakConfig
    config: ChapterBreakConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """All examples of a split: first the first example of every work, then the second of every work, and so on.

        Raises:
            UserError: when the data folder lacks the file, or the file is broken.
        """
        tokens, subsets = _parts(self.check_split(split))
        location = locate(self.name, f"chapterbreak_ctx_{FILES[tokens]}.json", data)
        if location.path is None:
            return _sample(tokens, subsets)
        content, sha256 = json_file(location.path)
        works = [work for subset in subsets for work in _works(content, subset, location.path)]
        turns = itertools.zip_longest(*works)
        examples = tuple(example for turn in turns for example in turn if example is not None)
        return Dataset(examples, location.source, sha256, _note(location, len(examples)))

    def protocol(self, split: str, context: Control = "own") -> ChoiceProtocol:
        """Context and candidate together have the length of the split."""
        from contextlab.benchmarks.protocols.spans import ChoiceProtocol

        tokens, _ = _parts(self.check_split(split))
        return ChoiceProtocol(tokens, SUFFIX_TOKENS, self.options(context), whole=self.config.upstream)


def _parts(split: str) -> tuple[int, tuple[str, ...]]:
    length = "-".join(split.split("-")[:2])
    return LENGTHS[length], SUBSETS[split.removeprefix(length)]


def _works(content: Any, subset: str, path: Path) -> Iterator[list[Choice]]:
    works = field(content, subset, dict, str(path))
    for work in works:
        examples = field(works, work, list, f"Sub-set {subset} of {path}")
        yield [_choice(f"{subset}/{work}", n, example, path) for n, example in enumerate(examples)]


def _choice(work: str, n: int, example: Any, path: Path) -> Choice:
    where = f"Example {work}/{n} of {path}"
    context, true, others = (
        field(example, name, kind, where) for name, kind in (("ctx", str), ("pos", str), ("negs", list))
    )
    texts = [field({"negs": text}, "negs", str, where) for text in others]
    candidates, answer = shuffled(f"{work}/{n}", true, texts)
    return Choice(f"{work}/{n}", work, context, candidates, answer)


def _note(location: Location, examples: int) -> str:
    assert location.path is not None
    if (location.path.parent / "provenance.jsonl").exists():
        return "re-laid: ChapterBreak layout over other books, not the ChapterBreak benchmark"
    if location.revision:
        return f"ChapterBreak of hub revision {location.revision}, for which nobody publishes a digest"
    return proofs.unverified("ChapterBreak", examples, "example")


def _sample(tokens: int, subsets: tuple[str, ...]) -> Dataset:
    from contextlab.benchmarks.data.sample import choices

    seeds = [("pg19", "ao3").index(subset) for subset in subsets]
    examples = tuple(choice for seed in seeds for choice in choices(tokens, SAMPLE_EXAMPLES, seed))
    digest = hashlib.sha256("\0".join(text for c in examples for text in (c.context, *c.candidates)).encode())
    return Dataset(examples, "sample", digest.hexdigest(), "generated sample, not ChapterBreak")
