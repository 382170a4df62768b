"""Time of every method and of transformers' own model, for reading, scoring and many prompts, and the ratio of FLOPs.

Both sides have the same tokens and alternate in one process, so that a ratio is of two neighbouring measurements.
`plain` is the model with transformers' own code: `reading` is cold windows of 1,024 tokens with the log-probabilities
of all tokens; `scoring` is candidates one by one after a copy of the context's cache; `prompts` is greedy continuations
in the same way. One counter counts the FLOPs of both sides. A method is as fast as its FLOPs allow where `time` and
`flops` agree.

The last line is JSON: per method and kind of work the medians and quartiles of seconds and of the ratio.

    python benches/reading.py [--method full,window] [--work reading,scoring] [--repeats 5] [--tokens 2048]
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from timing import spread
from torch import Tensor

import contextlab
from contextlab import grammar
from contextlab.accounting.flops import FlopCounter
from contextlab.backbone import Backbone
from contextlab.benchmarks.data.sample import documents
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod

METHODS = "full,window,sliding,sinks,longmem,evalm,generative-adapter,dynamic-eval,hso,retrieval"
WINDOW = 1024
Work = Callable[[], object]


class Plain:
    """The model with transformers' own code."""

    def __init__(self, backbone: Backbone, context_1T: Tensor) -> None:
        self.backbone, self.model = backbone, backbone.model
        self.cache = transformers.DynamicCache(config=self.model.config)
        with torch.no_grad():
            states_1TC = self.model.base_model(context_1T, past_key_values=self.cache).last_hidden_state
        self.pending_11C = states_1TC[:, -1:]

    def read(self, tokens_1T: Tensor) -> list[Tensor]:
        """Log-probabilities of all tokens except the first of each window."""
        with torch.no_grad():
            return [self._read(window_1T) for window_1T in tokens_1T.split(WINDOW, dim=1)]

    def score(self, candidates: list[list[int]]) -> list[float]:
        """The log-probability of every candidate after the context."""
        with torch.no_grad():
            return [self._score(torch.tensor([candidate])) for candidate in candidates]

    def continued(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Greedy continuations of prompts after the context."""
        with torch.no_grad():
            return [self._continued(torch.tensor([prompt]), new) for prompt in prompts]

    def _read(self, window_1T: Tensor) -> Tensor:
        states_1TC = self.model.base_model(window_1T, use_cache=False).last_hidden_state
        return self.backbone.logprobs(states_1TC[:, :-1], window_1T[:, 1:])

    def _score(self, tokens_1M: Tensor) -> float:
        states_1MC = self.model.base_model(tokens_1M, past_key_values=copy.deepcopy(self.cache)).last_hidden_state
        previous_1MC = torch.cat((self.pending_11C, states_1MC[:, :-1]), dim=1)
        return float(self.backbone.logprobs(previous_1MC, tokens_1M).sum())

    def _continued(self, tokens_1M: Tensor, new: int) -> list[int]:
        cache, written = copy.deepcopy(self.cache), []
        for _ in range(new):
            logits_1V = self.model(tokens_1M, past_key_values=cache, logits_to_keep=1).logits[:, -1]
            tokens_1M = logits_1V.argmax(-1, keepdim=True)
            written.append(int(tokens_1M))
        return written


def flops(work: Work) -> int:
    """FLOPs of one run."""
    with FlopCounter() as counter:
        work()
    return counter.flops


def seconds(work: Work) -> float:
    """Wall time of one run."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compared(ours: Work, plain: Work, repeats: int) -> dict[str, Any]:
    """Seconds of both, alternating, after one run of each that counts FLOPs and warms up."""
    arithmetic = flops(ours) / flops(plain)
    pairs = []
    for repeat in range(repeats):
        first, second = (ours, plain) if repeat % 2 else (plain, ours)
        took = {first: seconds(first), second: seconds(second)}
        pairs.append((took[ours], took[plain]))
    ratio = spread([mine / other for mine, other in pairs])
    return {
        "seconds": statistics.median(mine for mine, _ in pairs),
        "plain_seconds": statistics.median(other for _, other in pairs),
        "time": ratio["median"],
        "time_low": ratio["low"],
        "time_high": ratio["high"],
        "flops": arithmetic,
        "time_per_flops": ratio["median"] / arithmetic,
    }


def pairs_of_work(
    method: AnyMethod, plain: Plain, text_1T: Tensor, options: argparse.Namespace
) -> dict[str, tuple[Work, Work]]:
    """The work of the method and of the model, by kind."""
    context_1T, rest = text_1T[:, : options.context], text_1T[0, options.context :].tolist()
    tokens_1T = text_1T[:, : options.tokens]
    candidates = [rest[n * options.length :][: options.length] for n in range(options.candidates)]
    prompts = [rest[n * 16 :][:16] for n in range(options.prompts)]
    state, _ = method.read(method.start(), context_1T, logprobs=False)
    return {
        "reading": (lambda: method.read(method.start(), tokens_1T), lambda: plain.read(tokens_1T)),
        "scoring": (lambda: method.score(state, candidates), lambda: plain.score(candidates)),
        "prompts": (
            lambda: method.generate(state, prompts, max_new_tokens=options.new),
            lambda: plain.continued(prompts, options.new),
        ),
    }


def spelled(item: grammar.NamedItem) -> str:
    """A method with its settings."""
    return grammar.spelled(item.name, None, item.settings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--work", default="reading,scoring,prompts")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new", type=int, default=8)
    options = parser.parse_args()
    backbone = contextlab.load("full", backbone=options.backbone, device="cpu").backbone
    length = options.context + max(options.candidates * options.length, options.prompts * 16, options.tokens)
    (document,) = documents(length, 1, seed=0)
    text_1T = torch.tensor([backbone.encode(document.text)])
    plain = Plain(backbone, text_1T[:, : options.context])
    runs = []
    for name in map(spelled, grammar.items(options.method, "method")):
        method = contextlab.load(name, backbone=options.backbone, device="cpu")
        pairs = pairs_of_work(method, plain, text_1T, options)
        for kind in options.work.split(","):
            ours, theirs = pairs[kind]
            runs.append({"method": name, "work": kind, **compared(ours, theirs, options.repeats)})
            print(json.dumps(runs[-1]), flush=True)
    about = {"device": hardware(backbone.device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(json.dumps({"bench": "reading", **vars(options), **about, "runs": runs}))


if __name__ == "__main__":
    main()
