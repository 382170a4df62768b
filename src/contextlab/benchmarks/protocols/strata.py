"""Questions of several tasks in one run, each asked in the words of its task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Reading
from contextlab.benchmarks.protocols.answers import QuestionProtocol, means
from contextlab.benchmarks.task import Metric, Part, Protocol

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter


class StrataProtocol(Protocol):
    """A protocol for every task; each metric is the mean over the tasks of the means over their questions.

    Args:
        protocols: by task, which is the detail `stratum` of its questions; all with the same measures.
    """

    def __init__(self, protocols: Mapping[str, QuestionProtocol]) -> None:
        self.protocols = protocols
        self._first = next(iter(protocols.values()))
        self.measure = self._first.measure
        self.prompt = "\n\n".join(protocol.prompt for protocol in protocols.values())

    def evaluate(self, meter: Meter, example: Reading, other: Reading) -> dict[str, Any]:
        """Ask the questions of one context in the words of their task.

        Raises:
            UserError: when context, question and answer are longer than the method can read as one text.
        """
        return self.protocols[example.questions[0].details["stratum"]].evaluate(meter, example, other)

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """The mean of every measure over the tasks, and of the first measure for each task."""
        return means(records, self._first.measures, by="stratum")

    def quality(self, record: dict[str, Any]) -> float:
        """The mean of the first measure over the questions of a text: higher is better."""
        return self._first.quality(record)

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """One part per question, in the stratum of its task."""
        return self._first.parts(record)
