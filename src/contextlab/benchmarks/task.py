"""Tasks: data, a protocol, a prompt and a metric."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import pydantic

from contextlab import config as configs
from contextlab.errors import unknown
from contextlab.grammar import spelled_split

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone

Control = Literal["own", "none", "wrong"]
Source = Literal["local", "hub", "sample"]
Target = Literal["completion", "reconstruction"]
TurnMode = Literal["requests", "gold", "own", "prompts"]
Answer = Literal["written", "reference"]

SCORED = 1024
"""Tokens that perplexity tasks score after a history."""

LENGTHS = ("history", "tokens")
"""Settings of tasks that results store in separate fields, and not in the split."""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The examples of one split and their source.

    Attributes:
        examples: of type `Example`; a limit keeps the first ones.
        source: the kind of their source.
        sha256: digest of the files, or of the generated text.
        note: one sentence on what the data is (real, re-laid, generated), printed and stored with every result.
    """

    examples: tuple[Any, ...]
    source: Source
    sha256: str
    note: str


@dataclasses.dataclass(frozen=True)
class Options:
    """Which part of an example a protocol reads.

    Attributes:
        context: the context that is read: the example's own, none, or that of another example.
        history: tokens read before the scored ones in perplexity tasks; None reads and scores the whole document.
        tokens: the most tokens read of each document.
        begin: tokens of each document that are left out in front of the history.
        scored: tokens scored after a history.
        target: what these are: the text that follows, or the end of the history once more.
        turns: what has been read when one of several questions about a context is asked, see `protocols.turns`.
    """

    context: Control = "own"
    history: int | None = None
    tokens: int | None = None
    begin: int = 0
    scored: int = SCORED
    target: Target = "completion"
    turns: TurnMode = "requests"


_Number = Annotated[float, pydantic.Strict()]


@pydantic.dataclasses.dataclass(frozen=True)
class Metric:
    """A mean over `n` observations with its 95 % interval; `low` and `high` are None for a single cluster."""

    value: _Number
    low: _Number | None
    high: _Number | None
    n: Annotated[int, pydantic.Field(strict=True, ge=0, lt=2**63)]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class Measure:
    """The metric that runs are compared in, by paired differences.

    Attributes:
        name: of the metric.
        higher_is_better: None where this is unknown.
        bounded: whether every observation is a number between 0 and 1.
    """

    name: Annotated[str, pydantic.Strict()]
    higher_is_better: Annotated[bool, pydantic.Strict()] | None = None
    bounded: Annotated[bool, pydantic.Strict()] = False


class Part(NamedTuple):
    """The part of one observation in a metric: the mean over strata of sum of numerators / sum of denominators.

    Attributes:
        numerator: added to the numerator of the stratum.
        denominator: the weight of the observation, added to the denominator of the stratum.
        cluster: name of the group of dependent observations (a work, a text).
        stratum: name of the group that has equal weight in the metric (a task, a class); most metrics have one stratum.
    """

    numerator: float
    denominator: float
    cluster: str
    stratum: str = ""


class Protocol(ABC):
    """How a method is evaluated on examples of one type.

    Attributes:
        measure: the metric that `quality` belongs to; the first metric, of unknown direction, when None.
        prompt: all text that is added to the data; empty without any.
    """

    measure: Measure | None = None
    prompt: str = ""

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """Functions that it was given, whose code is part of a run's, as a user's function that scores answers."""
        return ()

    def prompt_on(self, backbone: Backbone) -> str:
        """`prompt`, with the text that a backbone adds to the data, as that of its chat template."""
        return self.prompt

    @abstractmethod
    def evaluate(self, meter: Meter, example: Any, other: Any) -> dict[str, Any]:
        """Evaluate the method on one example.

        Args:
            meter: the method; the ledger records the cost of every call.
            example: an example of the task.
            other: an example of another work, whose context is read when the control is `wrong`.

        Returns:
            The example's record: JSON values, with `id` and the fields that `summarise` reads.
        """

    @abstractmethod
    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Metrics over the records of all examples."""

    @abstractmethod
    def quality(self, record: dict[str, Any]) -> float:
        """The quality of one record as a number."""

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """A record's parts in the metrics that runs are compared in: the measure, and `nats_per_token` for shares.

        Without parts, runs are compared in the mean of `quality` over the examples. The cluster is the record's `work`
        where it has one.
        """
        return {}


class Task(ABC):
    """A benchmark: examples, and the protocol that scores them.

    Attributes:
        name: its name in commands.
        splits: names and descriptions of the splits.
        default_split: the split when none is named.
        Config: dataclass of the settings, all with defaults.
        config: the settings.
        in_tokens: whether the examples have lengths in tokens of the backbone, see `on`.
    """

    name: ClassVar[str]
    splits: ClassVar[dict[str, str]]
    default_split: ClassVar[str]
    Config: ClassVar[type[configs.Config]] = configs.Config
    config: configs.Config
    in_tokens: ClassVar[bool] = False

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

    def on(self, backbone: Backbone) -> Task:
        """The task with lengths in tokens of a backbone, where it has such lengths; else the task itself."""
        return self

    def spelled(self, split: str) -> str:
        """A split as results store it: with the settings that differ from their defaults, without `LENGTHS`."""
        settings = self.config.changed()
        return spelled_split(split, {name: value for name, value in settings.items() if name not in LENGTHS})

    def identified(self, spelled: str) -> str:
        """A spelled split as it identifies a run: without the places of files, whose contents have digests."""
        return spelled

    def options(self, context: Control) -> Options:
        """The options of a protocol, from the settings and the control."""
        fields = {field.name for field in dataclasses.fields(Options)}
        return Options(context, **{name: value for name, value in self.config.as_dict().items() if name in fields})

    def worded(self) -> Iterable[tuple[str, Task]]:
        """Every split, with the task in each of the settings that change its prompts."""
        return ((split, self) for split in self.splits)

    @abstractmethod
    def load(self, split: str, data: Path | None) -> Dataset:
        """All examples of a split: from `data`, else the cache, else the hub, else the generated sample."""

    @abstractmethod
    def protocol(self, split: str, context: Control = "own") -> Protocol:
        """The protocol for a split, with the context to read: the example's own, none, or a wrong one.

        Raises:
            UserError: when the settings do not fit the split or the context.
        """
