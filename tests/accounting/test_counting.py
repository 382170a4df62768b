"""Numbers of unchanged methods that change with the version of counting: whoever changes one raises `COUNTING`."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import contextlab
from contextlab.accounting import COUNTING
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Choice
from contextlab.benchmarks.task import Dataset, Options
from contextlab.harness.case import TaskCase
from contextlab.harness.runner import seeded_example

NUMBERS: dict[str, Any] = {
    "counting": 1,
    "costs": {"contextualize": (3764736, 40), "query": (380160, 3), "state": 4248},
    "drawn": [512884, 783178, 554698],
    "others": ["b0", "b0", "c0", "c0", "a0", "a0"],
}


def test_the_numbers_below_are_of_this_version() -> None:
    assert NUMBERS["counting"] == COUNTING


def test_costs_of_a_small_model() -> None:
    method = contextlab.load("window", backbone="tiny-llama", device="cpu", dtype="float32", N=16)
    meter = Meter(method, Ledger("cpu"))
    state, _ = meter.read("contextualize", meter.start(), torch.arange(40)[None])
    meter.keep(state)
    meter.score("query", state, [[1, 2], [3]])
    measures = meter.take()
    costs = {phase: (cost["flops"], cost["tokens"]) for phase, cost in measures["cost"].items()}
    assert {**costs, "state": measures["state"]["bytes"]} == NUMBERS["costs"]


def test_random_numbers_of_an_example() -> None:
    with seeded_example(3, "work/1"):
        drawn = [random.randrange(10**6), int(np.random.randint(10**6)), int(torch.randint(10**6, ()))]
    assert drawn == NUMBERS["drawn"]


def test_the_wrong_context_of_an_example() -> None:
    examples = tuple(Choice(f"{work}{n}", work, "", (), 0) for work in "abc" for n in range(2))
    nothing: Any = SimpleNamespace()
    case = TaskCase("toy", nothing, "", Options(), Dataset(examples, "sample", "", ""), nothing, None)
    assert [case.other(number).id for number in range(len(examples))] == NUMBERS["others"]
