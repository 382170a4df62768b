from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from installed import METHODS

from contextlab import backbone as backbones
from contextlab import calls, registry
from contextlab.errors import UserError
from contextlab.method import ContextMethod
from contextlab.methods.window import Window

BACKBONE = backbones.load("tiny-llama", device="cpu")


def built(name: str) -> ContextMethod:
    return registry.method_class(name)(BACKBONE)


ids = torch.tensor
MISTAKES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a list": (lambda m, s: m.read(s, [[1, 2]]), "tensor of int64 with 2 dimensions"),
    "one dimension": (lambda m, s: m.read(s, ids([1, 2])), "2 dimensions"),
    "three dimensions": (lambda m, s: m.read(s, ids([[[1]], [[2]]])), "2 dimensions"),
    "floats": (lambda m, s: m.read(s, torch.ones(2, 3)), "int64"),
    "int32": (lambda m, s: m.read(s, torch.ones(2, 3, dtype=torch.int32)), "int64"),
    "an array": (lambda m, s: m.read(s, np.ones((2, 3))), "int64"),
    "none": (lambda m, s: m.read(s, None), "int64"),
    "too large": (lambda m, s: m.read(s, ids([[1], [257]])), "no token 257: give ids from 0 to 256"),
    "negative": (lambda m, s: m.read(s, ids([[1], [-100]]), ids([1, 0])), "no token -100"),
    "rows": (lambda m, s: m.read(s, ids([[1]])), "state has 2 rows and the tokens have 1"),
    "lengths": (lambda m, s: m.read(s, ids([[1], [2]]), ids([1])), "2 numbers from 0 to 1"),
    "long": (lambda m, s: m.read(s, ids([[1], [2]]), ids([2, 0])), "2 numbers from 0 to 1"),
    "short": (lambda m, s: m.read(s, ids([[1], [2]]), lengths_B=ids([-1, 0])), "2 numbers from 0 to 1"),
    "list of lengths": (lambda m, s: m.read(s, ids([[1], [2]]), [1, 0]), "Lengths must be a tensor of int64"),
    "other device": (lambda m, s: m.read(s, torch.ones(2, 3, dtype=torch.int64, device="meta")), "are on meta"),
    "no state": (lambda m, s: m.read(None, ids([[1]])), "A NoneType is no state"),
    "a tensor as state": (lambda m, s: m.score(ids([1]), [[1]]), "A Tensor is no state"),
    "a tuple as state": (lambda m, s: m.next_logprobs((s, None)), "A tuple is no state"),
    "no candidates": (lambda m, s: m.score(s, []), "no candidates to score"),
    "text": (lambda m, s: m.score(s, "abc"), "candidates must be lists of token ids"),
    "texts": (lambda m, s: m.score(s, ["abc"]), "candidates must be lists of token ids"),
    "one candidate": (lambda m, s: m.score(s, [1, 2]), "candidates must be lists of token ids"),
    "fractions": (lambda m, s: m.score(s, [[1.5]]), "candidates must be lists of token ids"),
    "nested": (lambda m, s: m.score(s, [[[1]]]), "candidates must be lists of token ids"),
    "large candidate": (lambda m, s: m.score(s, [[1], [10**30]]), "no token"),
    "negative candidate": (lambda m, s: m.score(s, [[-1]]), "no token -1"),
    "texts as prompts": (lambda m, s: m.generate(s, ["a", "b"], max_new_tokens=1), "prompts must be lists"),
    "prompts": (lambda m, s: m.generate(s, [[1]] * 3, max_new_tokens=1), "2 rows and there are 3 prompts"),
    "large prompt": (lambda m, s: m.generate(s, [[1], [257]], max_new_tokens=1), "no token 257"),
    "stop": (lambda m, s: m.generate(s, [[1], [1]], max_new_tokens=1, stop="."), "stop tokens must be"),
    **{
        f"{name}={value}": (lambda m, s, o=option: m.generate(s, [[1], [1]], **{"max_new_tokens": 1, **o}), name)
        for name, values in {
            "max_new_tokens": (-1, 1.5, None, float("inf"), 2**70),
            "temperature": (-1, -1e-9, float("nan"), float("inf"), "hot", None),
            "seed": (1.5, 2**64, -(2**70), None),
        }.items()
        for value in values
        for option in [{name: value}]
    },
    "no rows": (lambda m, s: m.start(0), "batch_size=0"),
    "half a row": (lambda m, s: m.start(1.5), "batch_size=1.5"),
}  # fmt: skip


