"""Reading token by token: `full` beside the model itself with its own cache (transformers' DynamicCache).

Both sides hold the same text in their caches. They take steps in turn, in one process, so that whatever else runs on
the machine meets both; each ratio is of two neighbouring groups of steps. Memory is counted, not sampled: storages that
operations make in a step, and the state with the free slots behind it, without the weights; `growing` is the step that
makes a larger buffer while the caller still holds the state in the old one.

The last line is JSON: per length the medians and quartiles of seconds per token, of their ratio, and peaks as multiples
of the state's bytes.

    python benches/decode.py [--lengths 1024 4096 8192] [--groups 12] [--steps 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

import contextlab
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.benchmarks.data.sample import documents
from contextlab.method import AnyMethod, State


class Ours:
    """The state machine after a text."""

    def __init__(self, method: AnyMethod, tokens_1T: Tensor) -> None:
        self.method = method
        self.state: State = method.read(method.start(), tokens_1T, logprobs=False)[0]

    def step(self, token_11: Tensor) -> Tensor:
        """The distribution after one more token."""
        self.state, _ = self.method.read(self.state, token_11, logprobs=False)
        return self.method.next_logprobs(self.state)

    @property
    def held(self) -> int:
        """Bytes of the state with whatever memory it keeps."""
        return storage_bytes(self.state.tensors().values())


class Theirs:
    """The model with its cache after a text."""

    def __init__(self, model: Any, tokens_1T: Tensor) -> None:
        self.model, self.cache = model, transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            for part_1t in tokens_1T.split(1024, dim=1):
                model(part_1t, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    def step(self, token_11: Tensor) -> Tensor:
        """The distribution after one more token."""
        with torch.no_grad():
            logits: Tensor = self.model(token_11, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1].float().log_softmax(-1)

    @property
    def held(self) -> int:
        """Bytes of the cache."""
        return storage_bytes(x for layer in self.cache.layers for x in (layer.keys, layer.values))


Side = Ours | Theirs


def seconds(step: Callable[[Tensor], Tensor], tokens: list[Tensor]) -> float:
    """Seconds per token."""
    started = time.perf_counter()
    for token_11 in tokens:
        step(token_11)
    return (time.perf_counter() - started) / len(tokens)


def timed(ours: Ours, theirs: Theirs, tokens: list[Tensor], group: int) -> dict[str, Any]:
    """Seconds of both sides on the same tokens, which of them first changing from group to group."""
    apart = float((ours.step(tokens[0]) - theirs.step(tokens[0])).abs().max())
    pairs = []
    for number, begin in enumerate(range(1, len(tokens) - group + 1, group)):
        part = tokens[begin : begin + group]
        sides: list[Side] = [ours, theirs] if number % 2 else [theirs, ours]
        took = {side: seconds(side.step, part) for side in sides}
        pairs.append((took[ours], took[theirs]))
    mine, other = zip(*pairs, strict=True)
    return {
        "contextlab_seconds": spread(mine),
        "transformers_seconds": spread(other),
        "ratio": spread([a / b for a, b in pairs]),
        "largest_difference": apart,
    }


def spread(values: Any) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"low": low, "median": middle, "high": high}


def peak(side: Side, token_11: Tensor) -> float:
    """Peak memory of one step as a multiple of the bytes that the cache's tokens need."""
    with PeakMemory(resident_bytes=side.held) as memory:
        side.step(token_11)
    return memory.peak_bytes / needed(side)


def needed(side: Side) -> int:
    """Bytes of keys and values, without free slots."""
    return side.state.nbytes if isinstance(side, Ours) else side.held


def peaks(ours: Ours, theirs: Theirs, token_11: Tensor) -> dict[str, float]:
    """Of one step in free slots, of the step that makes room, and of the model's own step."""
    kv: Any = ours.state.kv  # type: ignore[attr-defined]
    usual = peak(ours, token_11)
    for _ in range(kv.buffers.slots - kv.slots - 1):
        ours.step(token_11)
    return {"usual": usual, "growing": peak(ours, token_11), "transformers": peak(theirs, token_11)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8000])
    parser.add_argument("--groups", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--backbone", default="smollm2-135m")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    method = contextlab.load("full", backbone=options.backbone, device="cpu")
    backbone = method.backbone
    new = options.groups * options.steps + 1
    (document,) = documents(max(options.lengths) + new, 1, seed=0)
    text = torch.tensor([backbone.encode(document.text)])
    found = {}
    for length in options.lengths:
        tokens = list(text[:, length : length + new].split(1, dim=1))
        ours, theirs = Ours(method, text[:, :length]), Theirs(backbone.model, text[:, :length])
        found[length] = {**timed(ours, theirs, tokens, options.steps), "peak_per_state": peaks(ours, theirs, tokens[0])}
        print(length, json.dumps(found[length]))
    print(json.dumps({"bench": "decode", **vars(options), "torch": torch.__version__, "lengths": found}))


if __name__ == "__main__":
    main()
