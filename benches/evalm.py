"""The cost of encoding long texts with EVALM, in seconds and bytes; the paper's shapes are calculated."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch

from contextlab.accounting.flops import causal_pairs
from contextlab.accounting.memory import PeakMemory, resident_bytes
from contextlab.backbone import PAPER_SHAPES, PAPER_VOCABULARY, load
from contextlab.methods.evalm import EVALM, PAPER, EVALMConfig

PAPER_LENGTH = 8192
LENGTHS = [4096, 16384, 65536]


def encode(backbone_name: str, length: int, chunk: int, *, counted: bool, dtype: str = "float32") -> dict[str, Any]:
    """Encode a text; measures seconds, or the peak of live bytes."""
    backbone = load(backbone_name, device="cpu", dtype=dtype)
    method = EVALM(backbone, EVALMConfig(c=chunk, remote_bias=-2.0))
    weights = resident_bytes(backbone.model, method.summaries)
    tokens_BT = torch.randint(backbone.vocab_size, (1, length), generator=torch.Generator().manual_seed(0))
    start = method.start()
    method.read(start, tokens_BT[:, : method.local.segment + 16], logprobs=False)
    before = _resident()
    formula = weights + state_bytes(method, length)
    if counted:
        with PeakMemory("cpu", weights) as memory:
            method.read(start, tokens_BT, logprobs=False)
        return {"peak_bytes": memory.peak_bytes, "formula_bytes": formula, "ratio": memory.peak_bytes / formula}
    started = time.perf_counter()
    state, _ = method.read(start, tokens_BT, logprobs=False)
    seconds = time.perf_counter() - started
    return {
        "tokens": length,
        "chunk": chunk,
        "seconds_per_1k_tokens": 1000 * seconds / length,
        "state_bytes": state.nbytes,
        "max_resident_bytes": _resident(),
        "resident_bytes_before": before,
        "threads": torch.get_num_threads(),
        "dtype": dtype,
    }


def state_bytes(method: EVALM, length: int) -> int:
    """Bytes of summaries, query sum and the largest local context for a text of that length, without counters."""
    backbone, geometry = method.backbone, method.geometry
    numbers = 2 * backbone.kv_heads * backbone.head_width
    local = min(length, geometry.sinks + geometry.recent + geometry.window)
    per_layer = numbers * (local + length // geometry.chunk) + numbers // 2
    return int(backbone.dtype.itemsize * backbone.layers * per_layer)


def by_arithmetic(length: int) -> dict[str, Any]:
    """FLOPs per token and numbers in the state of the paper's model at that length, and of full attention."""
    results = {}
    assert PAPER.W is not None
    for name, (width, heads, layers) in PAPER_SHAPES.items():
        window, chunk = PAPER.W, PAPER.c
        local = length // window * causal_pairs(window, window)
        remote = sum(t // chunk for t in range(length))
        blocks, head = 2 * 12 * width * width * layers, 2 * width * PAPER_VOCABULARY
        compress = layers * (4 * width + 4 * width * width // heads // chunk)
        results[name] = {
            "tokens": length,
            "flops_per_token": blocks + compress + 4 * width * layers * (local + remote) / length,
            "full_attention_flops_per_token": blocks + 4 * width * layers * (length + 1) / 2,
            "head_flops_per_token": head,
            "state_numbers": layers * 2 * width * (window + length // chunk),
            "full_attention_state_numbers": layers * 2 * width * length,
        }
    return results


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _alone(arguments: list[str]) -> dict[str, Any]:
    """The output of a separate process, since the highest resident memory is measured per process."""
    command = [sys.executable, __file__, *arguments]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--chunk", type=int, default=EVALMConfig().c)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--one", choices=["seconds", "bytes"], help="one length in this process")
    options = parser.parse_args()
    if options.one:
        counted, dtype = options.one == "bytes", options.dtype
        print(json.dumps(encode(options.backbone, options.lengths[0], options.chunk, counted=counted, dtype=dtype)))
        return
    runs = []
    for length in options.lengths:
        shared = ["--backbone", options.backbone, "--chunk", str(options.chunk), "--dtype", options.dtype]
        arguments = [*shared, "--lengths", str(length), "--one"]
        runs.append({**_alone([*arguments, "seconds"]), **_alone([*arguments, "bytes"])})
    growth = runs[-1]["seconds_per_1k_tokens"] / runs[0]["seconds_per_1k_tokens"] if runs else None
    print(json.dumps({"runs": runs, "growth_per_token": growth, "paper_shapes": by_arithmetic(PAPER_LENGTH)}))


if __name__ == "__main__":
    main()
