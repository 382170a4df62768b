from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from installed import METHODS as INSTALLED

import contextlab
from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.harness.comparison import Results
from contextlab.harness.stored import Result, StoredModel
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing.parts import texts
from contextlab.testing.threads import threads

MEASURED = ("seconds", "started", "joules", "command")


@pytest.fixture(autouse=True)
def _threads_change_places_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def plain(value: Any) -> Any:
    """What two runs have in common: everything but what a clock says."""
    if isinstance(value, StoredModel):
        return plain(value.as_json())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in MEASURED}
    return [plain(item) for item in value] if isinstance(value, list) else value


def bench(methods: str, out: Path, **options: Any) -> Results:
    return contextlab.bench(
        methods,
        "needle/1k(tokens=256),pg22(tokens=300)",
        backbone="tiny-llama",
        device="cpu",
        limit=2,
        out=out,
        **options,
    )


METHODS = ("sinks,hso,evalm,dynamic-eval", "window,retrieval(rank=2),generative-adapter")


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def test_two_benches_in_threads_have_the_numbers_of_one(tmp_path: Path) -> None:
    alone = [bench(methods, tmp_path / "alone").runs for methods in METHODS]
    product, output = torch.matmul, sys.stdout
    seed()
    expected = drawn()
    seed()
    barrier = threading.Barrier(len(METHODS))

    def together(methods: str) -> list[Result]:
        barrier.wait()
        return bench(methods, tmp_path / "together").runs

    with ThreadPoolExecutor(len(METHODS)) as pool:
        runs = list(pool.map(together, METHODS))
    assert plain(runs) == plain(alone)
    assert drawn() == expected
    assert (torch.matmul, sys.stdout) == (product, output)


def test_what_a_method_has_not_learned_does_not_depend_on_the_methods_beside_it(tmp_path: Path) -> None:
    alone = bench("retrieval(rank=2)", tmp_path / "alone").runs
    drawn()
    others = bench("longmem(rank=2,N=64),retrieval(rank=2)", tmp_path / "others").runs
    assert plain(alone) == [run for run in plain(others) if run["method"] == "retrieval"]


def test_the_same_bench_twice_in_threads_is_one_run_or_one_sentence(tmp_path: Path) -> None:
    alone = plain(bench("window", tmp_path / "alone").runs)
    barrier = threading.Barrier(2)

    def together(_: int) -> list[Result] | str:
        barrier.wait()
        try:
            return bench("window", tmp_path / "together").runs
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(together, range(2)))
    assert all("is running" in outcome if isinstance(outcome, str) else plain(outcome) == alone for outcome in results)
    assert not all(isinstance(outcome, str) for outcome in results)


def test_different_methods_share_a_model_in_threads() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    model = backbone.model
    built = [contextlab.load(name, model, tokenizer=backbone.tokenizer) for name in INSTALLED]
    tokens_BT = texts(2)
    own = model(input_ids=tokens_BT[:, :40], use_cache=False).logits

    def numbers(method: Any) -> list[torch.Tensor]:
        state, logprobs = method.read(method.start(2), tokens_BT)
        return [logprobs.detach(), method.score(state, [[1, 2], [3]]).detach(), method.next_logprobs(state).detach()]

    alone = [numbers(method) for method in built]
    for workers in (4, len(built)):
        with ThreadPoolExecutor(workers) as pool:
            together = list(pool.map(numbers, built))
        for name, a, b in zip(INSTALLED, alone, together, strict=True):
            assert all(map(torch.equal, a, b)), name
    assert torch.equal(model(input_ids=tokens_BT[:, :40], use_cache=False).logits, own)


@pytest.mark.parametrize("name", sorted({*INSTALLED} - {"dynamic-eval", "finetune"}))
@torch.no_grad()
def test_the_model_computes_beside_a_method(name: str) -> None:
    """But for the methods that replace weights of the whole model for the time of a call."""
    method = contextlab.load(name, "tiny-llama", device="cpu")
    model, tokens_BT, stop = method.backbone.model, texts(1), threading.Event()

    def numbers() -> torch.Tensor:
        state, logprobs = method.read(method.start(), tokens_BT)
        return torch.cat([logprobs[0].detach(), method.next_logprobs(state)[0].detach()])

    def logits() -> torch.Tensor:
        out: torch.Tensor = model(input_ids=tokens_BT[:, :40], use_cache=False).logits
        return out

    def again() -> bool:
        same = True
        while not stop.is_set():
            same &= torch.equal(numbers(), alone)
        return same

    alone, own = numbers(), logits()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(again)
        beside = [torch.equal(logits(), own) for _ in range(40)]
        stop.set()
        assert reading.result(60)
    assert all(beside)


@pytest.mark.parametrize(
    "make",
    [
        lambda b: Window(b, WindowConfig(N=24, rank=2)),
        lambda b: LongMem(b, LongMemConfig(N=32, K=16, rank=2)),
        lambda b: LongMem(b, LongMemConfig(N=32, K=16, init="paper")),
    ],
)
def test_methods_with_an_update_keep_the_law_of_threads(make: Any) -> None:
    threads(make(backbones.load("tiny-llama", device="cpu")))


def test_methods_are_made_and_learn_in_threads() -> None:
    """Each makes copies, freezes weights for a moment, and computes gradients; the model needs gradients itself."""
    model = backbones.load("tiny-llama", device="cpu").model.requires_grad_(True)
    tokens_BT = texts(1)[:, :120]

    def gradients(number: int) -> list[torch.Tensor]:
        method = contextlab.load(f"window(N=24,rank={2 + number % 2})", model)
        _, prediction = method.learn(method.start(), tokens_BT)
        assert method.learned is not None
        return list(torch.autograd.grad(prediction.logprobs_BT.sum(), list(method.learned.parameters())))

    alone = [gradients(number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(gradients, range(4)))
    assert all(
        torch.equal(a, b)
        for expected, outcome in zip(alone, together, strict=True)
        for a, b in zip(expected, outcome, strict=True)
    )
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_models_that_are_loaded_in_threads_are_the_same() -> None:
    names = ["tiny-llama", "tiny-gpt2"] * 4
    alone = [backbones.load(name, device="cpu").digest for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: backbones.load(name, device="cpu").digest, names)) == alone
