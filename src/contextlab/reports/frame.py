"""Stored results as one long table: a row for every metric of every run, with the costs and settings of its run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas

from contextlab import harmless
from contextlab.harness.stored import PHASES, Data, PhaseCost, Provenance, Result, StateSize, StoredModel
from contextlab.reports.dimensions import dimensions, once
from contextlab.reports.stored import gc_paused, summaries

DIRECTIONS = {True: "higher", False: "lower", None: ""}

_METRIC = {
    "run": ("string", "id of the run, which is also the name of its folder"),
    "metric": ("string", "name of the metric"),
    "value": ("float64", "its value over all examples of the run"),
    "low": ("float64", "lower end of its 95 % interval over clusters; missing for a single cluster"),
    "high": ("float64", "upper end of the interval"),
    "n": ("Int64", "examples, or what else the metric counts"),
    "direction": ("string", "`higher` or `lower`, whichever is better; empty where the task does not say"),
    "measure": ("boolean", "whether this is the measure of its task, in which runs are compared"),
    "bounded": ("boolean", "whether it is that measure, and every observation of it is a number between 0 and 1"),
}
_OTHER = {
    "method": "method with the settings that distinguish it, as in tables",
    "task": "task with its split and settings, as in tables",
    "folder": "folder of the run",
}
_FIELDS = {
    "method": ("string", ""),
    "name": ("string", "method"),
    "settings": ("object", "method_config"),
    "task": ("string", ""),
    "benchmark": ("string", "task"),
    "split": ("string", "split"),
    "context": ("string", "context"),
    "history": ("Int64", "history"),
    "tokens": ("Int64", "tokens"),
    "backbone": ("string", "backbone"),
    "device": ("string", "provenance.device"),
    "dtype": ("string", "provenance.dtype"),
    "seed": ("Int64", "provenance.seed"),
    "untrained": ("boolean", "untrained"),
    "twin": ("string", "twin"),
    "examples": ("Int64", "data.examples"),
    "skipped": ("Int64", "data.skipped"),
    "data": ("string", "data.sha256"),
    "source": ("string", "data.source"),
    "note": ("string", "data.note"),
    "prompts": ("string", "provenance.prompt_sha256"),
    "weights": ("string", "provenance.weights_sha256"),
    "learned": ("string", "method_weights"),
    "weights_name": ("string", "weights_name"),
    "version": ("string", "provenance.contextlab"),
    "commit": ("string", "provenance.commit"),
    "counting": ("Int64", "provenance.counting"),
    "torch": ("string", "provenance.torch"),
    "transformers": ("string", "provenance.transformers"),
    "threads": ("Int64", "provenance.threads"),
    "started": ("string", "provenance.started"),
    "folder": ("string", "folder"),
    **{
        f"{phase}_{key}": ("float64", f"cost.{phase}.{key}")
        for phase in PHASES
        for key in ("flops", "flops_formula", "peak_bytes", "seconds", "seconds_spread", "tokens", "joules")
        if (phase, key) != ("train", "flops_formula")  # training has none
    },
    **{f"state_{key}": ("float64", f"state.{key}") for key in ("bytes", "bytes_formula", "floats", "tokens", "cached")},
}
"""Type of every column about a run, and the field of the stored result that it has, with the field's description."""
_MODELS: dict[str, type[StoredModel]] = {
    "": Result,
    "provenance": Provenance,
    "data": Data,
    "cost": PhaseCost,
    "state": StateSize,
}
_ONCE = {
    "train": "the training of the weights, once",
    "contextualize": "reading the context",
    "query": "all questions of an example",
}


def _about(path: str) -> str:
    """The description of a field of the stored result."""
    *parts, name = path.split(".")
    about = _MODELS[parts[0] if parts else ""].model_fields[name].description or ""
    return f"{_ONCE[parts[1]]}: {about}" if len(parts) > 1 else about


COLUMNS: dict[str, tuple[str, str]] = {
    **_METRIC,
    **{name: (kind, _OTHER.get(name) or _about(path)) for name, (kind, path) in _FIELDS.items()},
}
"""Type and meaning of every column of the frame, in their order."""


def results(folder: Path | str) -> pandas.DataFrame:
    """All stored results below a folder as one long frame with the columns `COLUMNS`, ordered by time.

    A row is one metric of one run; what belongs to the run is repeated in each of its rows. Of a run that is stored
    several times the latest is used. Costs and sizes are missing where they were not counted or not spent.

    Raises:
        UserError: when there are no results, or a summary is broken.
    """
    return frame_of(summaries(folder))


@gc_paused()
def frame_of(stored: Sequence[Result]) -> pandas.DataFrame:
    """The frame of results that have been read.

    Args:
        stored: of `reports.stored.summaries` or `Results.runs`.
    """
    ordered = once(stored)
    runs = pandas.DataFrame([_of_run(*pair) for pair in zip(ordered, dimensions(ordered), strict=True)])
    metrics = pandas.DataFrame([row for number, result in enumerate(ordered) for row in _of_metrics(number, result)])
    whole = metrics.merge(runs, left_on="number", right_index=True) if ordered else pandas.DataFrame()
    return whole.reindex(columns=list(COLUMNS)).astype({name: kind for name, (kind, _) in COLUMNS.items()})


def _of_metrics(number: int, result: Result) -> Iterator[dict[str, object]]:
    measure = result.measure
    for name, metric in result.metrics.items():
        is_measure = name == measure.name
        direction = DIRECTIONS[measure.higher_is_better] if is_measure else ""
        about = {"number": number, "run": result.run_id, "metric": name}
        values = {"value": metric.value, "low": metric.low, "high": metric.high, "n": metric.n}
        bounded = is_measure and measure.bounded
        yield {**about, **values, "direction": direction, "measure": is_measure, "bounded": bounded}


def _of_run(result: Result, words: Mapping[str, str]) -> dict[str, object]:
    """The columns that belong to a run."""
    fields = {name: _at(result, path) for name, (_, path) in _FIELDS.items() if path}
    folder = None if result.folder is None else str(result.folder)
    return {**fields, "folder": folder, "method": words["method"], "task": words["task"]}


def _at(result: Result, path: str) -> object:
    """A field of a result by its dotted name; None where a part before it is None."""
    value: object = result
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def written(frame: pandas.DataFrame, style: str) -> str:
    """The frame as text: a line per row; settings are JSON.

    Args:
        frame: from `frame_of` or `length_tables.frame`.
        style: `csv`, without cells that a spreadsheet reads as formulas, or `json`, one object per line.
    """
    if style == "csv":
        texts = frame.assign(settings=frame["settings"].map(json.dumps)) if "settings" in frame else frame
        words = [name for name in texts.columns if texts[name].dtype.kind not in "fiub"]
        safe = {name: texts[name].map(harmless.csv, na_action="ignore") for name in words}
        return str(texts.assign(**safe).to_csv(index=False))
    return str(frame.to_json(orient="records", lines=True, double_precision=15))
