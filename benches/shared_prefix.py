"""Scoring candidates after one long context: from a shared state, or with one forward pass per candidate.

Prints one JSON line with the seconds of both, their ratio in the same process, and the largest difference of scores.
The other side is lm-eval's own Hugging Face model (`pip install 'contextlab[lm-eval]'`) on the same requests.

    python benches/shared_prefix.py [--context 4096] [--candidates 6] [--length 128] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import contextlab
from contextlab.benchmarks.data.sample import documents
from contextlab.harness.identity import hardware


def requests(encode: Callable[[str], list[int]], context: int, count: int, length: int) -> tuple[list[int], Any]:
    """A context and different candidates of real sentences."""
    (document,) = documents(context + count * length, 1, seed=0)
    tokens = encode(document.text)
    starts = random.Random(0).sample(range(context, len(tokens) - length), count)
    return tokens[:context], [tokens[start : start + length] for start in starts]


def measured(run: Callable[[], list[float]], repeats: int) -> tuple[list[float], list[float]]:
    """The scores, and the seconds of every repeat after one warm-up."""
    scores, seconds = run(), []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return scores, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--candidates", type=int, default=6)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backbone", default="smollm2-135m")
    options = parser.parse_args()

    from lm_eval.models.huggingface import HFLM

    method = contextlab.load("full", backbone=options.backbone, device="cpu")
    backbone = method.backbone
    context, candidates = requests(backbone.encode, options.context, options.candidates, options.length)

    def shared() -> list[float]:
        state, _ = method.read(method.start(), torch.tensor([context]), logprobs=False)
        return [float(row.sum()) for row in method.score(state, candidates)[0]]

    other = HFLM(pretrained=backbone.model, tokenizer=backbone.tokenizer, device="cpu", batch_size=1)
    triples = [(("", ""), context, candidate) for candidate in candidates]

    def separate() -> list[float]:
        return [score for score, _ in other._loglikelihood_tokens(triples, disable_tqdm=True)]

    ours, our_seconds = measured(shared, options.repeats)
    theirs, their_seconds = measured(separate, options.repeats)
    bound = options.candidates * (options.context + options.length)
    bound /= options.context + options.candidates * options.length
    result = {
        "bench": "shared_prefix",
        **vars(options),
        "device": hardware(backbone.device),
        "threads": torch.get_num_threads(),
        "contextlab_seconds": our_seconds,
        "lm_eval_seconds": their_seconds,
        "ratio": statistics.median(their_seconds) / statistics.median(our_seconds),
        "token_bound": bound,
        "largest_difference": max(abs(a - b) for a, b in zip(ours, theirs, strict=True)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
