from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contextlab.accounting import ledger as module
from contextlab.accounting.flops import count as count_flops
from contextlab.accounting.ledger import Cost, Ledger, Meter, signature
from contextlab.accounting.memory import PeakMemory
from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.dispatch import forced
from contextlab.method import Ahead, Capabilities, ContextMethod, State

V, C = 11, 8


class Bigram(ContextMethod):
    """The next token depends on the last one."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows_VC = torch.randn(V, C, generator=generator)
        self.head_CV = torch.randn(C, V, generator=generator)
        backbone: Any = SimpleNamespace(logprobs_of_all=lambda h: (h @ self.head_CV).log_softmax(-1))
        super().__init__(backbone)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(max_context=99)

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> State:
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
        found_BT = self.backbone.logprobs_of_all(hidden_BTC[:, :-1]).gather(-1, tokens_BT[..., None])[..., 0]
        return after, found_BT * (torch.arange(length) < lengths_B[:, None])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a call runs under the counters."""
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


costs = st.builds(Cost, *[st.integers(0, 10**18)] * 2, st.integers(0, 1000).map(float), st.integers(0, 10**6))


@given(costs, costs, costs)
def test_costs_add_up_in_any_order_and_peaks_do_not(a: Cost, b: Cost, c: Cost) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Cost() == a
    assert (a + b).peak_bytes == max(a.peak_bytes, b.peak_bytes)
    assert Cost(**a.as_dict()) == a  # type: ignore[arg-type]


def test_equal_calls_are_counted_once_and_entered_every_time(counted: list[int]) -> None:
    ledger, x = Ledger("cpu", resident_bytes=1000), torch.randn(4, 4)
    costs = []
    for _ in range(3):
        assert torch.equal(ledger.call("query", lambda: x @ x, tokens=7, key="square"), x @ x)
        costs.append(ledger.take()["query"])
    assert len(counted) == 1
    assert {dataclasses.replace(cost, seconds=0.0) for cost in costs} == {Cost(2 * 4**3, 1064, 0.0, 7)}


def test_other_keys_and_calls_without_key_are_counted(counted: list[int]) -> None:
    ledger = Ledger("cpu")
    for key in ("a", "b", None, None, "a", "b"):
        ledger.call("query", lambda: torch.zeros(2), tokens=1, key=key)
    assert len(counted) == 4
    assert ledger.take()["query"].tokens == 6


def test_phases_are_kept_apart_and_taking_clears() -> None:
    ledger, x = Ledger("cpu"), torch.randn(4, 4)
    ledger.call("contextualize", lambda: x @ x, tokens=3, key=1)
    ledger.call("query", lambda: x @ x @ x, tokens=1, key=2)
    ledger.call("query", lambda: x @ x @ x, tokens=1, key=2)
    taken = ledger.take()
    assert {phase: (cost.flops, cost.tokens) for phase, cost in taken.items()} == {
        "contextualize": (128, 3),
        "query": (512, 2),
    }
    assert ledger.take() == {}


def test_without_counting_there_are_time_and_tokens(counted: list[int]) -> None:
    ledger = Ledger("cpu", counting=False, resident_bytes=1000)
    ledger.call("train", lambda: torch.zeros(4), tokens=5, key=None)
    ledger.call("train", lambda: torch.zeros(4), tokens=5, key="a")
    cost = ledger.take()["train"]
    assert (cost.flops, cost.peak_bytes, cost.tokens) == (0, 0, 10)
    assert cost.seconds > 0
    assert not counted


def test_a_call_that_raises_is_not_entered(counted: list[int]) -> None:
    ledger = Ledger("cpu")

    def fails() -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ledger.call("query", fails, tokens=1, key="a")
    assert ledger.take() == {}
    ledger.call("query", lambda: torch.zeros(2), tokens=1, key="a")
    assert ledger.take()["query"].peak_bytes == 8
    assert len(counted) == 2


def test_what_a_call_finds_in_memory_counts() -> None:
    ledger = Ledger("cpu", resident_bytes=1000)
    ledger.call("query", lambda: torch.zeros(2), tokens=1, key="a", held_bytes=500)
    assert ledger.take()["query"].peak_bytes == 1508


def test_an_operation_written_in_python_has_its_own_flops_and_the_memory_of_its_parts() -> None:
    q, mean, count = torch.randn(1, 2, 30, 8), torch.randn(1, 1, 500, 8), torch.tensor([500])
    ledger = Ledger("cpu")
    with forced("torch"):
        ledger.call("query", lambda: chunk_topk(q, mean, count, 4), tokens=1, key="a")
        cost = ledger.take()["query"]
        assert cost.flops == count_flops(lambda: chunk_topk(q, mean, count, 4))[1] == 500 * 2 * 30 * 2 * 8
        with PeakMemory() as alone:
            chunk_topk(q, mean, count, 4)
    results = 2 * 30 * 4 * (8 + 4)
    assert cost.peak_bytes == alone.peak_bytes > 2 * results