def test_the_call_of_one_thread_does_not_open_the_door_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    method = built("window")
    entered, go_on = threading.Event(), threading.Event()
    step = type(method).step  # type: ignore[attr-defined]

    def slow(self: Any, *args: Any) -> Any:
        entered.set()
        assert go_on.wait(60)
        return step(self, *args)

    monkeypatch.setattr(type(method), "step", slow)
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(method.read, method.start(), ids([[1, 2]]))
        assert entered.wait(60)
        wrong = pool.submit(method.read, None, "no tokens")
        go_on.set()
        with pytest.raises(UserError, match="is no state"):
            wrong.result(60)
        assert reading.result(60)[1].shape == (1, 2)
    assert method.called_by is None


@pytest.mark.parametrize("name", METHODS)
def test_a_wrong_call_is_one_sentence_and_changes_nothing(name: str) -> None:
    method = built(name)
    state, _ = method.read(method.start(2), ids([[1, 2, 3], [4, 5, 6]]))
    before = {key: tensor.clone() for key, tensor in state.tensors().items()}
    for mistake, (call, message) in MISTAKES.items():
        with pytest.raises(UserError) as error:
            call(method, state)
        assert message in str(error.value), mistake
        assert "\n" not in str(error.value), mistake
        assert method.called_by is None, mistake
    assert all(torch.equal(tensor, before[key]) for key, tensor in state.tensors().items())


@pytest.mark.parametrize("name", METHODS)
def test_right_calls_of_any_form_are_answered_alike(name: str) -> None:
    method = built(name)
    state, _ = method.read(method.start(), ids([[1, 2, 3]]))
    empty, none = method.read(state, torch.zeros(1, 0, dtype=torch.int64))
    assert none.shape == (1, 0)
    assert torch.equal(empty.length_B, state.length_B)
    scores = method.score(state, [[1, 2], [3, 4]])
    for form in (((1, 2), (3, 4)), ids([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]), [ids([1, 2]), np.array([3, 4])]):
        assert torch.equal(method.score(state, form), scores)
    assert method.score(state, [[]]).shape == (1, 1, 0)
    assert method.generate(state, [], max_new_tokens=3) == []
    assert method.generate(state, [[]], max_new_tokens=0) == [[]]
    for prompts in ([[], []], [[], [5]]):
        written = method.generate(state, prompts, max_new_tokens=1)
        assert written == method.generate(state.fork(2), prompts, max_new_tokens=1)
        assert method.generate(state, prompts, max_new_tokens=0) == [[], []]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-300, 600), max_size=4), max_size=3))
def test_tokens_are_accepted_exactly_where_all_are_in_the_vocabulary(candidates: list[list[int]]) -> None:
    method = built("window")
    state = method.start()
    fits = candidates and all(0 <= token < 257 for tokens in candidates for token in tokens)
    try:
        scores = method.score(state, candidates)
    except UserError:
        assert not fits
    else:
        assert fits
        assert scores.shape[1] == len(candidates)


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_checked_where_a_call_comes_in_and_not_in_the_loop(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = built(name)
    state, _ = method.read(method.start(), ids([[1, 2, 3]]))
    checks: list[int] = []
    check = calls.check_tokens
    monkeypatch.setattr(calls, "check_tokens", lambda *args: (checks.append(1), check(*args)))
    counts = []
    for length in (1, 20):
        method.generate(state, [[1], [2, 3]], max_new_tokens=length)
        method.read(state, torch.zeros(1, 10 * length, dtype=torch.int64))
        counts.append(len(checks))
    assert counts[1] == 2 * counts[0] <= 12


def test_a_failing_call_leaves_the_method_ready_for_the_next() -> None:
    method = built("window")
    state = method.start()

    class Failure(Exception):
        pass

    def fail(*_: Any) -> None:
        raise Failure

    method.step, step = fail, method.step  # type: ignore[attr-defined]
    with pytest.raises(Failure):
        method.read(state, ids([[1]]))
    method.step = step  # type: ignore[attr-defined]
    with pytest.raises(UserError):
        method.read(state, ids([[300]]))
    assert method.read(state, ids([[1]]))[1].shape == (1, 1)


def test_classes_that_override_or_borrow_functions_are_checked_like_others() -> None:
    class Mine(Window):
        generate = ContextMethod.generate

        def read(self, state: Any, tokens_BT: Any, lengths_B: Any = None, *, logprobs: bool = True) -> Any:
            return super().read(state, tokens_BT, lengths_B, logprobs=logprobs)

    method = Mine(BACKBONE)
    state = method.start()
    assert state.owner is method
    assert method.read(state, ids([[1]]))[0].owner is method
    with pytest.raises(UserError, match="no token 300"):
        method.read(state, ids([[300]]))
    with pytest.raises(UserError, match="no token 300"):
        method.generate(state, [[300]], max_new_tokens=1)
