"""The stored output of the benchmarks as one Markdown table a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every number and text of a nest of objects and lists under its dotted name; short lists of numbers in one row."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from rows(item, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for place, item in enumerate(value):
            yield from rows(item, f"{name}.{place}")
    elif value is not None:
        items = value if isinstance(value, list) else [value]
        yield name, ", ".join(f"{item:,.4g}" if isinstance(item, float) else str(item) for item in items)


def table(path: Path) -> str:
    """One benchmark's table; the last line of its output is the JSON object."""
    lines = [f"| {name} | {text} |" for name, text in rows(json.loads(path.read_text("utf-8").splitlines()[-1]))]
    return "\n".join([f"| {path.stem} | |", "|---|---|", *lines]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    print("\n".join(table(path) for path in parser.parse_args().files), end="")


if __name__ == "__main__":
    main()
