"""The stored output of the benchmarks as Markdown: single measurements as rows, lists as tables."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def page(path: Path, columns: Sequence[str] = ()) -> str:
    """One benchmark's tables, of lists those that have the columns; the last line of its output is the JSON object."""
    result = json.loads(path.read_text("utf-8").splitlines()[-1])
    lists = {key: value for key, value in result.items() if _is_records(value)}
    single = [{path.stem: key, "": text} for key, text in _flat({k: v for k, v in result.items() if k not in lists})]
    wanted = [
        value for value in lists.values() if all(any(name in dict(_flat(row)) for row in value) for name in columns)
    ]
    return "\n\n".join([records(single), *(records(value, columns) for value in wanted)])


def records(rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> str:
    """A table with one row per record, with some columns or all."""
    flat = [dict(_flat(row)) for row in rows]
    keys = columns or list(dict.fromkeys(key for row in flat for key in row))
    lines = [keys, ["---"] * len(keys), *([row.get(key, "") for key in keys] for row in flat)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Every value of nested objects as text by its dotted name; sizes in one word."""
    for key, item in value.items():
        if isinstance(item, dict) and key != "size":
            yield from _flat(item, f"{before}{key}.")
        elif item is not None:
            yield before + key, _word(item)


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}{number}" for key, number in value.items() if number)
    if isinstance(value, list):
        return ", ".join(map(_word, value))
    return f"{value:,.4g}" if isinstance(value, float) else re.sub(r"(?<!\\)\|", r"\|", str(value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--columns", default="", help="of measurements, separated by commas; by default all")
    options = parser.parse_args()
    columns = [name for name in options.columns.split(",") if name]
    print("\n\n".join(page(path, columns) for path in options.files))


if __name__ == "__main__":
    main()
