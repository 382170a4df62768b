"""`contextlab kernels bench`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from contextlab.cli import console
from contextlab.errors import UserError, unknown

app = typer.Typer(help="Operations that no standard library has.", rich_markup_mode=None)


@app.callback()
def kernels() -> None:
    """Operations that no standard library has."""


@app.command()
def bench(
    op: Annotated[str, typer.Option(help="Operations, separated by commas; by default all.")] = "",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU, where there is one.")] = None,
    sizes: Annotated[str | None, typer.Option(help="toy, cpu or cuda; by default those of the device.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed runs.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the kernels beside their plain-torch references, torch's own operations and the hardware's limits."""
    report = measured([name for name in op.split(",") if name], device, sizes, repeats)
    if as_json:
        print(json.dumps(report))
    else:
        _show(report)
    wrong = [f"{record['op']} ({record['form']})" for record in report["results"] if not record["right"]]
    if wrong:
        raise UserError(f"{', '.join(wrong)} gives a wrong output here: do not use it, and report this machine.")


def measured(names: list[str], device: str | None, sizes: str | None, repeats: int) -> dict[str, Any]:
    """The report: limits of the hardware, and one record per operation, size and form.

    Raises:
        UserError: for an unknown operation, size or device, or when the environment names an unknown form.
    """
    import torch

    from contextlab.backbone import compute_device
    from contextlab.harness.identity import hardware
    from contextlab.kernels import bench as kernels_bench
    from contextlab.kernels import bench_cases, dispatch

    dispatch.forced_form()
    where = compute_device(device)
    if where.type not in ("cpu", "cuda"):
        raise UserError(f"The kernels are measured on cpu or cuda, not on {where.type}: use --device cpu.")
    scale = sizes or where.type
    if scale not in bench_cases.SIZES:
        raise unknown("size", scale, bench_cases.SIZES)
    for name in names:
        if name not in bench_cases.CASES:
            raise unknown("operation", name, bench_cases.CASES)
    torch.manual_seed(0)
    ceiling = kernels_bench.ceilings(where, {"toy": 128, "cpu": 1024, "cuda": 8192}[scale])
    results: list[dict[str, Any]] = []
    for name in names or bench_cases.CASES:
        for size in bench_cases.SIZES[scale][name]:
            for case in bench_cases.CASES[name](size, where):
                results += kernels_bench.measure(case, where, ceiling, _peak_of(where), repeats)
    return {"device": hardware(where), "threads": torch.get_num_threads(), "ceilings": ceiling, "results": results}


def _peak_of(device: Any) -> Callable[[Callable[[], Any]], int]:
    from contextlab.accounting.memory import PeakMemory

    def peak_of(run: Callable[[], Any]) -> int:
        resident = 0
        if device.type == "cuda":
            import torch

            resident = torch.cuda.memory_allocated(device)
        with PeakMemory(device) as peak:
            run()
        return peak.peak_bytes - resident

    return peak_of


def _words(record: dict[str, Any]) -> list[str]:
    if not record["right"]:
        return [f"wrong by {record['relative_error']:.2g}"]
    beside = [f"{record[key]:.2f}" if key in record else "" for key in ("times_faster", "times_smaller")]
    return [
        f"{1e3 * record['seconds']:.3g}",
        f"{1e3 * record['fastest']:.3g} to {1e3 * record['slowest']:.3g}",
        beside[0],
        f"{record['peak_bytes'] / 1e6:.3g}",
        beside[1],
        f"{record['share_of_copy']:.1%}",
        f"{record['share_of_matmul']:.1%}",
    ]


def _show(report: dict[str, Any]) -> None:
    from rich.table import Table

    names = ("operation", "size", "form", "ms", "spread", "x faster", "MB", "x smaller", "of copy", "of matmul")
    table = Table(*names)
    for record in report["results"]:
        size = " ".join(f"{key}{value}" for key, value in record["size"].items() if value)
        table.add_row(record["op"], size, record["form"], *_words(record))
    console().print(table)
    copy, product = report["ceilings"].values()
    print(f"{report['device']}: copy {copy / 1e9:.4g} GB/s, matmul {product / 1e9:.4g} GFLOP/s, x of the reference")
