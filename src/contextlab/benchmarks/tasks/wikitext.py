"""WikiText-2 (Merity et al. 2017): perplexity of whole Wikipedia articles in tokenised text.

The texts are read unchanged: `<unk>` for rare words, ` @-@ ` for hyphens, a space at both ends of a line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.sources import locate, read
from contextlab.benchmarks.examples import Document
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks.perplexity import PerplexityTask, sample_documents
from contextlab.errors import UserError

# Headings of sections have two or more equals signs; formulas on a separate line have no empty line after them.
TITLE = re.compile(r"^ = (?!= ).* = \n(?= \n)", re.MULTILINE)
COMPLETE = 60
# Numbers of documents and words of the generated sample, and its seeds by split.
SAMPLE_SIZE = 8, 2_000
SAMPLE_SEEDS = {"valid": 11, "test": 12}


class WikiText(PerplexityTask):
    """Perplexity of Wikipedia articles, by token and by word."""

    name: ClassVar[str] = "wikitext"
    splits: ClassVar[dict[str, str]] = {
        "valid": "validation articles of WikiText-2",
        "test": "test articles of WikiText-2",
    }
    default_split: ClassVar[str] = "test"

    def load(self, split: str, data: Path | None) -> Dataset:
        """The articles of a split, in the order of the file, without leaving out any text.

        Raises:
            UserError: when the data folder lacks the file, or it has no article.
        """
        split = self.check_split(split)
        location = locate(self.name, f"wikitext-2/{split}.txt", data)
        if location.path is None:
            count, words = SAMPLE_SIZE
            return sample_documents(words, count, SAMPLE_SEEDS[split], "WikiText-2")
        text, sha256 = read(location.path)
        starts = [title.start() for title in TITLE.finditer(text)]
        if not starts:
            raise UserError(f"{location.path} has no line ' = Title = ': replace it with an intact copy of WikiText-2.")
        # Text before the first title belongs to the first article.
        ends = [*starts[1:], len(text)]
        articles = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        examples = tuple(Document(f"{split}/{n}", article) for n, article in enumerate(articles))
        return Dataset(examples, location.source, sha256, _note(articles, split, location.path))


def _note(articles: list[str], split: str, path: Path) -> str:
    if proofs.published("wikitext", path):
        return "real: WikiText-2"
    group = f"wikitext-{split}"
    if proofs.verified(group, map(proofs.item, articles)):
        half = len(articles) == len(proofs.known(group))
        return f"real: {'every second article' if half else f'{len(articles)} of {COMPLETE} articles'} of WikiText-2"
    return proofs.unverified("WikiText-2", len(articles), "article")
