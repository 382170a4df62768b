"""Decoding with compiled steps beside the same method without: seconds per token, graphs, and seconds to compile them.

Both sides read the same text and then the same tokens, in groups that alternate in one process. On a CPU attention and
the products of matrices take most of the time, which compiling does not change; a GPU waits for launches instead.

The last line is JSON: per method the medians and quartiles of seconds per token and of their ratio.

    python benches/compiled.py [--methods full,sliding] [--context 2048] [--groups 8] [--steps 4]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import torch
from timing import spread
from torch import Tensor
from torch._dynamo.utils import counters

import contextlab
from contextlab import grammar
from contextlab.benchmarks.data.sample import documents
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod, State

METHODS = "full,sliding,longmem,evalm,retrieval"


class Side:
    """A method after a text."""

    def __init__(self, method: AnyMethod, text_1T: Tensor) -> None:
        self.method = method
        self.state: State = method.read(method.start(), text_1T, logprobs=False)[0]

    def seconds(self, tokens: Sequence[Tensor]) -> float:
        """Seconds per token of reading these and of the distribution after each."""
        started = time.perf_counter()
        for token_11 in tokens:
            self.step(token_11)
        return (time.perf_counter() - started) / len(tokens)

    def step(self, token_11: Tensor) -> Tensor:
        """The distribution after one more token."""
        self.state, _ = self.method.read(self.state, token_11, logprobs=False)
        return self.method.next_logprobs(self.state)


def record(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One method."""
    counters.clear()
    torch.compiler.reset()
    plain = contextlab.load(name, options.backbone, device="cpu")
    compiled = contextlab.load(name, options.backbone, device="cpu", compile=True)
    warm, group = 2 * options.steps, options.steps
    new = warm + group * options.groups
    (document,) = documents(options.context + new, 1, seed=0)
    text_1T = torch.tensor([plain.backbone.encode(document.text)])
    sides = [Side(method, text_1T[:, : options.context]) for method in (plain, compiled)]
    tokens = list(text_1T[:, options.context : options.context + new].split(1, dim=1))
    began = time.perf_counter()
    apart = [float((sides[0].step(token) - sides[1].step(token)).abs().max()) for token in tokens[:warm]]
    compiling = time.perf_counter() - began
    pairs = []
    for number, begin in enumerate(range(warm, new, group)):
        part = tokens[begin : begin + group]
        took = {side: side.seconds(part) for side in (sides if number % 2 else sides[::-1])}
        pairs.append([took[side] for side in sides])
    return {
        "method": name,
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "seconds_until_compiled": compiling,
        "plain_seconds": spread([before for before, _ in pairs]),
        "compiled_seconds": spread([after for _, after in pairs]),
        "ratio": spread([after / before for before, after in pairs]),
        "largest_difference": max(apart),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backbone", default="smollm2-135m")
    options = parser.parse_args()
    names = [grammar.spelled(item.name, None, item.settings) for item in grammar.items(options.methods, "method")]
    with torch.inference_mode():
        results = [record(name, options) for name in names]
    about = {"bench": "compiled", **vars(options), "device": hardware(torch.device("cpu")), "torch": torch.__version__}
    print(json.dumps({**about, "results": results}))


if __name__ == "__main__":
    main()
