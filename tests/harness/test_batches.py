"""Batches: a run in batches is the run without them, and what cannot be done in them is done one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_runner import COUNTER, HIDDEN, IDS, log, run, stored, without_time

from contextlab import backbone
from contextlab.benchmarks.examples import Choice
from contextlab.errors import UserError
from contextlab.harness import batches, together
from contextlab.methods.window import Window

__all__ = ["log"]

METHODS = ("window(N=24)", "sliding(N=24)", "closed-book")


def lines(out: Path) -> list[dict[str, Any]]:
    """The stored lines in the usual order, without what a batch measures otherwise."""
    kept = []
    for line in sorted(without_time(stored(out)), key=lambda line: int(line["index"])):
        costs = {phase: {k: v for k, v in cost.items() if k != "largest_bytes"} for phase, cost in line["cost"].items()}
        kept.append({**line, "cost": costs, "batch": None})
    return kept


def failing(error: Exception, most: int) -> Callable[..., list[Any]]:
    """`evaluated`, with an error for batches of more examples."""
    evaluated = together.evaluated

    def evaluate(method: Any, examples: Sequence[Any], *, counting: bool) -> list[Any]:
        if len(examples) > most:
            raise error
        return evaluated(method, examples, counting=counting)

    return evaluate


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [3, 64, "auto"])
def test_a_run_in_batches_stores_what_it_stores_without(tmp_path: Path, method: str, batch: int | str) -> None:
    (alone,) = run(tmp_path / "alone", method).runs
    (together,) = run(tmp_path / "together", method, batch=batch).runs
    assert together.run_id == alone.run_id
    assert lines(tmp_path / "together") == lines(tmp_path / "alone")
    assert together.cost.query is not None
    assert alone.cost.query is not None
    assert together.cost.query.peak_bytes == alone.cost.query.peak_bytes
    assert alone.provenance.batch is None
    assert together.provenance.batch == (3 if batch == 3 else 7)


def test_a_run_goes_on_with_another_size(tmp_path: Path, log: Path) -> None:
    window = METHODS[0]
    results = [run(tmp_path / "runs", window, limit=n, batch=size).runs[0] for n, size in ((2, 1), (5, 2), (8, 4))]
    assert sorted(log.read_text().split()) == sorted(IDS)
    assert len({result.run_id for result in results}) == 1
    run(tmp_path / "alone", window)
    assert lines(tmp_path / "runs") == lines(tmp_path / "alone")


@pytest.mark.parametrize(
    ("method", "note"),
    [
        (COUNTER, "no formula says what its calls cost"),
        ("dynamic-eval(N=24,segment=8)", "it needs gradients"),
        ("longmem(N=24,bank_scope=shared)", "its rows are not independent"),
        (HIDDEN, "its formula does not give the FLOPs that are counted"),
    ],
)
def test_what_cannot_be_batched_is_computed_one_by_one_and_noted(tmp_path: Path, method: str, note: str) -> None:
    notes: list[str] = []
    (result,) = run(tmp_path, [method], limit=3, batch=4, on_note=notes.append).runs
    assert result.provenance.batch is None
    (sentence,) = notes
    assert note in sentence


def test_a_run_says_that_examples_were_side_by_side_also_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated, calls = together.evaluated, []

    def evaluate(method: Any, examples: Any, *, counting: bool) -> Any:
        calls.append(len(examples))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluated(method, examples, counting=counting)

    with monkeypatch.context() as patch:
        patch.setattr(together, "evaluated", evaluate)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, METHODS[0], batch=3)
    assert calls == [3, 3]
    (result,) = run(tmp_path, METHODS[0]).runs
    assert result.provenance.batch == 3


def test_examples_of_a_batch_share_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row has the share of a call's time that its tokens have in it, so that all rows together have it once."""
    shared, calls = together._Calls._shared, list[tuple[float, list[Any]]]()

    def share(self: Any, phase: Any, make: Any, tokens: Any) -> Any:
        whole: list[float] = []

        def take() -> Any:
            costs = type(self.ledger).take(self.ledger)
            whole.append(costs[phase].seconds)
            return costs

        with monkeypatch.context() as patch:
            patch.setattr(self.ledger, "take", take)
            answers = shared(self, phase, make, tokens)
        calls.append((whole[0], [cost for _, cost in answers]))
        return answers

    monkeypatch.setattr(together._Calls, "_shared", share)
    run(tmp_path, METHODS[0], batch=4)
    assert calls
    for seconds, costs in calls:
        assert sum(cost.seconds for cost in costs) == pytest.approx(seconds)
        tokens = sum(cost.tokens for cost in costs)
        assert all(cost.seconds * tokens == pytest.approx(seconds * cost.tokens) for cost in costs if tokens)


