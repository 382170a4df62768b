"""What tasks that score documents have in common: the protocol, and a generated sample."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from contextlab.benchmarks.configs import PerplexityConfig
from contextlab.benchmarks.task import Control, Dataset, Task

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.spans import PerplexityProtocol


class PerplexityTask(Task):
    """Base class of the tasks whose examples are documents."""

    Config = PerplexityConfig

    def protocol(self, split: str, context: Control = "own") -> PerplexityProtocol:
        """Reads whole documents, or scores 1,024 tokens after a history; segments are the method's own."""
        from contextlab.benchmarks.protocols.spans import PerplexityProtocol

        self.check_split(split)
        return PerplexityProtocol(self.options(context))


def sample_documents(words: int, count: int, seed: int, title: str) -> Dataset:
    """Generated documents in place of those of a data set.

    Args:
        words: of each document, at least.
        count: of documents.
        seed: of the generated text.
        title: of the data set.
    """
    from contextlab.benchmarks.data.sample import documents

    examples = documents(words, count, seed=seed)
    digest = hashlib.sha256("\0".join(example.text for example in examples).encode()).hexdigest()
    return Dataset(examples, "sample", digest, f"generated sample, not {title}")
