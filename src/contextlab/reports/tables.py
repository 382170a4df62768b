"""Tables of stored results; every table has a caption that names the data of its numbers."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas

from contextlab import harmless
from contextlab.accounting import legacy
from contextlab.benchmarks.metrics.estimates import share_of_full
from contextlab.benchmarks.task import Metric, Part
from contextlab.errors import unknown
from contextlab.grammar import MARK
from contextlab.harness.results import difference, measure_of
from contextlab.reports.dimensions import DIMENSIONS, Result, dimensions, named

MOST_SPREAD = 0.25
DISTURBED = (
    f"~: the middle half of the examples differs by more than {MOST_SPREAD:.0%} in seconds per FLOP, so that something "
    "else was running"
)
FORMATS = ("markdown", "latex", "csv", "html")
INTERVALS = (
    "In brackets 95 % intervals over clusters (works, texts, conversations, tasks), there are none for one cluster: t "
    "intervals corrected for skewness, Wilson's for numbers between 0 and 1, Fieller's for shares"
)
BEFORE = (
    "Results of an earlier version have percentile bootstrap intervals, paired differences of means over the examples, "
    "and no share"
)
CONVENTION = (
    "Per example; seconds are medians; a multiply-add is 2 FLOPs and causal attention is counted exactly; peak memory "
    "includes the weights"
)
LEGACY = (
    "Legacy: multiply-accumulates as printed in the GenerativeAdapter paper, whose attention to a cached context is "
    "multiplied by the question's length once too often; cached: the same sizes (Mistral-7B), counted rightly; the "
    "query's tokens count as one question"
)
LATEX = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def comparison(
    results: Sequence[Result],
    rows: str = "method",
    columns: str = "task",
    baseline: str | None = None,
    metrics: Collection[str] = (),
    *,
    legacy_cost: bool = False,
) -> pandas.DataFrame:
    """One table of many results, in the order in which they were started, equal rows together.

    Other dimensions in which the results differ become part of the rows. When a run is stored several times, the latest
    result is used. `share` is (window - method) / (window - full) in nats per token, where both baselines were run on
    the same examples and the interval of window - full is above 0. For the task's measure the difference to a baseline
    is `paired`: over the same examples, with its interval. For other metrics it is the difference of the values.

    Args:
        results: from `load_results` or `bench`.
        rows: one of `DIMENSIONS`.
        columns: one of `DIMENSIONS`; each of its values has its own group of columns.
        baseline: method whose metrics are subtracted, in separate columns; named as in the table's rows, or without
            settings where there is only one result of it.
        metrics: metrics to show; all when empty.
        legacy_cost: whether to add the cost that Table 1 of the GenerativeAdapter paper would print for a question of
            the query's length after the cached keys, and its true cost, both with the paper's model sizes.

    Returns:
        Cells as text, metrics as `value [low, high]`; `attrs["caption"]` describes data and conventions.

    Raises:
        UserError: for an unknown dimension, baseline or metric.
    """
    _check("dimension", (rows, columns), DIMENSIONS)
    _check("metric", metrics, {name for result in results for name in result["metrics"]})
    ordered = sorted(results, key=lambda result: str(result["provenance"]["started"]))
    latest = {tuple(words.items()): result for words, result in zip(dimensions(ordered), ordered, strict=True)}
    words_of = {key: dict(key) for key in latest}
    marked = {words["method"] for words in words_of.values()}
    names = marked | set(map(_unmarked, marked)) | {result["method"] for result in latest.values()}
    _check("method in these results", [baseline] if baseline else [], names)
    peers: Mapping[Any, dict[str, Result]] = defaultdict(dict)
    for key, result in latest.items():
        peers[_examples(words_of[key], result)][words_of[key]["method"]] = result
    peers = {examples: _with_plain_names(group) for examples, group in peers.items()}
    differing = [name for name in DIMENSIONS if len({words[name] for words in words_of.values()}) > 1]
    keys = [rows, *(name for name in differing if name not in (rows, columns))]
    table: dict[tuple[str, ...], dict[str, str]] = {}
    for key, result in latest.items():
        words = words_of[key]
        prefix = f"{words[columns]} " if columns in differing and columns != rows else ""
        cells = {**_quality(result, peers[_examples(words, result)], baseline, metrics), **_costs(result)}
        cells |= _legacy(result) if legacy_cost else {}
        row = table.setdefault(tuple(words[name] for name in keys), {})
        row.update({prefix + name: cell for name, cell in cells.items()})
    groups = {name: number for number, name in enumerate(dict.fromkeys(row[0] for row in table))}
    together = sorted(table, key=lambda row: groups[row[0]])
    index = pandas.MultiIndex.from_tuples(together, names=keys)
    frame = pandas.DataFrame([table[row] for row in together], index=index).fillna("")
    frame.attrs["caption"] = _caption(latest.values(), list(words_of.values()), differing)
    if baseline:
        frame.attrs["caption"] += _directions(latest.values())
    if legacy_cost:
        frame.attrs["caption"] += f" {LEGACY}."
    return frame


def render(frame: pandas.DataFrame, style: str = "markdown") -> str:
    """A table as text with its caption, which is a column in CSV; names in results cannot act as markup or formulas.

    Args:
        frame: from `comparison`.
        style: one of `FORMATS`.

    Raises:
        UserError: for another style.
    """
    _check("format", [style], FORMATS)
    plain = {"csv": harmless.csv, "markdown": harmless.markdown}.get(style, harmless.line)
    caption, flat = plain(frame.attrs["caption"]), frame.reset_index().map(plain)
    flat.columns = pandas.Index([plain(name) for name in flat.columns])
    if style == "csv":
        return str(flat.assign(data=caption).to_csv(index=False))
    if style == "html":
        return f"{flat.to_html(index=False)}\n<p>{html.escape(caption)}</p>\n"
    if style == "latex":
        return str(flat.to_latex(index=False, escape=True, caption=caption.translate(LATEX)))
    lines = [list(flat.columns), ["---"] * len(flat.columns), *flat.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{caption}\n"


def _check(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def _examples(words: Mapping[str, str], result: Result) -> tuple[Any, ...]:
    """Equal for results on the same examples, whatever the method and the device."""
    rest = tuple(value for name, value in words.items() if name not in ("method", "device"))
    return *rest, result["data"]["examples"]


def _quality(
    result: Result, peers: Mapping[str, Result], baseline: str | None, wanted: Collection[str]
) -> dict[str, str]:
    cells = {"n": str(result["data"]["examples"])}
    peer = peers.get(baseline or "")
    subtracted = peer["metrics"] if peer else {}
    for name, metric in result["metrics"].items():
        if wanted and name not in wanted:
            continue
        cells[name] = _number(metric["value"])
        if metric["low"] is not None:
            cells[name] += f" [{_number(metric['low'])}, {_number(metric['high'])}]"
        if name in subtracted:
            cells[f"{name} - {baseline}"] = f"{metric['value'] - subtracted[name]['value']:+.3f}"
    if peer is not None and peer is not result:
        measure = measure_of(result)
        paired = difference(measure, result.get("parts", {}), peer.get("parts", {}))
        cells |= {f"paired {measure.name} - {baseline}": _signed(paired)} if paired is not None else {}
    if share := _share(result, peers):
        cells["share"] = f"{share.value:z.2f} [{share.low:z.2f}, {share.high:z.2f}]"
    return cells


def _share(result: Result, peers: Mapping[str, Result]) -> Metric | None:
    """The share of full attention's gain; None where it cannot be computed or has no meaning."""
    runs = [_nats(run) for run in (peers.get("window"), result, peers.get("full")) if run is not None]
    return share_of_full(*runs) if len(runs) == 3 else None