def test_without_counting_no_formula_is_needed(tmp_path: Path) -> None:
    (result,) = run(tmp_path / "together", COUNTER, batch=4, counting=False).runs
    assert result.provenance.batch == 4
    run(tmp_path / "alone", COUNTER, counting=False)
    assert lines(tmp_path / "together") == lines(tmp_path / "alone")


def test_a_batch_that_does_not_fit_is_halved(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "evaluated", failing(torch.OutOfMemoryError("none left"), 3))
    notes: list[str] = []
    (result,) = run(tmp_path, METHODS[0], batch=8, on_note=notes.append).runs
    assert result.provenance.batch == 3
    assert notes == ["7 examples of Window do not fit into memory: going on with 3."]
    assert sorted(log.read_text().split()) == sorted(IDS)


def test_an_example_that_is_left_over_is_computed_alone(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven examples in batches of three one is left: the longest, for which a state of one row may be too large."""
    evaluated = together.evaluated

    def evaluate(method: Any, examples: Any, *, counting: bool) -> Any:
        if len(examples) == 1:
            raise torch.OutOfMemoryError("none left")
        return evaluated(method, examples, counting=counting)

    monkeypatch.setattr(together, "evaluated", evaluate)
    notes: list[str] = []
    run(tmp_path, METHODS[0], batch=3, on_note=notes.append)
    assert not notes
    assert sorted(log.read_text().split()) == sorted(IDS)


def test_a_batch_that_fails_is_computed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "evaluated", failing(IndexError("no such row"), 1))
    notes: list[str] = []
    (result,) = run(tmp_path, METHODS[0], batch=8, on_note=notes.append).runs
    assert result.provenance.batch is None
    assert notes == ["Window computes its examples one by one: IndexError: no such row."]


def test_an_error_of_an_example_is_that_of_the_example_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, wrong = Window.forward, backbone.load("tiny-llama", device="cpu").encode("d")[0]

    def broken(self: Any, state: Any, tokens_BT: torch.Tensor, layout: Any) -> Any:
        hidden_BTC, readers = forward(self, state, tokens_BT, layout)
        return hidden_BTC.masked_fill((tokens_BT == wrong).any(1)[:, None, None], float("nan")), readers

    monkeypatch.setattr(Window, "forward", broken)
    failed = []
    for batch in (1, 8):
        with pytest.raises(UserError, match="not finite on example 'd/3'") as error:
            run(tmp_path / str(batch), METHODS[0], batch=batch)
        failed.append((str(error.value), {line["id"] for line in stored(tmp_path / str(batch))}))
    assert failed[0] == failed[1]


@pytest.mark.parametrize("batch", [0, -1, "many", "", True, 1.5])
def test_a_size_is_a_number_or_auto(tmp_path: Path, batch: Any) -> None:
    with pytest.raises(UserError, match="give 1 or more, or auto"):
        run(tmp_path, METHODS[0], batch=batch)


def test_lengths_are_those_of_all_texts() -> None:
    shared = tuple("abc")
    examples = [Choice("id", "work", "x" * n, shared, 0) for n in (0, 5, 2)]
    least = len("id") + len("work") + 3
    assert batches.lengths_of(examples) == [least, least + 5, least + 2]
