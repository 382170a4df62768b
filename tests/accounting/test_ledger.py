from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contextlab.accounting import ledger as module
from contextlab.accounting.flops import count as count_flops
from contextlab.accounting.ledger import Ledger, Meter, TotalCost
from contextlab.accounting.memory import PeakMemory
from contextlab.errors import UserError
from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.dispatch import forced
from contextlab.method import Capabilities, ContextMethod, Lengths, State

V, C = 11, 8


class Bigram(ContextMethod):
    """The next token depends on the last one."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows_VC = torch.randn(V, C, generator=generator)
        self.head_CV = torch.randn(C, V, generator=generator)
        backbone: Any = SimpleNamespace(
            vocab_size=V,
            logprobs_of_all=lambda h: (h @ self.head_CV).log_softmax(-1),
            exclusive=nullcontext,
        )
        super().__init__(backbone)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_context=99)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> State:
        return State(torch.zeros(batch_size, dtype=torch.int64), self.rows_VC[:1].repeat(batch_size, 1))

    def read(
        self, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        rows, length = tokens_BT.shape
        lengths_B = torch.full((rows,), length) if lengths_B is None else lengths_B
        hidden_BTC = torch.cat([state.pending_BC[:, None], self.rows_VC[tokens_BT]], dim=1)
        after = State(state.length_B + lengths_B, hidden_BTC[torch.arange(rows), lengths_B])
        if not logprobs:
            return after, None
        logprobs_BT = self.backbone.logprobs_of_all(hidden_BTC[:, :-1]).gather(-1, tokens_BT[..., None])[..., 0]
        return after, logprobs_BT * (torch.arange(length) < lengths_B[:, None])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Adds one in every call under the watch."""
    runs: list[int] = []

    class Probe(module.FlopCounter):
        def __enter__(self) -> Probe:
            runs.append(1)
            return super().__enter__()

    monkeypatch.setattr(module, "FlopCounter", Probe)
    return runs


def meter(**options: Any) -> Meter:
    return Meter(Bigram(), Ledger("cpu", **options))


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(V, (rows, length))


peaks = st.none() | st.integers(0, 10**12)
costs = st.builds(
    TotalCost, st.integers(0, 10**18), peaks, st.integers(0, 1000).map(float), *[st.integers(0, 10**6)] * 2, peaks
)


@given(costs, costs, costs)
def test_costs_add_up_in_any_order_and_peaks_do_not(a: TotalCost, b: TotalCost, c: TotalCost) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + TotalCost() == a
    known = [peak for peak in (a.peak_bytes, b.peak_bytes) if peak is not None]
    assert (a + b).peak_bytes == max(known, default=None)
    assert (a + dataclasses.replace(b, flops=None)).flops is None
    assert ((a + b).joules is None) == (a.joules is None or b.joules is None)
    assert TotalCost(**a.as_dict()) == a


def test_energy_is_that_between_the_beginning_and_the_end_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr(module.energy, "meter", lambda device: lambda: next(counter))
    ledger = Ledger("cpu")
    for _ in range(2):
        ledger.call("query", lambda: torch.zeros(1), tokens=1, kind="zeros")
    assert ledger.take()["query"].joules == 2.5


def test_a_call_is_entered_with_its_products_and_runs_once(watched: list[int]) -> None:
    ledger, x, calls = Ledger("cpu", resident_bytes=1000), torch.randn(4, 4), []

    def square() -> Tensor:
        calls.append(1)
        return x @ x

    for _ in range(3):
        assert torch.equal(ledger.call("query", square, tokens=7, kind="square"), x @ x)
        expected = TotalCost(2 * 4**3, None, 0.0, 7, 3 * 64, flops_formula=None, joules=None)
        assert dataclasses.replace(ledger.take()["query"], seconds=0.0) == expected
    assert (len(calls), len(watched)) == (3, 0)


def test_the_largest_calls_run_again_for_their_peak(watched: list[int]) -> None:
    ledger, sizes = Ledger("cpu", resident_bytes=1000), [2, 30, 4, 8, 6]
    for size in sizes:
        x = torch.randn(size, size)
        ledger.call("query", lambda x=x: x @ x, tokens=1, kind="square", held_bytes=x.nbytes)
    assert ledger.peaks() == {"query": 1000 + 2 * 30 * 30 * 4}
    assert len(watched) < len(sizes)
    assert not ledger.missed


