"""Time, FLOPs and memory of reading one segment behind a bank of many tokens (LongMem, Table 7), and of filling it.

The bank is filled with random keys and values, segment by segment: a search takes the same time whatever they are.
Every measurement has a process of its own. `retrieval` is the time that the bank adds to a segment, as a share of the
time of the backbone alone on the same tokens; `dense_flops` is full attention behind as many tokens. Resident bytes are
those of the process: `anonymous` ones, and those `of_files` that are mapped, which the system takes back where it needs
them.

    python benches/bank.py [--methods longmem,retrieval] [--tokens 4096,8192,16384,65536] [--repeats 5]

A method may have settings, as 'longmem(M=1048576,stored_in=disk)'.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from timing import spread
from torch import Tensor

import contextlab
from contextlab import grammar
from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.memory import PeakMemory, resident_bytes
from contextlab.attention import KV
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod
from contextlab.methods.window import Window, WindowConfig

SEGMENT = 1024


def measure(name: str, backbone: str, memory: int, repeats: int) -> dict[str, Any]:
    """One method behind one length of memory."""
    method = contextlab.load(name, backbone=backbone, device="cpu")
    plain = Window(method.backbone, WindowConfig(N=SEGMENT))
    tokens_BT = torch.randint(method.backbone.vocab_size, (1, SEGMENT), generator=torch.Generator().manual_seed(0))
    state = method.start()
    for _ in range(3):
        state, _ = method.read(state, tokens_BT, logprobs=False)
    before, started = resident(), time.perf_counter()
    filled = dataclasses.replace(state, bank=with_random(state.bank, memory, method.config.M))
    filling = time.perf_counter() - started
    after = resident()
    alone = dataclasses.replace(state, bank=method.start().bank)
    runs: dict[str, Callable[[], object]] = {
        "seconds": lambda: method.read(filled, tokens_BT),
        "without_bank": lambda: method.read(alone, tokens_BT),
        "backbone": lambda: plain.read(plain.start(), tokens_BT),
    }
    seconds = {name: list[float]() for name in runs}
    for _ in range(repeats):
        for key, run in runs.items():
            seconds[key].append(timed(run))
    added = [(whole - local) / plain_ for whole, local, plain_ in zip(*seconds.values(), strict=True)]
    modules = [module for module in (method.backbone.model, method.learned) if module is not None]
    with FlopCounter() as counter, PeakMemory("cpu", resident_bytes(*modules)) as peak:
        method.read(filled, tokens_BT)
    return {
        "method": name,
        "memory": int(filled.bank.kv.used_B.max()),
        **{key: spread(values) for key, values in seconds.items()},
        "tokens_per_second": SEGMENT / spread(seconds["seconds"])["median"],
        "retrieval": spread(added),
        "flops": counter.flops,
        "dense_flops": dense_flops(plain, tokens_BT, memory),
        "peak_bytes": peak.peak_bytes,
        "state_bytes": filled.nbytes,
        "filling_seconds_per_segment": filling / max(memory / SEGMENT, 1),
        "resident_bytes_before": before,
        "resident_bytes_after": after,
        "resident_bytes_at_the_end": resident(),
    }


@torch.no_grad()
def with_random(bank: Any, tokens: int, most: int) -> Any:
    """The bank with random tokens behind its own until it has so many."""
    generator = torch.Generator().manual_seed(0)
    layers, (_, heads, _, width) = len(bank.kv.k), bank.kv.k[0].shape
    while (missing := tokens - int(bank.kv.used_B.max())) >= bank.csz:
        length = min(SEGMENT, missing)
        x = torch.randn(2, 1, heads, length, width, generator=generator)
        scores = tuple(x[0][..., :1] for _ in bank.open_scores)
        bank = bank.add(KV((x[0],) * layers, (x[1],) * layers, torch.tensor([length])), most, scores=scores)
    return bank


def dense_flops(plain: AnyMethod, tokens_BT: Tensor, memory: int) -> int:
    """FLOPs of full attention for a segment behind so many tokens: those of a segment alone, and more pairs."""
    backbone = plain.backbone
    with FlopCounter() as counter:
        plain.read(plain.start(), tokens_BT)
    pairs = tokens_BT.shape[1] * memory
    return int(counter.flops + 4 * pairs * backbone.layers * backbone.heads * backbone.head_width)


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def resident() -> dict[str, int]:
    """Bytes of this process that are in memory now; nothing where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    fields = dict(line.split(":", 1) for line in lines)
    names = {"anonymous": "RssAnon", "of_files": "RssFile"}
    return {key: int(fields[name].split()[0]) * 1024 for key, name in names.items() if name in fields}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="longmem,retrieval")
    parser.add_argument("--tokens", default="4096,8192,16384,65536")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", action="store_true", help="measure one method at one length in this process")
    options = parser.parse_args()
    names = [grammar.spelled(item.name, None, item.settings) for item in grammar.items(options.methods, "method")]
    lengths = [int(text) for text in options.tokens.split(",")]
    if options.one:
        print(json.dumps(measure(names[0], options.backbone, lengths[0], options.repeats)))
        return
    runs = [apart(options, name, length) for name in names for length in lengths]
    about = {"device": hardware(torch.device("cpu")), "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(json.dumps({"bench": "bank", "segment": SEGMENT, "repeats": options.repeats, **about, "runs": runs}))


def apart(options: argparse.Namespace, name: str, length: int) -> dict[str, Any]:
    settings = {"methods": name, "tokens": length, "backbone": options.backbone, "repeats": options.repeats}
    arguments = [f"--{key}={value}" for key, value in settings.items()]
    process = [sys.executable, __file__, "--one", *arguments]
    output = subprocess.run(process, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
