"""The cost of HSO beside the plain model in the same windows, and, with --loss, its gain on books."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contextlab.backbone import Backbone, load
from contextlab.benchmarks.data.sample import documents
from contextlab.benchmarks.tasks.pg22 import PG22
from contextlab.methods.dynamic_eval import DynamicEval, DynamicEvalConfig
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.window import Window

TOKENS = 1024
WINDOW = 25
DOCUMENTS = 4
BOOKS = 6
FROM_CHARACTER = 20_000


def _seconds(calls: list[Callable[[], object]], repeats: int) -> list[float]:
    """Median seconds of each, alternating, so that all have the same load of the machine."""
    times_of: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, times in zip(calls, times_of, strict=True):
            started = time.perf_counter()
            call()
            times.append(time.perf_counter() - started)
    return [statistics.median(times) for times in times_of]


def _windowed(method: Any, tokens_BT: Tensor) -> None:
    state = method.start(len(tokens_BT))
    for piece_BT in tokens_BT.split(WINDOW, dim=1):
        state, _ = method.read(state, piece_BT)


def cost(backbone: Backbone, repeats: int) -> dict[str, Any]:
    text = documents(4 * TOKENS, DOCUMENTS, seed=0)
    tokens_BT = torch.tensor([backbone.encode(document.text)[:TOKENS] for document in text])
    plain, hso = Window(backbone), HSO(backbone, HSOConfig(k=WINDOW))
    dynamic = DynamicEval(backbone, DynamicEvalConfig(segment=WINDOW))  # updates as often as HSO does
    _windowed(plain, tokens_BT[:1, :WINDOW])
    calls: list[Callable[[], object]] = [
        lambda: _windowed(plain, tokens_BT[:1]),
        lambda: hso.read(hso.start(), tokens_BT[:1]),
        lambda: hso.read(hso.start(DOCUMENTS), tokens_BT),
        lambda: dynamic.read(dynamic.start(), tokens_BT[:1]),
    ]
    seconds = _seconds(calls, repeats)
    state, _ = hso.read(hso.start(), tokens_BT[:1, :-1])
    in_view = int(state.used_B + state.open_B)
    formula = 6 * backbone.layers * backbone.kv_heads * backbone.head_width * 4 * in_view
    return {
        "threads": torch.get_num_threads(),
        "plain_windowed_seconds": seconds[0],
        "hso_seconds": seconds[1],
        "ratio": seconds[1] / seconds[0],
        "hso_seconds_per_token": seconds[1] / TOKENS,
        "hso_batched_seconds_per_token": seconds[2] / (DOCUMENTS * TOKENS),
        "dynamic_evaluation_seconds": seconds[3],
        "state_bytes": state.nbytes,
        "state_bytes_by_formula": formula,
    }


def _stretches(backbone: Backbone, data: Path, split: str) -> Iterator[Tensor]:
    """`tokens_BT` of one part of each of the first books that are long enough."""
    for book in PG22().load(split, data).examples[:BOOKS]:
        tokens = backbone.encode(book.text[FROM_CHARACTER:][: 16 * TOKENS])[:TOKENS]
        if len(tokens) == TOKENS:
            yield torch.tensor([tokens])


def loss(backbone: Backbone, data: Path, split: str) -> dict[str, Any]:
    """Mean difference between the loss and the plain model's on parts of different books, in nats per token."""
    methods = {"default": HSO(backbone), "present_only": HSO(backbone, HSOConfig(update="present"))}
    plain = Window(backbone)
    deltas: dict[str, list[float]] = {name: [] for name in methods}
    for tokens_BT in _stretches(backbone, data, split):
        expected_BT = plain.read(plain.start(), tokens_BT)[1]
        for name, method in methods.items():
            logprobs_BT = method.read(method.start(), tokens_BT)[1]
            assert expected_BT is not None
            assert logprobs_BT is not None
            deltas[name].append(float((expected_BT - logprobs_BT).mean()))
    return {
        name: {
            "delta": statistics.mean(values),
            "standard_error": statistics.stdev(values) / len(values) ** 0.5,
            "of_books": values,
        }
        for name, values in deltas.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loss", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="S2")
    options = parser.parse_args()
    backbone = load(options.backbone, device="cpu", dtype="float32")
    print(json.dumps(loss(backbone, options.data, options.split) if options.loss else cost(backbone, options.repeats)))


if __name__ == "__main__":
    main()