def test_little_runs_again_where_every_call_has_another_length() -> None:
    ledger, runs, weights = Ledger("cpu"), [], torch.randn(64, 64)

    def read(tokens: Tensor) -> Tensor:
        runs.append(len(tokens))
        return tokens @ weights

    lengths = [200 + (7 * n) % 97 for n in range(60)]
    for n, length in enumerate(lengths):
        phase = "query" if n % 2 else "contextualize"
        tokens = torch.randn(length, 64)
        ledger.call(phase, lambda tokens=tokens: read(tokens), tokens=length, kind="read")  # type: ignore[arg-type]
    ledger.peaks()
    assert runs[: len(lengths)] == lengths
    assert sum(runs[len(lengths) :]) <= 0.1 * sum(lengths)


def test_every_kind_and_phase_is_measured_whatever_the_kinds_before_it_cost() -> None:
    ledger = Ledger("cpu")
    for phase in ("contextualize", "query"):
        for size in (9, 8, 7, 6):
            x = torch.randn(size, size)
            ledger.call(phase, lambda x=x: x @ x, tokens=1, kind="square")  # type: ignore[arg-type]
    assert ledger.peaks() == dict.fromkeys(("contextualize", "query"), 9 * 9 * 4)


def test_a_call_of_more_products_runs_again_beside_a_larger_one() -> None:
    ledger, small, large = Ledger("cpu"), torch.randn(8, 8), torch.randn(20, 20)

    def keeps_all() -> Tensor:
        kept = [small @ small for _ in range(50)]
        return kept[0]

    ledger.call("query", keeps_all, tokens=1, kind="read")
    ledger.call("query", lambda: large @ large, tokens=1, kind="read")
    assert ledger.peaks() == {"query": 50 * 8 * 8 * 4}


def test_phases_are_kept_apart_and_taking_clears() -> None:
    ledger, x = Ledger("cpu"), torch.randn(4, 4)
    ledger.call("contextualize", lambda: x @ x, tokens=3, kind="a")
    ledger.call("query", lambda: x @ x @ x, tokens=1, kind="b")
    ledger.call("query", lambda: x @ x @ x, tokens=1, kind="b")
    costs = ledger.take()
    assert {phase: (cost.flops, cost.tokens) for phase, cost in costs.items()} == {
        "contextualize": (128, 3),
        "query": (512, 2),
    }
    assert ledger.take() == {}


def test_without_counting_there_are_time_and_tokens(watched: list[int]) -> None:
    ledger = Ledger("cpu", counting=False, resident_bytes=1000)
    for _ in range(2):
        ledger.call("train", lambda: torch.zeros(4), tokens=5, kind="a")
    cost = ledger.take()["train"]
    assert (cost.flops, cost.peak_bytes, cost.tokens) == (None, None, 10)
    assert cost.seconds > 0
    assert ledger.peaks() == {}
    assert not watched


def test_a_call_that_raises_is_not_entered_and_leaves_torch_as_it_was() -> None:
    ledger, matmul = Ledger("cpu"), torch.matmul

    def fails() -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.call("query", fails, tokens=1, kind="a")
    assert torch.matmul is matmul
    assert ledger.take() == {}
    assert ledger.peaks() == {}


def test_products_that_are_not_seen_are_noticed_and_a_watching_ledger_counts_them(watched: list[int]) -> None:
    x = torch.randn(5, 5)

    def hidden() -> Tensor:
        product: Tensor = torch._C._VariableFunctions.matmul(x, x)
        return product

    ledger = Ledger("cpu")
    ledger.call("query", hidden, tokens=1, kind="a")
    assert ledger.take()["query"].flops == 0
    ledger.peaks()
    assert ledger.missed
    other = ledger.watching_one()
    other.call("query", hidden, tokens=1, kind="a")
    assert other.take()["query"].flops == 2 * 5**3
    other.peaks()
    assert not other.missed


def test_an_operation_written_in_python_has_its_own_flops_and_the_memory_of_its_parts() -> None:
    q, mean, count = torch.randn(1, 2, 30, 8), torch.randn(1, 1, 500, 8), torch.tensor([500])
    ledger = Ledger("cpu")
    with forced("torch"):
        ledger.call("query", lambda: chunk_topk(q, mean, count, 4), tokens=1, kind="a")
        flops = ledger.take()["query"].flops
        assert flops == count_flops(lambda: chunk_topk(q, mean, count, 4))[1] == 500 * 2 * 30 * 2 * 8
        with PeakMemory() as alone:
            chunk_topk(q, mean, count, 4)
        peak = ledger.peaks()["query"]
    results = 2 * 30 * 4 * (8 + 4)
    assert peak == alone.peak_bytes > 2 * results


