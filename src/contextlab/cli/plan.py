"""`contextlab plan`."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab.cli import console, say
from contextlab.cli.complete import backbone_names, method_names
from contextlab.errors import UserError, short

if TYPE_CHECKING:
    from contextlab.planning.row import PlannedRow

SIZES = {"": 1, "k": 2**10, "m": 2**20}
LONGEST = 2**24
"""Tokens of a length, at most."""


def plan(
    backbone: Annotated[
        str,
        typer.Option(
            help="llama-3.1-8b, qwen3-8b, a name of `ls backbones`, a folder or file with a config, or a hub id; no "
            "weights are loaded.",
            autocompletion=backbone_names,
        ),
    ],
    gpu: Annotated[str, typer.Option(help="h100, h200, a100 or rtx4090.")],
    method: Annotated[
        str | None, typer.Option(help="Methods, with commas; by default all.", autocompletion=method_names)
    ] = None,
    length: Annotated[str, typer.Option(help="Tokens of a text, with commas; k is 1,024 and M 1,024 k.")] = (
        "8k,32k,128k,1M"
    ),
    rows: Annotated[int, typer.Option(min=1, help="Texts side by side.")] = 1,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per method and length.")] = False,
) -> None:
    """Say what methods need and cost on a GPU, and whether they fit, without one.

    Bytes and FLOPs are exact arithmetic, launches and working memory those of a run on shapes alone. Speeds are bounds,
    not measurements: kernels reach perhaps half.
    """
    from contextlab.harness.progress import Progress
    from contextlab.planning.gpus import gpu as known_gpu
    from contextlab.planning.plan import Planner
    from contextlab.planning.shaped import built_in, named_on
    from contextlab.planning.shapes import backbone_of
    from contextlab.planning.table import markdown, title

    lengths, place = _lengths(length), known_gpu(gpu)
    model = backbone_of(backbone, dtype)
    methods = named_on(method or ",".join(built_in()), model)
    with Progress.on_stderr(False if as_json else None) as bar:
        planner = Planner(model, place, rows, lambda label: bar.loading(f"shapes of {label}"))
        planned = [row for named in methods for row in planner.rows_of(named, lengths, refuse=method is not None)]
    if as_json:
        for row in planned:
            print(json.dumps({"backbone": backbone, "gpu": gpu, "rows": rows, "dtype": dtype, **row.as_dict()}))
        return
    for number, tokens in enumerate(lengths):
        of_length = [row for row in planned if row.length == tokens]
        heading = title(tokens, rows, backbone, dtype, place)
        if sys.stdout.isatty():
            _show(heading, of_length)
        else:
            say(("\n" if number else "") + markdown(heading, of_length))


def _lengths(text: str) -> list[int]:
    """Numbers of tokens.

    Raises:
        UserError: when one is no number of tokens, or too small or large to be planned.
    """
    return list(dict.fromkeys(_tokens(word.strip()) for word in text.split(",")))


def _tokens(word: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([kKmM]?)", word)
    tokens = int(match[1]) * SIZES[match[2].lower()] if match else 0
    if not 2**10 <= tokens <= LONGEST:
        raise UserError(f"--length {short(word)} cannot be planned: give 1k to 16M tokens, as in 8k,32k,128k,1M.")
    return tokens


def _show(heading: str, rows: list[PlannedRow]) -> None:
    """The table of a length on a terminal."""
    from rich.table import Table

    from contextlab.planning.table import HEAD, cells, notes

    table = Table(*HEAD, title=heading)
    for row in rows:
        table.add_row(*cells(row))
    console().print(table)
    for note in notes(rows):
        say(f"* {note}")
    say("")
