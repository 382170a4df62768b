"""Stored results as one long table: a row for every metric of every run, with the costs and settings of its run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from contextlab.harness.results import PHASES, measure_of
from contextlab.reports import collection
from contextlab.reports.dimensions import Result, dimensions, started
from contextlab.reports.stored import summaries

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
}
_RUN = {
    "method": ("string", "method with the settings that distinguish it, as in tables"),
    "name": ("string", "registered name, or path, of the method"),
    "settings": ("object", "all settings of the method, as a dictionary"),
    "task": ("string", "task with its split and settings, as in tables"),
    "benchmark": ("string", "registered name, or path, of the task"),
    "split": ("string", "its split, with the settings that differ from their defaults"),
    "context": ("string", "`own`, `none` or `wrong`"),
    "history": ("Int64", "tokens read before the scored ones, where that was set"),
    "tokens": ("Int64", "most tokens read of a text, where that was set"),
    "backbone": ("string", "language model"),
    "device": ("string", "processor or GPU"),
    "dtype": ("string", "of the backbone's weights"),
    "seed": ("Int64", "of the method's random numbers"),
    "untrained": ("boolean", "whether the method could learn and has not"),
    "twin": ("string", "baseline without memory that learned from the same tokens; missing without one"),
    "examples": ("Int64", "examples of the run"),
    "data": ("string", "sha256 of the examples"),
    "source": ("string", "where the data come from"),
    "note": ("string", "what the data are: real, re-laid or generated"),
    "prompts": ("string", "sha256 of the prompt templates"),
    "weights": ("string", "sha256 of all weights of the method; missing in early versions"),
    "version": ("string", "contextlab that ran it"),
    "commit": ("string", "commit of the project that ran it, where that was known"),
    "started": ("string", "time of the start, ISO 8601"),
    "folder": ("string", "folder of the run"),
}
_COST = {
    "flops": ("float64", "floating-point operations, two per multiply-add; mean per example"),
    "flops_formula": ("float64", "the same by arithmetic; missing where the method has no formula"),
    "peak_bytes": ("float64", "highest peak memory, weights included"),
    "seconds": ("float64", "wall-clock seconds, median over examples"),
    "seconds_spread": ("float64", "interquartile range of seconds per FLOP, divided by their median"),
    "tokens": ("float64", "tokens of the phase, mean per example"),
    "joules": ("float64", "energy of the GPU, where NVML counts it; mean per example"),
}
_STATE = {
    "bytes": ("float64", "size of the state behind the context, mean over examples"),
    "bytes_formula": ("float64", "the same by arithmetic; missing where the method has no formula"),
    "floats": ("float64", "numbers in it"),
    "tokens": ("float64", "tokens that it has read"),
    "cached": ("float64", "tokens whose keys and values it holds"),
}
_ONCE = {"train": "the training of the weights, once", "contextualize": "reading the context", "query": "a question"}

COLUMNS: dict[str, tuple[str, str]] = {
    **_METRIC,
    **_RUN,
    **{
        f"{phase}_{key}": (kind, f"{_ONCE[phase]}: {text}")
        for phase in PHASES
        for key, (kind, text) in _COST.items()
        if (phase, key) != ("train", "flops_formula")  # training has none
    },
    **{f"state_{key}": about for key, about in _STATE.items()},
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


@collection.paused()
def frame_of(stored: Sequence[Result]) -> pandas.DataFrame:
    """The frame of results that have been read.

    Args:
        stored: one JSON object per run, of `reports.stored.summaries` or `Results.runs`.
    """
    latest = {result["run_id"]: result for result in sorted(stored, key=started)}
    ordered = sorted(latest.values(), key=started)
    runs = pandas.DataFrame([_of_run(*pair) for pair in zip(ordered, dimensions(ordered), strict=True)])
    metrics = pandas.DataFrame([row for number, result in enumerate(ordered) for row in _of_metrics(number, result)])
    whole = metrics.merge(runs, left_on="number", right_index=True) if ordered else pandas.DataFrame()
    return whole.reindex(columns=list(COLUMNS)).astype({name: kind for name, (kind, _) in COLUMNS.items()})


def _of_metrics(number: int, result: Result) -> Iterator[dict[str, Any]]:
    measure = measure_of(result)
    for name, metric in result["metrics"].items():
        is_measure = name == measure.name
        direction = DIRECTIONS[measure.higher_is_better] if is_measure else ""
        about = {"number": number, "run": result["run_id"], "metric": name}
        yield {**about, **metric, "direction": direction, "measure": is_measure}


def _of_run(result: Result, words: Mapping[str, str]) -> dict[str, Any]:
    """The columns that belong to a run."""
    provenance, data = result["provenance"], result["data"]
    phases = {phase: result["cost"].get(phase) or {} for phase in PHASES}
    state = result.get("state") or {}
    copied = {name: result.get(name) for name in ("split", "context", "history", "tokens", "backbone", "twin")}
    copied |= {name: provenance[name] for name in ("device", "dtype", "seed", "started")}
    costs = {f"{phase}_{key}": cost.get(key) for phase, cost in phases.items() for key in _COST}
    return {
        **copied,
        **costs,
        **{f"state_{key}": state.get(key) for key in _STATE},
        "method": words["method"],
        "name": result["method"],
        "settings": result["method_config"],
        "task": words["task"],
        "benchmark": result["task"],
        "untrained": result.get("untrained", False),
        "examples": data["examples"],
        "data": data["sha256"],
        "source": data["source"],
        "note": data["note"],
        "prompts": provenance.get("prompt_sha256"),
        "weights": provenance.get("weights_sha256"),
        "version": provenance.get("contextlab"),
        "commit": provenance.get("commit"),
        "folder": result.get("folder"),
    }
