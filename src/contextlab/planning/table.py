"""Plans as tables: one for every length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contextlab.planning.gpus import GPU, USABLE
from contextlab.planning.row import PlannedRow

HEAD = (
    "method",
    "weights GiB",
    "state GiB",
    "peak GiB",
    "read TFLOP",
    "token TFLOP",
    "launches per 1,024 read",
    "launches per token",
    "read tokens/s",
    "decoded tokens/s",
    "fits",
)
BOUNDS = (
    "Speeds are bounds and no measurements: the slowest of arithmetic (`compute`), of moving weights and state "
    "(`memory`) and of launches at 5 microseconds each; kernels reach perhaps half."
)


def cells(row: PlannedRow) -> tuple[str, ...]:
    """A row of the table, in the order of `HEAD`; what is unknown is empty."""
    fits = "" if row.fits is None else "yes" if row.fits else f"no: {row.advice}" if row.advice else "no"
    return (
        row.method,
        _size(row.weights_bytes),
        _size(row.state_bytes),
        _size(row.peak_bytes),
        _tera(row.read_flops),
        _tera(row.decoded_flops),
        _whole(row.read_launches),
        _whole(row.decoded_launches),
        _speed(row.read_speed, row.read_limit),
        _speed(row.decoded_speed, row.decoded_limit),
        fits,
    )


def title(length: int, rows: int, backbone: str, dtype: str, gpu: GPU) -> str:
    """The heading of the table of a length."""
    texts = "a text" if rows == 1 else f"{rows:,} texts side by side"
    usable = f"{gpu.usable / 2**30:.1f} GiB can be used, {USABLE:.0%} of its memory"
    return f"{texts} of {length:,} tokens, {backbone} in {dtype}, on one {gpu.about} ({usable})"


def notes(rows: Sequence[PlannedRow]) -> Iterator[str]:
    """What stands below a table."""
    yield BOUNDS
    yield from dict.fromkeys(note for row in rows for note in row.notes)


def markdown(heading: str, rows: Sequence[PlannedRow]) -> str:
    """A table for a page."""
    lines = [HEAD, ("---", *["---:"] * (len(HEAD) - 2), "---"), *map(cells, rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    below = "\n".join(f"* {note}" for note in notes(rows))
    return f"{heading[0].upper()}{heading[1:]}:\n\n{table}\n\n{below}"


def _size(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:,.2f}"


def _tera(flops: int | None) -> str:
    return "" if flops is None else f"{flops / 1e12:,.0f}" if flops >= 1e14 else f"{flops / 1e12:.3g}"


def _whole(count: float | None) -> str:
    return "" if count is None else f"{count:,.0f}"


def _speed(speed: float | None, limit: str | None) -> str:
    return "" if speed is None else f"{speed:,.0f} ({limit})"
