"""`contextlab data`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextlab import harmless
from contextlab.cli import console, say
from contextlab.errors import UserError, unknown

if TYPE_CHECKING:
    from contextlab.benchmarks.data.data_set import DataSet, Remote
    from contextlab.benchmarks.data.gutenberg import CatalogueRow

app = typer.Typer(help="Data sets: list them, get them, and check whether they are intact.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@app.command("ls")
def list_(as_json: AsJson = False) -> None:
    """List every data set with source, licence, size, digests, and how to get it."""
    from contextlab.benchmarks.data.catalogue import ENTRIES

    for entry in ENTRIES:
        if as_json:
            print(json.dumps({**dataclasses.asdict(entry), "folder": entry.folder}))
            continue
        print(f"{entry.name}: {entry.about}")
        print(f"    from     {entry.source}")
        print(f"    licence  {entry.licence}")
        print(f"    size     {entry.size}")
        if entry.remotes:
            print(f"    get it   contextlab data fetch {entry.name}")
        if entry.otherwise:
            print(f"    {'besides ' if entry.remotes else 'get it  '} {entry.otherwise}")
        for remote in entry.remotes:
            print(f"    file     {remote.path}  {_pinned(remote)}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set; see `contextlab data ls`.")],
    mirror: Annotated[
        str | None, typer.Option(help="Folder or address with the files in the layout of a data folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a data set into the cache, as far as this is possible; the same command again resumes."""
    from contextlab.benchmarks.data import fetch as downloads
    from contextlab.paths import cache_dir

    entry = _entry(name)
    if not entry.remotes:
        raise UserError(f"{name} cannot be fetched; instead: {entry.otherwise}.")

    def report(url: str) -> None:
        if sys.stderr.isatty() and not as_json:
            print(url, file=sys.stderr)

    for path, sha256 in downloads.fetch(entry, mirror, report):
        say(json.dumps({"path": path, "sha256": sha256}) if as_json else f"{sha256}  {harmless.line(path)}")
    if not as_json:
        print(f"Stored below {cache_dir() / 'data' / entry.folder}.")
        if entry.otherwise:
            print(f"Not fetched: {entry.otherwise}.")


