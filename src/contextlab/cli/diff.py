"""`contextlab diff`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab.cli import console
from contextlab.cli.options import From, OutOfReader, check_reads

if TYPE_CHECKING:
    from contextlab.reports.diffs import Diff

MOST = 10
WORDS = {True: ", higher is better", False: ", lower is better", None: ""}


def diff(
    first: Annotated[str, typer.Argument(help="Folder of a run, or its id.")],
    second: Annotated[str, typer.Argument(help="Folder of another run, or its id.")],
    below: From = Path("runs"),
    most: Annotated[int, typer.Option("--examples", min=0, help="How many examples are shown.")] = MOST,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all examples.")] = False,
    out: OutOfReader = None,
) -> None:
    """Show what differs between two stored runs, which examples moved, and whether the difference is real."""
    from contextlab.reports.diffs import diff as compare
    from contextlab.reports.diffs import run_of

    check_reads(out)
    report = compare(run_of(first, below), run_of(second, below))
    if as_json:
        print(json.dumps(report.as_json()))
        return
    screen = console()
    for line in lines(report, most):
        screen.print(line, soft_wrap=True)


def lines(report: Diff, most: int) -> Iterator[str]:
    """The report: what differs, the paired difference, and the examples."""
    yield f"first: {report.names[0]} on {report.tasks[0]}"
    yield f"second: {report.names[1]} on {report.tasks[1]}"
    yield ""
    if not report.fields:
        yield "Settings, code, data and prompts are the same."
    modules = [field.name for field in report.fields if field.kind == "module"]
    for field in report.fields:
        if field.kind != "module":
            yield f"{field.kind}, {field.name}: {field.first} | {field.second}"
    if modules:
        yield f"code of {len(modules)} modules: {', '.join(modules)}"
    yield ""
    yield from _difference(report)
    lost, gained = report.flipped
    if lost or gained:
        yield f"Right only in the first run: {len(lost)}; only in the second run: {len(gained)}."
    if report.examples and most:
        first = f"; the first {most}" if most < len(report.examples) else ""
        yield f"Examples that moved most ({len(report.examples)} of {report.shared} moved{first}):"
    for example in report.examples[:most]:
        yield f"  {example.id}: {example.first:.3f} | {example.second:.3f} ({example.change:+.3f})"


def _difference(report: Diff) -> Iterator[str]:
    both = report.comparison
    if both is None:
        yield "The runs have no example with the same measure in common, so that their numbers are not compared."
        return
    m = both.metric
    if not report.examples:
        most = f"{report.largest:.1e} at most, n = {m.n}"
        yield f"{report.measure.name}: no example differs by more than rounding ({most})."
        return
    interval = "" if m.low is None else f" [{m.low:+.3f}, {m.high:+.3f}]"
    p = "no test for one cluster" if both.pvalue is None else f"p {_probability(both.pvalue)}"
    better = WORDS[report.measure.higher_is_better]
    yield f"{report.measure.name}, second - first: {m.value:+.3f}{interval}, {p} (paired, n = {m.n}{better})"


def _probability(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"
