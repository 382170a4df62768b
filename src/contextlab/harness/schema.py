"""Schemas of stored files, checked when they are read.

Other fields are allowed and kept: a later version may store more than an earlier one reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

Count = Annotated[int, Field(ge=0, le=2**100)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST = 1e300


def _row(values: list[Any]) -> list[Any]:
    """Numerator, denominator, cluster and optionally stratum, as in `benchmarks.task.Part`."""
    numbers, words = values[:2], values[2:]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < MOST for n in numbers):
        raise ValueError("a part is no fraction of two numbers")
    if len(numbers) < 2 or numbers[1] <= 0 or len(words) not in (1, 2) or not all(isinstance(w, str) for w in words):
        raise ValueError("a part is no fraction with a cluster")
    return values


Row = Annotated[list[Any], pydantic.AfterValidator(_row)]


class Part(pydantic.BaseModel):
    """A JSON object whose known fields have exactly these types."""

    model_config = pydantic.ConfigDict(extra="allow", strict=True)


class Cost(Part):
    """See `accounting.ledger.Cost`; None where a cost was not counted."""

    flops: Count | None
    peak_bytes: Count | None
    seconds: Amount
    tokens: Count
    largest_bytes: Count = 0
    flops_formula: Count | None = None
    seconds_spread: Amount | None = None
    joules: Amount | None = None


class Size(Part):
    """The size of a state."""

    bytes: Count
    floats: Count
    tokens: Count
    cached: Count = 0
    bytes_formula: Count | None = None


class Score(Part):
    """The fields of a finished example that tables read; `index` in the data is missing in early versions."""

    id: str
    record: dict[str, Any] | None = None
    quality: Number | None = None
    parts: dict[str, list[Row]] | None = None
    index: Count | None = None


class Line(Score):
    """One finished example."""

    record: dict[str, Any]
    quality: Number | None
    cost: dict[str, Cost]
    state: Size | None


class Started(Part):
    """The time of the first start of a run."""

    started: str


class Manifest(Part):
    """Identity and provenance of a run."""

    schema_: Literal[1] = Field(alias="schema")
    run_id: str
    identity: dict[str, Any]
    provenance: Started


class Metric(Part):
    """See `benchmarks.task.Metric`."""

    value: Number
    low: Number | None
    high: Number | None
    n: Count


class Data(Part):
    """The data that a run was measured on."""

    source: str
    sha256: str
    examples: Count
    note: str


class Provenance(Started):
    """Versions, machine and time."""

    device: str
    dtype: str
    seed: int


class Measure(Part):
    """See `benchmarks.task.Measure`."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    name: str
    higher_is_better: bool | None = None
    bounded: bool = False


class Summary(Part):
    """The result of a run."""

    schema_: Literal[1] = Field(alias="schema")
    run_id: str
    method: str
    method_config: dict[str, Any]
    task: str
    split: str
    context: str
    history: Count | None = None
    tokens: Count | None = None
    backbone: str
    data: Data
    metrics: Annotated[dict[str, Metric], Field(min_length=1)]
    cost: dict[str, Cost | None]
    measure: Measure | None = None
    measured: Count | None = None
    state: Size | None = None
    max_context: Count | None = None
    own_window: Count | None = None
    untrained: bool = False
    twin: str | None = None
    provenance: Provenance


def fault(kind: type[Part], value: Any) -> str | None:
    """The first error of a JSON value, as `field: reason`; None for a valid value."""
    try:
        kind.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        reason = first["msg"][:1].lower() + first["msg"][1:]
        return f"{where}: {reason}" if where else reason
    return None
