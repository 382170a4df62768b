"""A page with all results of a folder: one file that asks for nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pandas
from rich.console import Console
from rich.progress import track

from contextlab import harmless
from contextlab.errors import UserError
from contextlab.harness.store import lines
from contextlab.reports.alike import mixtures, of_weights
from contextlab.reports.dimensions import DIMENSIONS
from contextlab.reports.filters import selection_of
from contextlab.reports.frame import frame_of
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.page.content import answers, cards, texts
from contextlab.reports.page.overview import overview
from contextlab.reports.plots.observed import runs_of
from contextlab.reports.stored import gc_paused
from contextlab.version import __version__

SCRIPTS = ("elements.js", "runs.js", "picture.js", "examples.js", "main.js")


@gc_paused()
def page(
    folders: Sequence[Path],
    *,
    where: Sequence[str] = (),
    data: Path | None = None,
    title: str = "Results",
    names: Names = PLAIN,
    baseline: str | None = None,
    on_missing: Callable[[str], None] = lambda _: None,
    progress: bool = False,
) -> str:
    """The HTML of a page about the results below folders.

    Examples are stored compressed, one block for every run, which the browser unpacks when they are opened.

    Args:
        folders: of results.
        where: conditions of `reports.filters.select`.
        data: folder of data sets, whose texts are shown; None shows none.
        title: of the page.
        names: display names of methods.
        baseline: method to which paired differences are shown; `window`, or else the first one, when None.
        on_missing: called with a sentence on what cannot be shown: unfinished runs, and texts of every data set that
            cannot be loaded.
        progress: whether to show progress on standard error.

    Raises:
        UserError: when there are no results, or a stored one is broken.
    """
    selection = selection_of(folders, where)
    if selection.unfinished:
        on_missing(selection.unfinished_sentence)
    frame = frame_of(selection.results)
    about = overview(frame, names, baseline)
    first = frame.drop_duplicates("run")
    rows = track(runs_of(first), "runs", console=Console(stderr=True), transient=True, disable=not progress)
    measures: dict[str, str] = dict(frame.loc[frame["measure"], ["run", "metric"]].itertuples(index=False))
    blocks = {f"run-{n}": _examples(row.folder, row.examples, measures.get(row.run, "")) for n, row in enumerate(rows)}
    if data is not None:
        _add_texts(blocks, about, first, data, on_missing)
    about["cards"] = cards(_unique(first["name"]), _unique(first["benchmark"]))
    mixed = [mixture.sentence for mixture in mixtures(selection.results, DIMENSIONS, names)]
    mixed += of_weights(selection.results, names)
    sentence = ". ".join(filter(None, [selection.left_out.sentence, *mixed]))
    about |= {"version": __version__, "left_out": harmless.line(sentence)}
    return _assembled(title, about, blocks)


def _examples(folder: Any, examples: Any, measure: str) -> dict[str, Any]:
    """Ids, qualities and answers of the examples of a run, in their order in the data."""
    stored = sorted(lines(Path(folder), examples), key=lambda line: line.index)
    return {
        "ids": [line.id for line in stored],
        "qualities": [None if line.quality is None else round(line.quality, 6) for line in stored],
        "answers": [answers(line.record, measure) for line in stored],
    }


def _add_texts(
    blocks: dict[str, dict[str, Any]],
    about: Mapping[str, Any],
    first: pandas.DataFrame,
    data: Path,
    on_missing: Callable[[str], None],
) -> None:
    """Add a block `texts-G` for every group whose texts can be loaded."""
    rows = {run["group"]: row for run, (_, row) in zip(about["runs"], first.iterrows(), strict=True)}
    for group, row in sorted(rows.items()):
        numbers = [n for n, run in enumerate(about["runs"]) if run["group"] == group]
        ids = {name for n in numbers for name in blocks[f"run-{n}"]["ids"]}
        try:
            blocks[f"texts-{group}"] = texts(row, ids, data)
        except UserError as error:
            on_missing(str(error))


def _assembled(title: str, about: Mapping[str, Any], blocks: Mapping[str, Any]) -> str:
    style, script = _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    packed = "\n".join(
        f'<script type="text/plain" id="{name}">{_packed(block)}</script>' for name, block in blocks.items()
    )
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(title),
        "policy": html.escape(policy),
        "style": style,
        "overview": harmless_json(about),
        "blocks": packed,
        "script": script,
    }
    whole = _asset("page.html")
    for name, text in parts.items():
        before, mark, after = whole.partition(f"<!-- {name} -->")
        assert mark, name
        whole = before + text + after
    return whole


def harmless_json(value: Any) -> str:
    """JSON that can stand in a script element: no text in it ends the element or begins a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _packed(value: Any) -> str:
    """JSON, compressed, in letters that mean nothing in HTML; equal values are equal texts."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text("utf-8")


def _unique(values: pandas.Series[Any]) -> list[str]:
    return sorted({str(value) for value in values})
