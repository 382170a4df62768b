"""Decoding token by token: `full` beside the model with transformers' cache.

Both sides have the same keys and values in their caches. Their steps alternate in one process, so that other programs
affect both; each ratio is of two neighbouring groups of steps, in wall time and in CPU time. Memory is counted, not
sampled: storages that operations allocate in a step, and the state with its free slots, without the weights. `growing`
is the step that moves the state into larger memory, `usual` is a step with free slots.

The last line is JSON: per length the medians and quartiles of seconds per token, of their ratio, and peaks as multiples
of the state's bytes.

    python benches/decode.py [--lengths 1024 4096 8000] [--groups 12] [--steps 4]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from timing import spread
from torch import Tensor

import contextlab
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.attention import KV
from contextlab.benchmarks.data.sample import documents
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod
from contextlab.methods.parts.local_cache import LocalState


class Ours:
    """The method `full` after a text."""

    def __init__(self, method: AnyMethod, tokens_1T: Tensor) -> None:
        self.method = method
        self.state: LocalState = method.read(method.start(), tokens_1T, logprobs=False)[0]

    def step(self, token_11: Tensor) -> Tensor:
        """The distribution after one more token."""
        self.state, _ = self.method.read(self.state, token_11, logprobs=False)
        return self.method.next_logprobs(self.state)

    @property
    def needed(self) -> int:
        """Bytes of the state."""
        return self.state.nbytes


class Theirs:
    """The model with its own cache of the same text."""

    def __init__(self, model: Any, kv: KV) -> None:
        self.model, self.cache = model, transformers.DynamicCache(config=model.config)
        for layer, (k_BKSD, v_BKSD) in enumerate(zip(kv.k, kv.v, strict=True)):
            self.cache.update(k_BKSD.clone(), v_BKSD.clone(), layer)

    def step(self, token_11: Tensor) -> Tensor:
        """The distribution after one more token."""
        with torch.no_grad():
            logits: Tensor = self.model(token_11, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1].float().log_softmax(-1)

    @property
    def needed(self) -> int:
        """Bytes of the cache."""
        layers: Any = self.cache.layers
        return storage_bytes(x for layer in layers for x in (layer.keys, layer.values))


def seconds(step: Callable[[Tensor], Tensor], tokens: list[Tensor]) -> tuple[float, float]:
    """Wall time and CPU time of all threads, in seconds per token."""
    started, used = time.perf_counter(), time.process_time()
    for token_11 in tokens:
        step(token_11)
    return (time.perf_counter() - started) / len(tokens), (time.process_time() - used) / len(tokens)


def timed(ours: Ours, theirs: Theirs, tokens: list[Tensor], group: int) -> dict[str, Any]:
    """Seconds of both sides on the same tokens; the first side changes from group to group."""
    apart = float((ours.step(tokens[0]) - theirs.step(tokens[0])).abs().max())
    pairs = []
    for number, begin in enumerate(range(1, len(tokens) - group + 1, group)):
        part = tokens[begin : begin + group]
        sides: list[Ours | Theirs] = [ours, theirs] if number % 2 else [theirs, ours]
        took = {side: seconds(side.step, part) for side in sides}
        pairs.append((took[ours], took[theirs]))
    return {
        "contextlab_seconds": spread([mine[0] for mine, _ in pairs]),
        "transformers_seconds": spread([other[0] for _, other in pairs]),
        "ratio": spread([mine[0] / other[0] for mine, other in pairs]),
        "ratio_of_processor_seconds": spread([mine[1] / other[1] for mine, other in pairs]),
        "largest_difference": apart,
    }


def peaks(ours: Ours, theirs: Theirs, token_11: Tensor) -> dict[str, float]:
    """Peak per byte of keys and values: of a step with free slots, of one without, and of the model's own step."""
    with PeakMemory() as memory:
        # A copy without free slots, which is allocated under the watch.
        ours.state = ours.state.map(Tensor.clone)
        growing = _peak(ours, token_11, memory)
        usual = _peak(ours, token_11, memory)
    with PeakMemory() as memory:
        theirs.step(token_11)
        transformers_ = _peak(theirs, token_11, memory)
    return {"usual": usual, "growing": growing, "transformers": transformers_}


def _peak(side: Ours | Theirs, token_11: Tensor, memory: PeakMemory) -> float:
    memory.peak_bytes = 0
    side.step(token_11)
    return memory.peak_bytes / side.needed


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
    runs = []
    for length in options.lengths:
        tokens = list(text[:, length : length + new].split(1, dim=1))
        ours = Ours(method, text[:, :length])
        theirs = Theirs(backbone.model, ours.state.kv)
        both = timed(ours, theirs, tokens, options.steps)
        runs.append({"length": length, **both, "peak_per_state": peaks(ours, theirs, tokens[0])})
        print(json.dumps(runs[-1]), flush=True)
    about = {"device": hardware(backbone.device), "torch": torch.__version__}
    print(json.dumps({"bench": "decode", **vars(options), **about, "runs": runs}))


if __name__ == "__main__":
    main()
