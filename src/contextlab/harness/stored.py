"""The models of a stored run: its manifest, a line for every example, and its result.

Fields that a later version adds are kept. Whatever is read has been validated, numbers are finite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field, JsonValue

from contextlab.benchmarks import task
from contextlab.benchmarks.task import Control, Measure, Metric

SCHEMA = 2
"""Version of what a run stores, which is part of its identity."""
MOST, MOST_METRIC = 1e150, 1e305
"""Numbers are smaller, so that their squares are finite; metrics, among them perplexities, so that sums are."""

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Flops = Annotated[int, Field(ge=0, le=2**100)]
Number = Annotated[float, Field(gt=-MOST, lt=MOST)]
Amount = Annotated[float, Field(ge=0, lt=MOST)]
Phase = Literal["train", "contextualize", "query"]
PHASES: tuple[Phase, ...] = ("train", "contextualize", "query")
QUALITY = "quality"
"""The key of the parts that are made from the protocol's quality."""
Parts = dict[str, list[task.Part]]
"""The parts of one example, by metric."""


def _check_numbers(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        for item in value.values():
            _check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            _check_numbers(item)
    elif isinstance(value, int | float) and not abs(value) < MOST:
        raise ValueError("a number is not finite, or too large")
    return value


Json = Annotated[JsonValue, pydantic.AfterValidator(_check_numbers)]
Object = dict[str, Json]
"""A JSON object whose fields a method, task or protocol defines."""


def _part(values: Any) -> task.Part:
    """A part from its JSON list, in which the stratum may be missing."""
    if not isinstance(values, list | tuple) or len(values) not in (3, 4):
        raise ValueError("a part is no fraction with a cluster")
    numbers, words = values[:2], values[2:]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < MOST for n in numbers):
        raise ValueError("a part is no fraction of two numbers")
    if numbers[1] <= 0 or not all(isinstance(word, str) for word in words):
        raise ValueError("a part is no fraction with a cluster")
    return task.Part(float(numbers[0]), float(numbers[1]), *words)


def _check_metric(metric: Metric) -> Metric:
    if any(number is not None and not abs(number) < MOST_METRIC for number in (metric.value, metric.low, metric.high)):
        raise ValueError("a number is not finite, or too large")
    return metric


StoredPart = Annotated[task.Part, pydantic.PlainValidator(_part), pydantic.PlainSerializer(list)]


