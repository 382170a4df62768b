"""`contextlab sweep`."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextlab.cli import announce, console, warn
from contextlab.cli.bench import settings_of
from contextlab.cli.options import DataFolder, Device

if TYPE_CHECKING:
    from rich.table import Table

    from contextlab.sweeps.plan import SweepPlan
    from contextlab.sweeps.status import RunStatus

GIB = 2**30
EVERY, EVERY_LINE = 1.0, 60.0
"""Seconds between two pictures of the live table, and between two lines where there is no terminal."""
SHARE = 10.0
"""A look at a place far away may take longer; then so many times as long passes before the next one."""


def sweep(
    file: Annotated[Path | None, typer.Argument(metavar="SUITE", help="TOML file with the options below.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="As in bench; repeat it or use commas.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="As in bench; repeat it or use commas.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Several separated by commas.")] = None,
    seed: Annotated[str | None, typer.Option(help="Several separated by commas.")] = None,
    context: Annotated[str | None, typer.Option(help="Controls: own, none, wrong; several with commas.")] = None,
    split: Annotated[str | None, typer.Option(help="Split of all tasks that are named without one.")] = None,
    history: Annotated[int | None, typer.Option(min=1, help="Tokens read before the scored ones.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most examples, the first ones.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens read of a text.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all methods and tasks that have it."),
    ] = None,
    data: DataFolder = None,
    out: Annotated[str | None, typer.Option(help="Folder for the results, or an address such as s3://...")] = None,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    quantise: Annotated[str | None, typer.Option(help="8bit or 4bit: linear layers, by bitsandbytes.")] = None,
    batch: Annotated[str | None, typer.Option(metavar="N|auto", help="Examples side by side, as in bench.")] = None,
    no_count: Annotated[bool, typer.Option("--no-count", help="Do not count FLOPs and peak memory.")] = False,
    engine: Annotated[str, typer.Option(help="local, ray, slurm; with settings: 'ray(address=auto)'.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="The most at once.")] = None,
    shard: Annotated[int | None, typer.Option(min=1, help="Examples of a shard; by default ten minutes.")] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print the plan, and run nothing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Print how far the last sweep into --out is.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON, one object per run.")] = False,
) -> None:
    """Run a grid of methods, tasks, backbones and seeds on many workers; the same command again resumes."""
    named: dict[str, Any] = {"method": method, "task": task, "backbone": backbone, "seed": seed, "context": context}
    named |= {"split": split, "history": history, "limit": limit, "tokens": tokens, "data": data, "out": out}
    named |= {"set": settings_of(setting) if setting else None, "count": False if no_count else None}
    named |= {"device": device, "dtype": dtype, "quantise": quantise, "batch": batch}
    options = {name: value for name, value in named.items() if value is not None}
    if not as_json:
        announce()
    from contextlab.harness.store import read_result
    from contextlab.sweeps.engines import engine as make_engine
    from contextlab.sweeps.places import Place
    from contextlab.sweeps.status import read_plan, statuses
    from contextlab.sweeps.suite import Suite
    from contextlab.sweeps.sweep import opened

    if status:
        place = Place.of(Suite.out_of(file, options))
        _print_status(statuses(place, read_plan(place, of_suite=file is not None)), as_json)
        return
    suite = Suite.of(file, options)
    with opened(suite, functools.partial(make_engine, engine, workers), shard) as running:
        plan = running.plan()
        if plan_only or not as_json:
            _print_plan(plan, statuses(running.place, plan), as_json)
        if plan_only:
            return
        with _live(lambda: statuses(running.place, plan), shown=not as_json) as show:
            running.run(plan, show)
        if as_json:
            for run in plan.runs:
                print(json.dumps(read_result(running.place.take(run.run_id)).as_json()), flush=True)
        else:
            console().print(f"Stored below {suite.out}. `contextlab table {running.place.folder}` shows the runs.")


def _print_status(rows: Sequence[RunStatus], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(json.dumps({"state": row.state, "finished": row.finished, **row.run.as_json()}))
        return
    screen = console()
    screen.print(_table(rows))
    screen.print(_sentence(rows))


def _print_plan(plan: SweepPlan, rows: Sequence[RunStatus], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan.as_json()))
        return
    screen = console()
    screen.print(_table(rows, ("TFLOPs", "hours", "GiB"), [_needs(plan, row) for row in rows]))
    not_stored = [row for row in rows if row.state != "stored"]
    costed = [row for row in not_stored if row.run.estimate is not None]
    share = {row.run.run_id: 1 - row.finished / row.run.examples for row in costed}
    flops, seconds = (
        sum(share[row.run.run_id] * getattr(row.run.estimate, name) for row in costed) for name in ("flops", "seconds")
    )
    unknown = f", and {len(not_stored) - len(costed)} runs without a formula" if len(costed) < len(not_stored) else ""
    machine = plan.machine
    screen.print(
        f"{_sentence(rows)}. Left are {flops / 1e12:.3g} TFLOPs by formula{unknown}: {seconds / 3600:.3g} hours of one "
        f"worker at the {machine.flops_per_second / 1e9:.3g} GFLOPs per second of a forward pass just now. "
        f"{machine.free_bytes / GIB:.1f} GiB are free.",
        soft_wrap=True,
    )


def _needs(plan: SweepPlan, row: RunStatus) -> list[str]:
    """TFLOPs, hours and GiB of a run by formula; a method without one has no costs."""
    estimate = row.run.estimate
    costs = ["", ""] if estimate is None else [f"{estimate.flops / 1e12:.3g}", f"{estimate.seconds / 3600:.3g}"]
    return [*costs, f"{plan.run_bytes(row.run) / GIB:.2f}"]


def _table(rows: Sequence[RunStatus], further: Sequence[str] = (), cells: Sequence[Sequence[str]] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("method", "task", "backbone", "context", "seed", "state"):
        table.add_column(heading)
    for heading in ("examples", *further):
        table.add_column(heading, justify="right")
    for row, more in zip(rows, cells or [()] * len(rows), strict=True):
        run = row.run
        examples = f"{row.finished}/{run.examples}"
        table.add_row(run.method, run.task, run.backbone, run.context, str(run.seed), row.state, examples, *more)
    return table


def _sentence(rows: Sequence[RunStatus]) -> str:
    """How many runs are in every state."""
    counts = Counter(row.state for row in rows)
    others = "".join(f", {counts[state]} {state}" for state in ("running", "begun", "waiting") if counts[state])
    return f"{counts['stored']} of {len(rows)} runs stored{others}"


@contextmanager
def _live(look: Callable[[], Sequence[RunStatus]], *, shown: bool) -> Iterator[Callable[[], None]]:
    """A function that shows on standard error how far the runs are, at most once a second, or in a line a minute."""
    from rich.console import Console, Group
    from rich.live import Live

    screen = Console(stderr=True, markup=False, emoji=False, highlight=False)
    drawing = shown and screen.is_terminal
    every, last = EVERY if drawing else EVERY_LINE, time.monotonic()
    with Live(console=screen, transient=True, auto_refresh=False) if drawing else nullcontext() as live:

        def show() -> None:
            nonlocal every, last
            if not shown or time.monotonic() - last < every:
                return
            started = time.monotonic()
            rows = look()
            last = time.monotonic()
            every = max(every, SHARE * (last - started))
            if live is None:
                warn(f"contextlab: {_sentence(rows)}")
            else:
                active = [row for row in rows if row.state in ("running", "begun")]
                live.update(Group(_table(active), _sentence(rows)), refresh=True)

        yield show