def _with_plain_names(results: dict[str, Result]) -> dict[str, Result]:
    """Results by their names in the table, with and without mark, and by the method's name where it has one result."""
    counts = Counter(result["method"] for result in results.values())
    plain = {result["method"]: result for result in results.values() if counts[result["method"]] == 1}
    return plain | {_unmarked(name): result for name, result in results.items()} | results


def _unmarked(name: str) -> str:
    return re.sub(f" {MARK.pattern}$", "", name)


def _nats(result: Result) -> dict[str, list[Part]]:
    stored: dict[str, dict[str, list[Part]]] = result.get("parts", {})
    return {example: one["nats_per_token"] for example, one in stored.items() if "nats_per_token" in one}


def _signed(metric: Metric) -> str:
    interval = "" if metric.low is None else f" [{metric.low:+.3f}, {metric.high:+.3f}]"
    return f"{metric.value:+.3f}{interval}"


def _costs(result: Result) -> dict[str, str]:
    """Costs as text; empty where a cost was not counted, or time was measured while counting."""
    phases = {phase: cost for phase, cost in result["cost"].items() if cost is not None and phase != "train"}
    counted = {phase: cost["flops"] for phase, cost in phases.items() if cost["flops"] is not None}
    costs = {f"TFLOPs {phase}": flops / 1e12 for phase, flops in counted.items()}
    peaks = [cost["peak_bytes"] for cost in phases.values() if cost["peak_bytes"] is not None]
    if peaks:
        costs["peak MiB"] = max(peaks) / 2**20
    timed = phases and all("seconds_spread" in cost for cost in phases.values())
    if timed:
        costs["seconds"] = sum(cost["seconds"] for cost in phases.values())
    if result.get("state"):
        costs["state MiB"] = result["state"]["bytes"] / 2**20
    costs |= _training(result)
    cells = {name: f"{cost:.3g}" if cost < 100 else f"{cost:,.0f}" for name, cost in costs.items()}
    if timed and _disturbed(result):
        cells["seconds"] += " ~"
    return cells


