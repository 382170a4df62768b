"""Examples in batches: their numbers beside those of the examples alone, and seconds beside lm-eval's HF model.

Every repeat runs the same examples alone, in batches, and with lm-eval's model in batches of the same size. Seconds are
processor time of this process, on one thread, since other programs may run beside it: those of contextlab are of the
method's calls, those of lm-eval of its requests. Questions about one text are asked of one state here, and with lm-eval
each after the whole text.

The last line is JSON: in `rows`, per task and method, the medians and quartiles of seconds per example, the medians of
their ratios, the largest difference of any number that is stored, and the texts and predictions that differ.

    python benches/batches.py [--batch 8] [--limit 8] [--repeats 3] [--data DIR] [--task pg22(tokens=512)]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from timing import spread

from contextlab import backbone as backbones
from contextlab import grammar, process
from contextlab.accounting import ledger
from contextlab.backbone import Backbone
from contextlab.benchmarks.examples import Block, Document
from contextlab.benchmarks.protocols.answers import last
from contextlab.harness.case import TaskCase, cases
from contextlab.harness.identity import hardware
from contextlab.harness.runner import bench
from contextlab.harness.selection import select
from contextlab.harness.stored import Result

TASKS = "icl/sst2(k=4,n=2),squad(tokens=128),needle/1k(tokens=128),pg22(tokens=256)"
METHODS = "full,sliding(N=64),retrieval(N=64,K=32),evalm(W=64,weights=none)"
WRITTEN = {"until": ["\n"], "max_gen_toks": 20, "do_sample": False}
CLOCK = types.SimpleNamespace(perf_counter=time.process_time)
"""The clock of a ledger, in processor time."""
Request = tuple[str, tuple[Any, ...]]
"""The kind of a request of lm-eval, and its arguments."""


def requests(case: TaskCase, backbone: Backbone) -> Iterator[Request]:
    """What lm-eval's model is asked for the examples of a task."""
    protocol: Any = case.protocol
    for example in case.selected:
        if isinstance(example, Document):
            text = backbone.decode(backbone.encode(example.text)[: case.options.tokens])
            yield "loglikelihood_rolling", (text,)
        elif isinstance(example, Block):
            with process.seeded(0):
                drawn = list(protocol.draw(example))
            for shown, items in drawn:
                for item in items:
                    before = protocol.context(shown) + protocol.question(item)
                    yield from (("loglikelihood", (before, choice)) for choice in protocol.choices(item))
        else:
            reading: Any = example
            cut = last(backbone.encode(reading.context.rstrip()), case.options.tokens)
            reading = dataclasses.replace(reading, context=backbone.decode(cut))
            for question in reading.questions:
                whole, choices = protocol.whole(reading, question), protocol.choices(question)
                yield from (("loglikelihood", (whole, choice)) for choice in choices)
                if not choices:
                    yield "generate_until", (whole, WRITTEN)


def seconds_of_lm_eval(model: Any, calls: Sequence[Request]) -> float:
    """Seconds of all requests of a task, which are of one kind."""
    from lm_eval.api.instance import Instance

    kind: Any
    (kind,) = {kind for kind, _ in calls}
    instances = [Instance(kind, {}, arguments, number) for number, (_, arguments) in enumerate(calls)]
    started = time.process_time()
    getattr(model, kind)(instances, disable_tqdm=True)
    return time.process_time() - started


def lines(result: Result) -> dict[str, dict[str, Any]]:
    """The stored examples by id."""
    assert result.folder is not None
    stored = map(json.loads, (result.folder / "examples.jsonl").read_text().splitlines())
    return {line["id"]: line for line in stored}


def seconds(result: Result) -> float:
    """Of all calls of all examples."""
    return sum(float(cost["seconds"]) for line in lines(result).values() for cost in line["cost"].values())


def differences(first: Any, second: Any) -> Iterator[float | tuple[Any, Any]]:
    """How far two records are apart: the difference of numbers, and pairs of what else differs."""
    if isinstance(first, dict):
        for name, value in first.items():
            yield from differences(value, second[name])
    elif isinstance(first, list) and len(first) == len(second):
        for value, other in zip(first, second, strict=True):
            yield from differences(value, other)
    elif isinstance(first, float):
        yield abs(first - second)
    elif first != second:
        yield first, second


def compared(alone: Result, batched: Result) -> dict[str, Any]:
    """The largest difference of numbers of one run, and how many other values differ."""
    first, second = lines(alone), lines(batched)
    pairs = [pair for name in first for pair in differences(first[name]["record"], second[name]["record"])]
    values = {"alone": alone, "batched": batched}
    return {
        "largest_difference": max((pair for pair in pairs if isinstance(pair, float)), default=0.0),
        "other_values_that_differ": sum(isinstance(pair, tuple) for pair in pairs),
        "metrics": {name: {m: metric.value for m, metric in run.metrics.items()} for name, run in values.items()},
    }


def measured(
    case: TaskCase, task: str, options: argparse.Namespace, backbone: Backbone, model: Any
) -> list[dict[str, Any]]:
    """One task: every method alone and in batches, and lm-eval's model, one after the other in every repeat."""
    calls = list(requests(case, backbone))
    timings: dict[str, list[tuple[float, float, float]]] = {}
    numbers: dict[str, Any] = {}
    for _ in range(options.repeats):
        theirs = seconds_of_lm_eval(model, calls)
        with tempfile.TemporaryDirectory() as folder, patch.object(ledger, "time", CLOCK):
            runs = [_runs(task, options, Path(folder), batch) for batch in (1, options.batch)]
            for alone, batched in zip(*runs, strict=True):
                timings.setdefault(alone.method, []).append((seconds(alone), seconds(batched), theirs))
                numbers[alone.method] = compared(alone, batched)
    count = len(case.selected)
    return [
        {
            "task": case.label,
            "method": name,
            "examples": count,
            "lm_eval_requests": len(calls),
            "seconds_alone": spread([alone / count for alone, _, _ in rows]),
            "seconds_batched": spread([batched / count for _, batched, _ in rows]),
            "seconds_lm_eval": spread([theirs / count for _, _, theirs in rows]),
            "alone_to_batched": statistics.median(alone / batched for alone, batched, _ in rows),
            "lm_eval_to_batched": statistics.median(theirs / batched for _, batched, theirs in rows),
            **numbers[name],
        }
        for name, rows in timings.items()
    ]


def _runs(task: str, options: argparse.Namespace, folder: Path, batch: int) -> list[Result]:
    return bench(
        options.method,
        task,
        backbone=options.backbone,
        data=options.data,
        limit=options.limit,
        device="cpu",
        out=folder / str(batch),
        counting=False,
        progress=False,
        batch=batch,
    ).runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", default=TASKS)
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()

    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(1)
    backbone = backbones.load(options.backbone, device="cpu")
    model = HFLM(
        pretrained=backbone.model,
        tokenizer=backbone.tokenizer,
        device="cpu",
        batch_size=options.batch,
        max_length=backbone.max_positions,
    )
    rows = []
    for item in grammar.items(options.task, "task"):
        task = grammar.spelled(item.name, item.split, item.settings)
        selected = [named.loaded(options.data, backbone) for named in select(options.method, task)[1]]
        (case,) = cases(selected, ["own"], options.limit)
        rows += measured(case, task, options, backbone, model)
    arguments = {name: str(value) for name, value in vars(options).items() if name != "data"}
    device = hardware(torch.device("cpu"))
    run = {"bench": "batches", **arguments, "device": device, "threads": torch.get_num_threads()}
    print(json.dumps({**run, "rows": rows}))


if __name__ == "__main__":
    main()
