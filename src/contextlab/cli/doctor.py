"""`contextlab doctor`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from contextlab.cli import console
from contextlab.version import __version__

EXTRAS = {
    "kernels": "triton",
    "lm-eval": "lm_eval",
    "faiss": "faiss",
    "bm25": "bm25s",
    "ray": "ray",
    "slurm": "submitit",
    "plots": "matplotlib",
    "tensorboard": "tensorboard",
    "quantise": "bitsandbytes",
    "energy": "pynvml",
    "parquet": "pyarrow",
    "rouge": "rouge_score",
    "longbench": "jieba",
    "ruler": "wonderwords",
}
"""By extra of the package, a module that is there where it is installed."""


def doctor(
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what this machine can run and what is missing, with a command that fixes it."""
    findings = [*_versions(), *_machine(), *_extras(), *_folders(out)]
    if as_json:
        print(json.dumps(findings))
        return
    from rich.table import Table

    table = Table("", "found", "to fix it")
    for finding in findings:
        table.add_row(finding["what"], finding["found"], finding["fix"] or "")
    console().print(table)


def _finding(what: str, value: str, fix: str | None = None) -> dict[str, Any]:
    return {"what": what, "found": value, "ok": fix is None, "fix": fix}


def _versions() -> Iterator[dict[str, Any]]:
    from importlib import metadata

    yield _finding("python", platform.python_version())
    yield _finding("contextlab", __version__)
    for name in ("torch", "transformers"):
        try:
            yield _finding(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield _finding(name, "not installed", f"pip install {name}")


def _machine() -> Iterator[dict[str, Any]]:
    import torch

    from contextlab.harness.identity import hardware

    yield _finding("device", hardware(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    yield _finding("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")


def _extras() -> Iterator[dict[str, Any]]:
    from importlib import util

    for extra, module in EXTRAS.items():
        # Packages are not imported, because some of them disturb torch when they are imported first.
        present = util.find_spec(module) is not None
        fix = None if present else f"pip install 'contextlab[{extra}]'"
        yield _finding(f"extra {extra}", "present" if present else "not installed", fix)


def _folders(out: Path) -> Iterator[dict[str, Any]]:
    from contextlab.backbone.embedded import EMBEDDED
    from contextlab.paths import cache_dir, has_backbone

    here = has_backbone(EMBEDDED)
    fetch = f"contextlab bench --backbone {EMBEDDED} --method window --task chapterbreak --limit 1"
    yield _finding(f"backbone {EMBEDDED}", "in the cache" if here else "not in the cache", None if here else fetch)
    data = os.environ.get("CONTEXTLAB_DATA")
    if data is None:
        yield _finding("data", "CONTEXTLAB_DATA is not set: --data, the cache, the hub, or the generated sample")
    else:
        yield _finding("data", data, None if Path(data).is_dir() else "set CONTEXTLAB_DATA to a folder that exists")
    yield _writable("cache", cache_dir(), "set CONTEXTLAB_CACHE to a folder that you can write")
    yield _writable("results", out, "give --out a folder that you can write")


def _writable(what: str, folder: Path, fix: str) -> dict[str, Any]:
    """Try to write in the folder, or in the folder where it would be created."""
    import tempfile

    existing = next((candidate for candidate in (folder, *folder.absolute().parents) if candidate.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return _finding(what, str(folder))
    except OSError as error:
        return _finding(what, f"{folder} cannot be written ({error.strerror})", fix)
