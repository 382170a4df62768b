"""The cost of a context as weights: of reading beside a plain forward pass, of a question beside closed-book."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contextlab.accounting.flops import count
from contextlab.attention import Layout
from contextlab.backbone import Backbone, load
from contextlab.benchmarks.data.sample import documents
from contextlab.method import Lengths
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig

QUESTION = 30


def _forward(backbone: Backbone, chunks: list[Tensor]) -> None:
    """A plain forward pass over every chunk, without the vocabulary."""
    for tokens_1T in chunks:
        position_1T = torch.arange(tokens_1T.shape[1], device=backbone.device)[None]
        with torch.no_grad():
            backbone.forward(tokens_1T, position_1T, backbone.reader(1, Layout(position_1T)))


def _measured(ours: Callable[[], Any], plain: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """FLOPs and seconds of both, alternating, so that both have the same load of the machine."""
    flops = [count(call)[1] for call in (ours, plain)]
    seconds_of: list[list[float]] = [[], []]
    for _ in range(repeats):
        for call, times in zip((ours, plain), seconds_of, strict=True):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
    seconds = [statistics.median(times) for times in seconds_of]
    return {
        "flops": flops[0],
        "plain_flops": flops[1],
        "flops_ratio": round(flops[0] / flops[1], 4),
        "seconds": round(seconds[0], 3),
        "plain_seconds": round(seconds[1], 3),
        "seconds_ratio": round(seconds[0] / seconds[1], 3),
    }


def cost(backbone: Backbone, tokens: int, repeats: int, config: GenerativeAdapterConfig) -> dict[str, Any]:
    """Costs of a context of some length and of a question after it."""
    text = backbone.encode(documents(10 * tokens, 1, seed=0)[0].text)
    tokens_1T = torch.tensor([text[:tokens]], device=backbone.device)
    question = [text[tokens : tokens + QUESTION]]
    method, closed = GenerativeAdapter(backbone, config), ClosedBook(backbone)
    ahead = Lengths(tokens, QUESTION)
    chunk = int(method.start(ahead=ahead).left_B)

    def contextualize() -> Any:
        return method.read(method.start(ahead=ahead), tokens_1T, logprobs=False)[0]

    state = contextualize()
    return {
        "backbone": backbone.name,
        "device": str(backbone.device),
        "threads": torch.get_num_threads(),
        "method_config": {**config.as_dict(), "d_r": method.generator.d_r, "r": method.generator.rank},
        "tokens": tokens,
        "chunk": chunk,
        "contextualize": _measured(
            contextualize, lambda: _forward(backbone, list(tokens_1T.split(chunk, dim=1))), repeats
        ),
        "query_tokens": QUESTION,
        "query": _measured(
            lambda: method.score(state, question), lambda: closed.score(closed.start(), question), 20 * repeats
        ),
        "state_floats": state.floats,
        "pair_floats": sum(pair.up.numel() + pair.down.numel() for pair in state.pairs),
        "kv_floats_of_the_context": 2 * tokens * backbone.layers * backbone.kv_heads * backbone.head_width,
        "generator_parameters": method.added_parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--normalisation", default="svd")
    options = parser.parse_args()
    backbone = load(options.backbone, device="cpu", dtype="float32")
    config = GenerativeAdapterConfig.parse({"normalisation": options.normalisation})
    print(json.dumps(cost(backbone, options.tokens, options.repeats, config)))


if __name__ == "__main__":
    main()
