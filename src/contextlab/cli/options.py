"""Options that several commands have, each with one meaning in all of them.

`--out` is where a command writes, and `--from` is where it reads what was written before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab.cli.complete import backbone_names
from contextlab.errors import UserError, check_known

if TYPE_CHECKING:
    from contextlab.reports.filters import Limit
    from contextlab.reports.names import Names


def _folder_of_data(data: Path | None) -> Path | None:
    """The folder, which has to exist even for a task that reads other files."""
    if data is not None:
        from contextlab.benchmarks.data.sources import data_root

        data_root(data)
    return data


Folder = Annotated[Path, typer.Argument(help="Folder of results, as `bench` stores them.")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of results.")]
From = Annotated[Path, typer.Option("--from", help="Folder of stored runs.")]
Where = Annotated[
    list[str] | None,
    typer.Option(metavar="CONDITION", help="Such as task=pg22, seed!=0, state_bytes<1e6, settings.K=64; repeat it."),
]
Under = Annotated[
    list[str] | None, typer.Option(metavar="LIMIT", help="Only what costs no more, as state=32MB; repeat it.")
]
NamesFile = Annotated[Path | None, typer.Option(help='TOML file with names, as method.longmem = "LongMem".')]
Mixed = Annotated[bool, typer.Option("--mixed", help="Also results of different code, data, prompts or weights.")]
Notes = Annotated[bool, typer.Option("--notes", help="Also how the numbers were made, below the caption.")]
DataFolder = Annotated[
    Path | None, typer.Option(help="Folder of data sets; by default CONTEXTLAB_DATA.", callback=_folder_of_data)
]
BackboneName = Annotated[
    str,
    typer.Option(
        help="Name, hub id, folder or GGUF file; NAME+UPDATE adds trained weights or a PEFT folder.",
        autocompletion=backbone_names,
    ),
]
Device = Annotated[str | None, typer.Option(help="Torch device; by default the GPU, where there is one.")]
OutOfReader = Annotated[Path | None, typer.Option("--out", hidden=True)]
"""`--out` of a command that only reads, which is refused with the right name."""


DeviceMap = Annotated[str | None, typer.Option("--device-map", hidden=True)]
Attention = Annotated[str | None, typer.Option("--attn", hidden=True)]
"""Options of transformers that mean nothing here, which are refused with the reason."""


def check_transformers_options(device_map: str | None, attention: str | None) -> None:
    """Refuse what transformers would do with a model, and methods do themselves.

    Raises:
        UserError: which names the right option.
    """
    if device_map is not None:
        raise UserError(
            "--device-map divides a model over devices, and methods keep all layers with their caches on one: name it "
            "with --device, or make the model smaller with --quantise."
        )
    if attention is not None:
        raise UserError(
            "--attn has nothing to choose, because methods do the model's attention themselves: leave it out, and "
            "choose the form of their kernels with CONTEXTLAB_KERNELS."
        )


def check_reads(out: Path | None) -> None:
    """Refuse `--out` in a command that writes nothing.

    Raises:
        UserError: which names the right option.
    """
    if out is not None:
        raise UserError(f"--out is where a command writes, and this one reads: write --from {out}.")


def format_of(style: str | None, formats: Sequence[str]) -> str:
    """A format that is known; by default text on a terminal, and otherwise Markdown.

    Raises:
        UserError: for another one.
    """
    style = style or ("text" if sys.stdout.isatty() else "markdown")
    if style == "terminal":
        raise UserError("The format of a terminal is called text: write --format text.")
    check_known("format", [style], formats)
    return style


def names_of(path: Path | None) -> Names:
    """The display names in a file; none without one.

    Raises:
        UserError: when it cannot be read, or holds something else.
    """
    from contextlab.reports.names import PLAIN, Names

    return PLAIN if path is None else Names.read(path)


def limits_of(texts: Sequence[str] | None) -> list[Limit]:
    """The limits that `--under` names.

    Raises:
        UserError: when one has another form.
    """
    from contextlab.reports.filters import Limit

    return [Limit.parse(text) for text in texts or ()]
