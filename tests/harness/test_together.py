"""Examples side by side: numbers, texts and costs are those of the same examples alone, for every method."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_states import MADE, built

from contextlab import backbone as backbones
from contextlab import process
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.harness import together
from contextlab.method import AnyMethod, Lengths
from contextlab.testing.parts import TOLERANCE

TOLERANCES = {"float32": TOLERANCE, "bfloat16": 0.1}
SELECTING = ("snapkv",)
"""Those that keep tokens by their scores: in a narrow type another one where two score nearly alike, which moves single
log-probabilities by more than rounding does, so that their mean is compared."""
ALONE = ("hso", "dynamic-eval", "finetune", "cartridge", "press, all inputs")
"""Those that have gradients of their own, or no formula for their cost."""
BATCHED = [name for name in MADE if not name.startswith(ALONE)]
EXAMPLES = 5


@pytest.fixture(scope="module")
def models() -> dict[str, backbones.Backbone]:
    return {dtype: backbones.load("tiny-llama", device="cpu", dtype=dtype) for dtype in TOLERANCES}


def evaluation(example: int, *, write: bool = True) -> Callable[[Meter], dict[str, Any]]:
    """Reads a context of random length in pieces, as an example of a protocol does, then scores and writes."""

    def evaluate(meter: Meter) -> dict[str, Any]:
        own = random.Random(example)
        tokens = [own.randrange(256) for _ in range(own.choice((0, 1, 40, 63, own.randrange(64, 160))))]
        ahead = Lengths(len(tokens), 9) if own.random() < 0.5 else None
        state, logprobs = meter.start(ahead=ahead), []
        piece = own.choice((50, 64, 200))
        for begin in range(0, len(tokens), piece):
            part = torch.tensor([tokens[begin : begin + piece]])
            wanted = own.random() < 0.5
            state, read = meter.read("contextualize", state, part, logprobs=wanted)
            logprobs += [] if read is None else [read]
            meter.keep(state)
        for _ in range(own.randrange(3)):
            texts = [[own.randrange(256) for _ in range(own.randrange(1, 9))] for _ in range(own.randrange(1, 4))]
            logprobs.append(meter.score("query", state, texts))
        prompts = [[own.randrange(256) for _ in range(own.randrange(6))] for _ in range(own.randrange(1, 4))]
        written = meter.generate("query", state, prompts, max_new_tokens=3, stop=(7,)) if write else []
        drawn = [random.random(), float(torch.rand(()))]
        return {"logprobs": logprobs, "written": written, "drawn": drawn, **meter.take()}

    return evaluate


def alone(method: AnyMethod, number: int, *, write: bool = True) -> dict[str, Any]:
    with process.seeded(number):
        return evaluation(number, write=write)(Meter(method, Ledger("cpu")))


def in_a_batch(method: AnyMethod, numbers: range, *, write: bool = True) -> list[dict[str, Any]]:
    examples = [(evaluation(number, write=write), process.RandomTurns(number)) for number in numbers]
    return together.evaluated(method, examples, counting=True)


def costs(result: dict[str, Any]) -> dict[str, Any]:
    """What is the same in a batch: all but seconds and the memory of single calls."""
    kept = ("flops", "flops_formula", "tokens")
    return {phase: {name: cost[name] for name in kept} for phase, cost in result["cost"].items()}


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_gives_what_each_example_gives_alone(
    models: dict[str, backbones.Backbone], name: str, dtype: str
) -> None:
    method = built(name, models[dtype])
    exact = dtype == "float32"  # a narrow type may choose another token
    for first in (0, EXAMPLES):
        numbers = range(first, first + EXAMPLES)
        for number, result in zip(numbers, in_a_batch(method, numbers, write=exact), strict=True):
            expected = alone(method, number, write=exact)
            for logprobs, others in zip(result["logprobs"], expected["logprobs"], strict=True):
                assert logprobs.shape == others.shape
                apart = (logprobs - others).abs()
                compared = apart.mean() if name.startswith(SELECTING) and not exact else apart.max()
                assert compared <= TOLERANCES[dtype], apart
            assert [result["written"], result["drawn"]] == [expected["written"], expected["drawn"]]
            assert costs(result) == costs(expected)
            assert result["state"] == expected["state"]


@torch.no_grad()
def test_a_method_that_draws_is_not_evaluated_side_by_side(
    models: dict[str, backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = built("window", models["float32"])
    start = method.start
    monkeypatch.setattr(method, "start", lambda *args, **options: (torch.rand(()), start(*args, **options))[1])
    with pytest.raises(together.Unsuited, match="draws random numbers"):
        in_a_batch(method, range(3))


@torch.no_grad()
def test_an_example_with_states_of_its_own_is_not_evaluated_side_by_side(
    models: dict[str, backbones.Backbone],
) -> None:
    method = built("window", models["float32"])

    def several(meter: Meter) -> None:
        meter.start(2)

    def forked(meter: Meter) -> None:
        meter.score("query", meter.start().fork(2), [[1]])

    for evaluate in (several, forked):
        with pytest.raises(together.Unsuited, match="states of"):
            together.evaluated(method, [(evaluate, process.RandomTurns(0))] * 2, counting=False)


@torch.no_grad()
def test_random_generators_are_left_as_they_were(models: dict[str, backbones.Backbone]) -> None:
    before = process.generators()
    in_a_batch(built("window", models["float32"]), range(3))
    assert process.generators() == before