@app.command()
def check(
    name: Annotated[str | None, typer.Argument(help="A data set; by default all.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data folder; by default CONTEXTLAB_DATA, else the cache.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which data sets are absent, complete, re-laid or broken, and generated files; exit 1 if one is broken."""
    from contextlab.benchmarks.data.catalogue import ENTRIES
    from contextlab.benchmarks.data.intact import examine
    from contextlab.benchmarks.data.sources import data_root

    root = data_root(data)
    broken = False
    for entry in [_entry(name)] if name else ENTRIES:
        report = examine(entry, root)
        note = ""
        if report.state not in ("absent", "broken"):
            note, problem = _loaded(entry, root)
            if problem:
                report = dataclasses.replace(report, state="broken", problems=(problem,))
            elif note.startswith(("re-laid", "stand-in")):
                report = dataclasses.replace(report, state="re-laid")
        broken |= report.state == "broken"
        if as_json:
            print(json.dumps({**dataclasses.asdict(report), "note": note}))
            continue
        missing = f"no {', '.join(report.missing)}" if report.missing else ""
        counts = f"{report.files} files, {report.bytes:,} bytes, {report.verified} verified" if report.files else ""
        about = "; ".join(filter(None, (counts, missing, note)))
        say(harmless.line(f"{entry.name:<16} {report.state:<11} {about}").rstrip())
        for problem in report.problems:
            say(f"    {harmless.line(problem)}")
    if name is None:
        broken |= _generated(as_json)
    if broken:
        raise typer.Exit(1)


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="The data set to build: pg22.")],
    mirror: Annotated[str | None, typer.Option(help="Folder or address of a mirror of Project Gutenberg.")] = None,
    out: Annotated[Path | None, typer.Option(help="Data folder for pg22/; by default the cache's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many books.")] = None,
    catalogue: Annotated[
        str | None, typer.Option(help="File or address of pg_catalog.csv; by default the mirror's.")
    ] = None,
    pg19: Annotated[Path | None, typer.Option(help="PG-19's metadata.csv; by default the fetched one.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json of GPT-2; by default the hub's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw PG-22 from Project Gutenberg's catalogue; the same command again resumes."""
    if name != "pg22":
        raise unknown("data set that can be built", name, ["pg22"])

    from contextlab import locks
    from contextlab.benchmarks.data import gutenberg, pg22_build
    from contextlab.paths import cache_dir

    source = gutenberg.Mirror(mirror or gutenberg.MIRROR)
    root = out or cache_dir() / "data"
    metadata = pg19 or cache_dir() / "data" / "pg19" / "metadata.csv"
    if not metadata.is_file():
        raise UserError(
            f"PG-19's books are left out and {metadata} does not list them: run `contextlab data fetch pg19`, or give "
            f"--pg19."
        )
    where = Path(catalogue).resolve().as_uri() if catalogue and Path(catalogue).is_file() else catalogue
    with locks.held(f"build {root.resolve()}"):
        manifest = pg22_build.build(
            root / "pg22",
            source,
            metadata,
            pg22_build.load_tokenizer(tokenizer),
            limit=limit,
            catalogue=where,
            progress=iter if as_json else _progress,
        )
    if as_json:
        print(json.dumps(manifest))
        return
    screen = console()
    screen.print(f"{manifest['books']} books below {root / 'pg22'}: {_counts(manifest['buckets'])}.")
    screen.print(f"Left out: {_counts(manifest['skipped']) or 'none'}.")
    screen.print(f"sha256 of the set: {manifest['sha256']}.")


def _progress(rows: list[CatalogueRow]) -> Iterator[CatalogueRow]:
    from rich.console import Console
    from rich.progress import track

    yield from track(rows, "books", console=Console(stderr=True), disable=not sys.stderr.isatty())


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _generated(as_json: bool) -> bool:
    """Show every file of generated readings; whether one is broken."""
    from contextlab.benchmarks.data.generated import examined

    stored = examined()
    for file in stored:
        state, settings = "broken" if file.problem else "intact", dict(file.settings)
        if as_json:
            print(json.dumps({"name": "generated", **dataclasses.asdict(file), "path": str(file.path), "state": state}))
            continue
        what = f"{settings.pop('task', '')}/{settings.pop('split', '')}"
        shown = (f"{key}={value}" for key, value in settings.items() if isinstance(value, int))
        about = ", ".join([what, *shown]) if settings else ""
        say(harmless.line(f"{'generated':<16} {state:<11} {'; '.join(filter(None, (about, file.path.name)))}"))
        if file.problem:
            say(f"    {harmless.line(file.problem)}: delete the file, and it is made again.")
    return any(file.problem for file in stored)


def _pinned(remote: Remote) -> str:
    size = f"{remote.bytes:,} bytes, " if remote.bytes else ""
    return size + (remote.digest or "sha256 not pinned: nobody's copy was at hand to compare with")


def _entry(name: str) -> DataSet:
    from contextlab.benchmarks.data.catalogue import SETS

    if name not in SETS:
        raise unknown("data set", name, SETS)
    return SETS[name]


def _loaded(entry: DataSet, root: Path) -> tuple[str, str]:
    """The loader's note on the data, or the reason why it refuses all splits."""
    from contextlab import registry

    problem = ""
    tasks: dict[str, Any] = registry.tasks()
    for name in entry.tasks:
        if name not in tasks:
            continue
        task = registry.task(name)
        for split in dict.fromkeys((task.default_split, *task.splits)):
            try:
                return task.load(split, root).note, ""
            except UserError as error:
                problem = problem or str(error)
    return "", problem