class StoredModel(pydantic.BaseModel):
    """A JSON object whose fields have exactly these types."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True, frozen=True)

    def as_json(self) -> dict[str, JsonValue]:
        """The object as it is stored."""
        return self.model_dump(mode="json", by_alias=True)


class CallCost(StoredModel):
    """The cost of the calls of one phase of one example; see `accounting.ledger.TotalCost`."""

    flops: Flops | None
    peak_bytes: Count | None
    seconds: Amount
    tokens: Count
    largest_bytes: Count = 0
    flops_formula: Flops | None = None
    joules: Amount | None = None


class PhaseCost(StoredModel):
    """The cost of one phase, per example; None where it was not counted."""

    flops: Flops | None = Field(description="floating-point operations, two per multiply-add; mean per example")
    flops_formula: Flops | None = Field(
        default=None, description="the same by arithmetic; missing where the method has no formula"
    )
    peak_bytes: Count | None = Field(default=None, description="highest peak memory, weights included")
    seconds: Amount = Field(description="wall-clock seconds, median over examples")
    seconds_spread: Amount | None = Field(
        default=None, description="interquartile range of seconds per FLOP, divided by their median"
    )
    tokens: Count = Field(description="tokens of the phase, mean per example")
    joules: Amount | None = Field(default=None, description="energy of the GPU, where NVML counts it; mean per example")
    timed_while_counting: bool = Field(
        default=False, description="whether the same calls were timed and counted, as in early versions"
    )


class Costs(StoredModel):
    """Costs by phase; None where a run has no such phase."""

    train: PhaseCost | None = None
    contextualize: PhaseCost | None = None
    query: PhaseCost | None = None

    def phases(self) -> dict[Phase, PhaseCost]:
        """The phases of an example that the run has, which are all but the training."""
        both: dict[Phase, PhaseCost | None] = {"contextualize": self.contextualize, "query": self.query}
        return {phase: cost for phase, cost in both.items() if cost is not None}


class StateSize(StoredModel):
    """The size of a state, in a result its mean over the examples."""

    bytes: Count = Field(description="size of the state after the context, mean over examples")
    bytes_formula: Count | None = Field(
        default=None, description="the same by arithmetic; missing where the method has no formula"
    )
    floats: Count = Field(description="numbers in it")
    tokens: Count = Field(description="tokens that it has read")
    cached: Count | None = Field(
        default=None, description="tokens whose keys and values it holds; missing in early versions"
    )


class Data(StoredModel):
    """The data that a run was measured on."""

    source: str = Field(description="where the data come from")
    sha256: str = Field(description="sha256 of the examples")
    examples: Count = Field(description="examples of the run")
    skipped: Count = Field(0, description="examples among them that could not be scored")
    note: str = Field(description="what the data are: real, re-laid or generated")

    @property
    def scored(self) -> int:
        """Examples that were scored."""
        return self.examples - self.skipped


class Parameters(StoredModel):
    """Numbers of parameters."""

    backbone: Count = Field(description="of the language model")
    added: Count = Field(description="that the method adds")
    trained: Count = Field(description="that the method can train")


class Provenance(StoredModel):
    """Versions, machine and time."""

    contextlab: str = Field(description="contextlab that ran it")
    commit: str | None = Field(description="commit of the project that ran it, where that was known")
    torch: str = Field(description="torch that ran it")
    transformers: str = Field(description="transformers that ran it")
    device: str = Field(description="processor or GPU")
    dtype: str = Field(description="of the backbone's weights")
    seed: Whole = Field(description="of the method's random numbers")
    prompt_sha256: str = Field(description="sha256 of the prompt templates")
    weights_sha256: str = Field(description="sha256 of the weights of the backbone")
    started: str = Field(description="time of the start, ISO 8601")
    command: str = Field(description="command line")
    threads: Count | None = Field(default=None, description="threads of torch on a processor")
    instructions: str | None = Field(
        default=None, description="vector instructions of the processor that torch used, on which last digits depend"
    )
    batch: Count | None = Field(
        default=None, description="most examples that were computed side by side; missing where each was alone"
    )
    code: dict[str, str] | None = Field(
        default=None, description="digest of the code of every module that computes, without comments"
    )
    counting: Count | None = Field(default=None, description="version of the counting of costs")
    source_sha256: str | None = Field(
        default=None, description="sha256 of all code of the package, where digests by module are not stored"
    )


class Manifest(StoredModel):
    """The identity of a run, and the provenance of its first start."""

    schema_: Literal[2] = Field(default=2, alias="schema")
    run_id: str
    identity: Object
    provenance: Provenance


class ExampleLine(StoredModel):
    """One finished example.

    Attributes:
        id: of the example.
        index: its number in the data.
        record: what the protocol recorded.
        quality: of the record; None where the example was skipped.
        parts: of the record in the metrics that runs are compared in.
        cost: of its calls, by phase.
        state: size of the largest state that was kept; None without one.
        recounted: whether its FLOPs were counted in a second run of the example.
        batch: examples that were computed side by side with it, itself included; None where it was alone.
    """

    id: str
    index: Count
    record: Object
    quality: Number | None
    parts: dict[str, list[StoredPart]] = {}
    cost: dict[Phase, CallCost]
    state: StateSize | None
    recounted: bool = False
    batch: Count | None = None

    def compared(self) -> Parts:
        """The parts of an example that was not skipped, and `quality`, which is one part."""
        assert self.quality is not None, self.id
        cluster = str(self.record.get("work", self.id))
        return {**self.parts, QUALITY: [task.Part(self.quality, 1.0, cluster)]}


class Result(StoredModel):
    """The result of a run."""

    schema_: Literal[2] = Field(default=2, alias="schema")
    run_id: str = Field(description="id of the run, which is also the name of its folder")
    method: str = Field(description="registered name, or path, of the method")
    method_config: Object = Field(description="all settings of the method, as a dictionary")
    changed: list[str] = Field(description="settings that differ from the method's defaults")
    method_weights: str | None = Field(default=None, description="sha256 of what the method has learned")
    weights_name: str | None = Field(default=None, description="name of the trained weights that the method has")
    weights_changed: list[str] = Field(default=[], description="settings that this name does not stand for")
    trained_with: Object = Field(default={}, description="settings of the training that are others in this run")
    task: str = Field(description="registered name, or path, of the task")
    split: str = Field(description="its split, with the settings that differ from their defaults")
    context: Control = Field(description="`own`, `none` or `wrong`")
    history: Count | None = Field(description="tokens read before the scored ones, where that was set")
    tokens: Count | None = Field(description="most tokens read of a text, where that was set")
    backbone: str = Field(description="language model")
    data: Data
    parameters: Parameters
    max_context: Count | None = Field(description="tokens after which the method starts again, where it does")
    own_window: Count | None = Field(default=None, description="tokens that a query of the model itself sees at most")
    untrained: bool = Field(description="whether the method could learn and has not")
    twin: str | None = Field(
        description="baseline without memory that learned from the same tokens; missing without one"
    )
    measure: Measure
    metrics: dict[str, Annotated[Metric, pydantic.AfterValidator(_check_metric)]]
    cost: Costs
    measured: Count = Field(description="stored examples, the first ones, whose peak memory is known")
    state: StateSize | None
    provenance: Provenance
    _folder: Path | None = pydantic.PrivateAttr(default=None)
    _parts: Mapping[str, Parts] | None = pydantic.PrivateAttr(default=None)

    @pydantic.field_validator("metrics")
    @classmethod
    def _check_metrics(cls, metrics: dict[str, Metric], others: pydantic.ValidationInfo) -> dict[str, Metric]:
        data = others.data.get("data")
        if not metrics and (data is None or data.scored):
            raise ValueError("there are none")
        return metrics

    @property
    def folder(self) -> Path | None:
        """Where the run is stored; None for a result in memory alone."""
        return self._folder

    @property
    def parts(self) -> Mapping[str, Parts] | None:
        """The parts of its examples by their ids; None where they are in its folder alone."""
        return self._parts

    def placed(self, folder: Path | None, parts: Mapping[str, Parts] | None = None) -> Self:
        """The same result with the folder it is stored in, and with the parts of its examples."""
        copy = self.model_copy()
        copy._folder, copy._parts = folder, parts
        return copy


def minor(version: str) -> str:
    """The first two numbers of a version, as `2.9` of `2.9.1+cpu`."""
    return ".".join(re.findall(r"\d+", version)[:2])


def plain(value: Mapping[str, Any]) -> dict[str, JsonValue]:
    """An object as it is read back from JSON; values that JSON does not have, as paths, are texts."""
    read: dict[str, JsonValue] = json.loads(json.dumps(value, default=str))
    return read
