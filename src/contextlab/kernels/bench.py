"""Measuring the kernels: time and memory beside the plain-torch twin, beside torch's own, and beside the machine.

A speed is reported only for an output that equals the reference in float64. The bytes of every argument, retrieved
token and result count once. FLOPs are those that the accounting counts.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved, W tokens of a window.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from contextlab.kernels import dispatch

Run = Callable[[], Any]
PeakOf = Callable[[Run], int]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of one measurement; the letters are the module's."""

    H: int
    K: int
    T: int
    D: int
    n: int = 0
    c: int = 4
    m: int = 16
    W: int = 0
    dtype: torch.dtype = torch.float32
    bank_dtype: torch.dtype = torch.float32


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """One operation at one size.

    Attributes:
        op: its name, with the direction.
        size: sizes of its inputs.
        runs: functions to time, by name; the name of a form runs that form.
        error: relative error of a result; None where the result is not compared.
        bytes: least memory traffic possible.
        flops: multiply-add = 2.
        beside: other operations for comparison, with their FLOPs; their results are not checked.
    """

    op: str
    size: Size
    runs: Mapping[str, Run]
    error: Callable[[Any], float]
    bytes: int
    flops: int
    beside: Mapping[str, tuple[Run, int]] = dataclasses.field(default_factory=dict)


def ceilings(device: torch.device, side: int) -> dict[str, float]:
    """Measured bytes per second of a copy and FLOPs per second of a square matrix product of `side`."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a = torch.randn(side, side, device=device).to(kind)
    source = torch.randn(16 * side * side, device=device)
    target = torch.empty_like(source)
    copy = statistics.median(seconds(lambda: target.copy_(source), device, 5))
    product = statistics.median(seconds(lambda: a @ a, device, 5))
    return {"copy_bytes_per_second": 2 * source.nbytes / copy, "matmul_flops_per_second": 2 * side**3 / product}


def seconds(run: Run, device: torch.device, repeats: int) -> list[float]:
    """Seconds of every repeat, after two that warm up; on a GPU those of the GPU alone."""
    run(), run()
    return [_seconds_on_gpu(run) if device.type == "cuda" else _seconds(run) for _ in range(repeats)]


def measure(
    case: KernelCase, device: torch.device, ceiling: Mapping[str, float], peak_of: PeakOf, repeats: int
) -> list[dict[str, Any]]:
    """One record per run of a case; a wrong output gets its error and no speed."""
    records = []
    others = {name: run for name, (run, _) in case.beside.items()}
    for name, run in {**case.runs, **others}.items():
        with torch.no_grad(), dispatch.forced(name if name in dispatch.FORMS else "torch"):
            records.append(_record(case, name, None if name in others else case.error(run())))
            if records[-1]["right"]:
                times = seconds(run, device, repeats)
                middle = statistics.median(times)
                records[-1] |= {
                    "seconds": middle,
                    "fastest": min(times),
                    "slowest": max(times),
                    "peak_bytes": peak_of(run),
                    "share_of_copy": case.bytes / middle / ceiling["copy_bytes_per_second"],
                    "share_of_matmul": records[-1]["flops"] / middle / ceiling["matmul_flops_per_second"],
                }
    base = records[0]
    for record in records:
        if record["right"] and base["right"]:
            record["times_faster"] = base["seconds"] / record["seconds"]
            record["times_smaller"] = base["peak_bytes"] / max(record["peak_bytes"], 1)
    return records


def _record(case: KernelCase, name: str, error: float | None) -> dict[str, Any]:
    return {
        "op": case.op,
        "form": name,
        "size": {k: v for k, v in dataclasses.asdict(case.size).items() if isinstance(v, int)},
        "dtype": str(case.size.dtype).removeprefix("torch."),
        "bytes": case.bytes,
        "flops": case.beside[name][1] if name in case.beside else case.flops,
        "relative_error": error,
        "right": error is None or error <= TOLERANCE[case.size.dtype],
    }


def _seconds(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _seconds_on_gpu(run: Run) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # While the GPU sleeps, the CPU queues the calls: the time does not include launches.
    torch.cuda._sleep(2_000_000)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
