"""What a task is: data, a protocol, a prompt and a metric."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from contextlab import config as configs
from contextlab.errors import unknown
from contextlab.grammar import spelled_split

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter

Control = Literal["own", "none", "wrong"]
Source = Literal["local", "hub", "sample"]

LENGTHS = ("history", "tokens")
"""Settings of tasks that results keep in fields of their own, and not in the split."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The examples of one split and where they came from.

    Attributes:
        examples: every one an `Example`, in the order in which a limit takes them.
        source: where they were found.
        sha256: digest of the files, or of the generated text.
        note: one sentence on what the data is (real, re-laid, generated), printed and stored with every result.
    """

    examples: tuple[Any, ...]
    source: Source
    sha256: str
    note: str


@dataclasses.dataclass(frozen=True)
class Options:
    """What a protocol reads of an example.

    Attributes:
        context: which context is read: the example's own, none, or that of another example.
        history: tokens read before the scored ones in perplexity tasks; None reads and scores the whole document.
        tokens: the most tokens read of each document.
    """

    context: Control = "own"
    history: int | None = None
    tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Metric:
    """A mean over `n` observations with its 95 % interval; low and high are None where there is a single cluster."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclasses.dataclass(frozen=True)
class Measure:
    """The metric whose paired differences between runs are made.

    Attributes:
        name: of the metric.
        higher_is_better: None where the protocol does not say.
        bounded: whether every observation is a number between 0 and 1.
    """

    name: str
    higher_is_better: bool | None = None
    bounded: bool = False


class Part(NamedTuple):
    """What one observation adds to a metric: the mean over strata of the sum of numerators over that of denominators.

    Attributes:
        numerator: added to the numerator of the stratum.
        denominator: added to its denominator, the weight of the observation.
        cluster: name of what the observation is alike with for a reason (its work, its text), drawn together.
        stratum: name of what is averaged over in equal parts (a task, a class); most metrics have one, without a name.
    """

    numerator: float
    denominator: float
    cluster: str
    stratum: str = ""


class Protocol(ABC):
    """How examples of one kind are put to a method and scored.

    Attributes:
        measure: the metric that `quality` belongs to; the first one, of unknown direction, when None.
        prompt: all that it puts around the data in words; empty where there is nothing.
    """

    measure: Measure | None = None
    prompt: str = ""

    @abstractmethod
    def evaluate(self, meter: Meter, example: Any, other: Any) -> dict[str, Any]:
        """Put one example to the method.

        Args:
            meter: the method, with every call entered in the ledger.
            example: an example of the task.
            other: an example of another work, whose context is read when the control is `wrong`.

        Returns:
            The example's record: JSON values, with `id` and whatever `summarise` needs.
        """

    @abstractmethod
    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Metrics over the records of all examples."""

    @abstractmethod
    def quality(self, record: dict[str, Any]) -> float:
        """The one number of a record that tells how well it went."""

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """What a record adds to the metrics that runs are compared in: the measure, and `nats_per_token` for shares.

        A protocol without parts is compared in the mean of `quality` over the examples, those of one `work` of the
        record, where it has that, as a cluster.
        """
        return {}


class Task(ABC):
    """A benchmark: where its examples are, and the protocol that scores them.

    Attributes:
        name: that it is asked for by.
        splits: their names, and what each is.
        default_split: the one that is used when none is named.
        Config: dataclass of the settings, all with defaults.
        config: the settings.
    """

    name: ClassVar[str]
    splits: ClassVar[dict[str, str]]
    default_split: ClassVar[str]
    Config: ClassVar[type[configs.Config]] = configs.Config
    config: configs.Config

    def __init__(self, config: configs.Config | None = None) -> None:
        self.config = self.Config() if config is None else config

    def check_split(self, split: str | None) -> str:
        """The split to use: the default when None.

        Raises:
            UserError: when the task has no split of that name, or the settings do not fit it.
        """
        name = self.default_split if split is None else split
        if name not in self.splits:
            raise unknown(f"split of {self.name}", name, self.splits)
        return name

    def spelled(self, split: str) -> str:
        """A split with the settings that differ from their defaults, but for `LENGTHS`: as results store it."""
        settings = self.config.changed()
        return spelled_split(split, {name: value for name, value in settings.items() if name not in LENGTHS})

    def options(self, context: Control) -> Options:
        """What the settings let a protocol read under a control."""
        settings = self.config.as_dict()
        return Options(context, *(settings.get(name) for name in LENGTHS))

    def worded(self) -> Iterable[tuple[str, Task]]:
        """Every split, with the task in the settings that its prompts may differ by."""
        return ((split, self) for split in self.splits)

    @abstractmethod
    def load(self, split: str, data: Path | None) -> Dataset:
        """All examples of a split, from `data`, else the cache, else the hub, else the generated sample."""

    @abstractmethod
    def protocol(self, split: str, context: Control = "own") -> Protocol:
        """The protocol for a split, with the context that is read: the example's own, none, or a wrong one.

        Raises:
            UserError: when the settings do not fit the split or the context.
        """