SAME = [
    (torch.randn(3, 4), torch.randn(3, 4)),
    (torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.int64)),
    (torch.tensor([1, 2]), torch.tensor([1, 2])),
    (torch.zeros(65, dtype=torch.int64), torch.ones(65, dtype=torch.int64)),
    ([[1, 2], [3]], [[4, 5], [6]]),
    ([[1, 2], [3]], ((4, 5), (6,))),
    (State(torch.tensor([1]), torch.zeros(1, 2)), State(torch.tensor([1]), torch.ones(1, 2))),
    ({"max_new_tokens": 3, "stop": ()}, {"max_new_tokens": 3, "stop": ()}),
    (None, None),
]
DIFFERENT = [
    (torch.randn(3, 4), torch.randn(4, 3)),
    (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
    (torch.zeros(3), torch.zeros(3, device="meta")),
    (torch.tensor([1, 2]), torch.tensor([1, 3])),
    (torch.tensor([True]), torch.tensor([False])),
    (torch.tensor(1), torch.tensor(2)),
    ([[1, 2], [3]], [[1], [2, 3]]),
    (State(torch.tensor([1]), torch.zeros(1, 2)), State(torch.tensor([2]), torch.zeros(1, 2))),
    (State(torch.tensor([1]), torch.zeros(1, 2)), State(torch.tensor([1]), torch.zeros(1, 3))),
    ({"max_new_tokens": 3}, {"max_new_tokens": 4}),
    ("read", "score"),
    (None, torch.tensor([1])),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_calls_of_the_same_arithmetic_have_one_signature(a: Any, b: Any) -> None:
    assert signature(a, 1) == signature(b, 1)
    assert hash(signature(a, 1)) == hash(signature(b, 1))


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_calls_of_other_arithmetic_have_another_signature(a: Any, b: Any) -> None:
    assert signature(a) != signature(b)


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
    given_B = None if lengths is None else torch.tensor(lengths)
    metered.read("contextualize", metered.start(2), tokens(2, 5), given_B)
    assert metered.take()["cost"]["contextualize"]["tokens"] == (10 if lengths is None else sum(lengths))


def test_scoring_counts_the_candidates_of_every_row() -> None:
    metered = meter()
    metered.score("query", metered.start(3), [[1, 2, 3], [4]])
    cost = metered.take()["cost"]["query"]
    assert cost["tokens"] == 3 * 4
    assert cost["flops"] == 3 * 2 * 3 * 2 * C * V


@pytest.mark.parametrize("stop", [(), tuple(range(V)), (1, 2, 3)])
def test_generating_counts_prompts_and_what_was_written(stop: Sequence[int], counted: list[int]) -> None:
    metered = meter()
    for _ in range(2):
        written = metered.generate("query", metered.start(2), [[1, 2], [3]], max_new_tokens=4, stop=stop)
        assert metered.take()["cost"]["query"]["tokens"] == 3 + sum(map(len, written))
    assert len(counted) == (2 if stop else 1)


def test_equal_reads_of_other_text_are_counted_once_and_other_lengths_again(counted: list[int]) -> None:
    metered = meter()
    found = []
    for lengths in ([5, 5], [5, 5], [5, 4]):
        metered.read("contextualize", metered.start(2), tokens(2, 5), torch.tensor(lengths))
        found.append(metered.take()["cost"]["contextualize"])
    assert len(counted) == 2
    assert found[0] | {"seconds": 0} == found[1] | {"seconds": 0}
    metered.read("query", metered.start(2), tokens(2, 5), torch.tensor([5, 5]))
    assert len(counted) == 2
    metered.read("query", metered.start(2), tokens(2, 5), torch.tensor([5, 5]), logprobs=False)
    assert len(counted) == 3


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
    taken = metered.take()
    assert taken["state"] == {"bytes": 2 * 8 + 2 * C * 4, "floats": 2 * C, "tokens": 8, "cached": 0}
    assert taken["cost"].keys() == {"contextualize"}
    assert metered.take() == {"cost": {}, "state": None}


def test_of_several_kept_states_the_largest_is_reported() -> None:
    metered = meter()
    small, large = metered.start(1), metered.start(3)
    for state in (small, large, small):
        metered.keep(state)
    taken = metered.take()["state"]
    assert taken == {"bytes": large.nbytes, "floats": large.floats, "tokens": 0, "cached": 0}


def test_the_state_that_a_call_is_given_is_in_memory() -> None:
    metered = meter(resident_bytes=1000)
    state = metered.start(2)
    metered.read("query", state, tokens(2, 0), logprobs=False)
    assert metered.take()["cost"]["query"]["peak_bytes"] >= 1000 + state.nbytes