def _training(result: Result) -> dict[str, float]:
    """The cost of training the weights, where that is known."""
    cost = result["cost"].get("train")
    if cost is None:
        return {}
    flops = {} if cost["flops"] is None else {"TFLOPs train": cost["flops"] / 1e12}
    return {**flops, "seconds train": cost["seconds"], "tokens train": cost["tokens"]}


def _disturbed(result: Result) -> bool:
    """Whether the seconds per FLOP of examples differ so much that another program was running."""
    costs = [cost for phase, cost in result["cost"].items() if cost is not None and phase != "train"]
    return any((cost.get("seconds_spread") or 0) > MOST_SPREAD for cost in costs)


def _legacy(result: Result) -> dict[str, str]:
    question = (result["cost"].get("query") or {}).get("tokens", 0)
    cached = (result.get("state") or {}).get("cached", 0)
    counts = {"legacy": legacy.printed_macs(question, cached), "cached": legacy.cached_macs(question, cached)}
    return {f"{name} TMACs query": f"{macs / 1e12:.3g}" for name, macs in counts.items()}


def _directions(results: Iterable[Result]) -> str:
    """For every measure, whether higher or lower is better."""
    measures = dict.fromkeys(measure_of(result) for result in results)
    words = {True: "higher", False: "lower"}
    directions = [f"{one.name} {words[one.higher_is_better]}" for one in measures if one.higher_is_better is not None]
    return f" Better is: {', '.join(directions)}." if directions else ""


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e5 else f"{value:.3g}"


def _caption(results: Iterable[Result], words: Sequence[dict[str, str]], differing: Collection[str]) -> str:
    shown = list(zip(results, words, strict=True))
    data = dict.fromkeys(f"{one['task']}: {r['data']['note']} ({r['data']['source']})" for r, one in shown)
    common = [f"{name} {words[0][name]}" for name in DIMENSIONS[2:] if name not in differing]
    limits = dict.fromkeys((named(r), r["max_context"]) for r, _ in shown if r.get("max_context"))
    restarts = [f"{method} starts anew every {tokens:,} tokens" for method, tokens in limits]
    twins = [f"The twin of {named(r)}, without memory, is {r['twin']}" for r, _ in shown if r.get("twin")]
    intervals = [INTERVALS, *([BEFORE] if any("measure" not in r for r, _ in shown) else [])]
    disturbed = [DISTURBED] if any(_disturbed(r) for r, _ in shown) else []
    return (
        ". ".join(
            ["; ".join(data), ", ".join(common), *restarts, *dict.fromkeys(twins), *intervals, CONVENTION, *disturbed]
        )
        + "."
    )