def test_a_meter_returns_what_the_method_returns() -> None:
    metered, method = meter(), Bigram()
    batch, lengths = tokens(2, 5), torch.tensor([5, 3])
    state, logprobs = metered.read("contextualize", metered.start(2), batch, lengths)
    same, expected = method.read(method.start(2), batch, lengths)
    assert expected is not None
    assert logprobs is not None
    assert torch.equal(logprobs, expected)
    assert torch.equal(state.pending_BC, same.pending_BC)
    assert metered.read("contextualize", state, batch, logprobs=False)[1] is None
    assert torch.equal(metered.score("query", state, [[1, 2], [3]]), method.score(same, [[1, 2], [3]]))
    options = {"max_new_tokens": 4, "temperature": 1.0, "seed": 3}
    written = metered.generate("query", state, [[1], [2, 3]], **options)
    assert written == method.generate(same, [[1], [2, 3]], **options)
    assert metered.capabilities == method.capabilities
    assert metered.backbone is metered.method.backbone


@pytest.mark.parametrize("lengths", [None, [5, 3], [0, 1], [5, 5]])
def test_reading_counts_real_tokens(lengths: list[int] | None) -> None:
    metered = meter()
    lengths_B = None if lengths is None else torch.tensor(lengths)
    metered.read("contextualize", metered.start(2), tokens(2, 5), lengths_B)
    assert metered.take()["cost"]["contextualize"]["tokens"] == (10 if lengths is None else sum(lengths))


def test_scoring_counts_the_candidates_of_every_row() -> None:
    metered = meter()
    metered.score("query", metered.start(3), [[1, 2, 3], [4]])
    cost = metered.take()["cost"]["query"]
    assert cost["tokens"] == 3 * 4
    assert cost["flops"] == 3 * 2 * 3 * 2 * C * V


@pytest.mark.parametrize("stop", [(), tuple(range(V)), (1, 2, 3)])
def test_generating_counts_prompts_and_what_was_written(stop: Sequence[int]) -> None:
    metered = meter()
    for _ in range(2):
        written = metered.generate("query", metered.start(2), [[1, 2], [3]], max_new_tokens=4, stop=stop)
        assert metered.take()["cost"]["query"]["tokens"] == 3 + sum(map(len, written))


def test_metering_leaves_the_state_as_it_was() -> None:
    metered = meter()
    state, _ = metered.read("contextualize", metered.start(1), tokens(1, 5))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    metered.score("query", state, [[1, 2], [3]])
    metered.generate("query", state, [[1]], max_new_tokens=3)
    metered.keep(state)
    after = state.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_kept_state_is_reported_once_with_its_size() -> None:
    metered = meter()
    state, _ = metered.read("contextualize", metered.start(2), tokens(2, 5), torch.tensor([5, 3]))
    metered.keep(state)
    costs = metered.take()
    assert costs["state"] == {
        "bytes": 2 * 8 + 2 * C * 4,
        "floats": 2 * C,
        "tokens": 8,
        "cached": 0,
        "bytes_formula": None,
    }
    assert costs["cost"].keys() == {"contextualize"}
    assert metered.take() == {"cost": {}, "state": None}


def test_of_several_kept_states_the_largest_is_reported() -> None:
    metered = meter()
    small, large = metered.start(1), metered.start(3)
    for state in (small, large, small):
        metered.keep(state)
    costs = metered.take()["state"]
    assert costs == {"bytes": large.nbytes, "floats": large.floats, "tokens": 0, "cached": 0, "bytes_formula": None}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_log_probabilities_that_are_not_finite_are_refused(wrong: float) -> None:
    metered = meter()
    metered.example = "book/7"
    metered.method.head_CV[:, 3] = wrong  # type: ignore[attr-defined]
    for call in (
        lambda: metered.read("query", metered.start(1), torch.tensor([[1, 3, 2]])),
        lambda: metered.score("query", metered.start(1), [[1, 2], [3]]),
    ):
        with pytest.raises(UserError, match=r"^Bigram gives log-probabilities .* on example 'book/7': try --dtype"):
            call()
    metered.read("query", metered.start(1), torch.tensor([[1, 3, 2]]), logprobs=False)


def test_nothing_is_written_from_what_is_no_number() -> None:
    metered = meter()
    metered.method.head_CV[:] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="are not numbers"):
        metered.generate("query", metered.start(1), [[1]], max_new_tokens=2)


def test_the_state_passed_to_a_call_is_in_memory() -> None:
    metered = meter(resident_bytes=1000)
    state = metered.start(2)
    metered.read("query", state, tokens(2, 0), logprobs=False)
    assert metered.ledger.peaks()["query"] >= 1000 + state.nbytes
