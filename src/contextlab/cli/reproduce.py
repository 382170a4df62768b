"""`contextlab reproduce`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextlab.cli import console, say
from contextlab.cli.options import DataFolder, Device, format_of
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.reports.papers.plan import PlannedRun
    from contextlab.reports.papers.schema import Paper, PaperEntry, PaperRun
    from contextlab.reports.papers.sheet import Page

EMBEDDED = "smollm2-135m"


class Scale(StrEnum):
    """At which size an entry is run."""

    embedded = "embedded"
    paper = "paper"


FORMATS = ("markdown", "json", "text")


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A paper or an entry of it, such as longmem/table7.")] = None,
    scale: Annotated[Scale, typer.Option(help="embedded: smollm2-135m, minutes; paper: its models and data.")] = (
        Scale.embedded
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print commands, time and memory only.")] = False,
    published: Annotated[bool, typer.Option("--published", help="Print the paper's numbers only.")] = False,
    stored: Annotated[
        Path | None, typer.Option("--from", help="Print what is stored in this folder, without running.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs/reproduce"),
    data: DataFolder = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most examples of every run.")] = None,
    device: Device = None,
    style: Annotated[
        str | None,
        typer.Option("--format", help=f"{', '.join(FORMATS)}; by default text on a terminal, and otherwise markdown."),
    ] = None,
) -> None:
    """Print a table or figure of one of the papers beside what is measured here; without a name list all."""
    from contextlab.reports.papers import schema

    style = format_of(style, FORMATS)
    if name is None:
        _print([_list()], style)
        return
    entries = schema.find(name)
    if published:
        from contextlab.reports.papers import page

        _print([page.published(paper, entry) for paper, entry in entries], style)
        return
    options = {"backbone": backbone, "limit": limit, "device": device}
    if dry_run:
        rate = _speed(out)
        _print([_plan(paper, entry, scale, out, data, options, rate) for paper, entry in entries], style)
        return
    can = [(paper, entry) for paper, entry in entries if _can(entry, scale, entries)]
    for paper, entry in can:
        if entry.stated:
            from contextlab.reports.papers import page

            _print([page.stated(paper, entry, data)], style)
    can = [(paper, entry) for paper, entry in can if not entry.stated]
    recipes = [(paper, entry, _runs(paper, entry, scale, data, stored is not None)) for paper, entry in can]
    for paper, entry, runs in recipes:
        from contextlab.reports.papers import measure, page

        model = backbone or _backbone(entry, scale)
        if stored is not None:
            measured = measure.stored(runs, stored, model)
        else:
            shown = False if style == "json" else None
            measured = measure.measured(runs, out=out, data=data, progress=shown, **{**options, "backbone": model})
        _print([page.comparison(paper, entry, list(measured))], style)


def _can(entry: PaperEntry, scale: Scale, entries: list[tuple[Paper, PaperEntry]]) -> bool:
    """Whether an entry takes part: of a whole paper, only entries with a recipe."""
    return len(entries) == 1 or entry.has_recipe or (scale == Scale.paper and entry.paper is not None)


def _backbone(entry: PaperEntry, scale: Scale) -> str:
    return EMBEDDED if scale == Scale.embedded or entry.paper is None else str(entry.paper.backbone)


def _runs(paper: Paper, entry: PaperEntry, scale: Scale, data: Path | None, stored: bool) -> list[PaperRun]:
    """The runs of a recipe, which may be made already.

    Raises:
        UserError: when there is none, or this machine lacks what it needs.
    """
    where = f"{paper.name}/{entry.name}"
    if scale == Scale.embedded:
        if entry.embedded is None:
            raise UserError(f"{where} has no recipe for {EMBEDDED}: {entry.not_here}; use --published to read it.")
        return entry.embedded.runs
    from contextlab.reports.papers.measure import missing

    absent = missing(paper, entry, data)
    if absent and not (stored and entry.runs_of_paper):
        raise UserError(
            f"{where} cannot be run at the paper's scale here, as {', and '.join(absent)}: use --scale embedded, or "
            "--dry-run to see what it would take."
        )
    return entry.runs_of_paper


def _plan(
    paper: Paper,
    entry: PaperEntry,
    scale: Scale,
    out: Path,
    data: Path | None,
    options: dict[str, Any],
    rate: tuple[float, str],
) -> Page:
    """The runs of an entry, with estimates by a rate of `_speed`."""
    from contextlab.reports.papers import plan, sheet

    speed, source = rate
    chosen = {"backbone": options["backbone"], "limit": options["limit"], "out": out, "data": data}
    notes = [f"Estimated at {speed / 1e9:,.0f} GFLOPs per second, {source}; stored examples are not run again."]
    if entry.stated:
        steps, notes = [], ["Nothing is run: it is read from the package."]
    elif scale == Scale.embedded or entry.paper is None:
        steps = plan.steps(entry.embedded.runs if entry.embedded else [], plan.EMBEDDED, speed, **chosen)
        notes += [] if entry.embedded else [f"No recipe for {EMBEDDED}: {entry.not_here}."]
    else:
        steps = [plan.whole(paper, entry.paper, speed)]
        model = entry.paper.backbone or "not published"
        notes = [f"Model: {paper.model.about} ({model}). Data: {entry.data}. Size: {entry.size}.", *notes]
        from contextlab.reports.papers import measure

        absent = measure.missing(paper, entry, data)
        notes += [f"Missing here: {'; '.join(absent)}." if absent else "Model and data are here."]
        steps += plan.steps(
            entry.paper.runs,
            plan.shape(paper.model),
            speed,
            entry.paper.tokens,
            **{**chosen, "backbone": options["backbone"] or entry.paper.backbone},
        )
    return sheet.Page(sheet.title(paper, entry), [PLAN, *map(_step, steps), *_total(steps)], notes)


PLAN = ("run", "examples", "TFLOPs", "time", "memory")


def _step(step: PlannedRun) -> tuple[str, ...]:
    flops = f"{step.flops / 1e12:,.3g}"
    return step.command, f"{step.examples:,}", flops, _time(step.whole_seconds), f"{step.memory / 1e9:.1f} GB"


def _total(steps: list[PlannedRun]) -> Iterator[tuple[str, ...]]:
    if len(steps) > 1:
        flops = sum(step.flops for step in steps) / 1e12
        memory = max(step.memory for step in steps) / 1e9
        yield "all", "", f"{flops:,.3g}", _time(sum(step.whole_seconds for step in steps)), f"{memory:.1f} GB"


def _speed(out: Path) -> tuple[float, str]:
    """FLOPs per second here, and where they are from."""
    from contextlab.reports.papers import plan

    if out.is_dir() and any(out.rglob("summary.json")):
        from contextlab.reports.stored import load_results

        results = [result for result in load_results(out) if result.backbone == EMBEDDED]
        if speed := plan.speed_of(results):
            return speed, f"the median of {len(results)} runs below {out}"
    from contextlab.reports.papers.speed import speed_here

    return speed_here(), "that of this machine just now in layers of smollm2-135m's size"


def _list() -> Page:
    """All entries, with the time that each would take."""
    from contextlab.reports.papers import plan, schema, sheet

    rows = []
    for paper in schema.papers().values():
        for entry in paper.entry:
            runs = entry.embedded.runs if entry.embedded else []
            seconds = sum(step.whole_seconds for step in plan.steps(runs, plan.EMBEDDED, plan.SPEED))
            time = _time(seconds) if runs else "no run" if entry.stated else "no recipe"
            rows.append((f"{paper.name}/{entry.name}", entry.about, time))
    note = "time: of the recipe for smollm2-135m on two cores, estimated; --published prints the paper's numbers."
    return sheet.Page("Tables and figures of the papers", [("name", "what it shows", "time"), *rows], [note])


def _time(seconds: float) -> str:
    """An estimated time in its largest unit."""
    for size, unit in ((365 * 86400, "years"), (86400, "days"), (3600, "hours"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 9.5 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _print(pages: list[Page], style: str) -> None:
    for page in pages:
        if style == "json":
            print(json.dumps(page.as_dict()), flush=True)
        elif style == "markdown":
            print(page.markdown(), end="\n\n", flush=True)
        else:
            _show(page)


def _show(page: Page) -> None:
    from rich.table import Table

    head, *rows = page.rows
    table = Table(*head, title=page.title, show_lines=any(len(cell) > 30 for row in rows for cell in row))
    for row in rows:
        table.add_row(*row)
    console().print(table)
    for note in page.notes:
        say(f"* {note}")
    say("")
