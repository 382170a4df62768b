from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab.errors import UserError
from contextlab.method import Capabilities, ContextMethod, Lengths, MethodConfig, State
from contextlab.writing import Writer, pad


@dataclasses.dataclass(frozen=True)
class Inner:
    x_BS: torch.Tensor
    layers: tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Nested(State):
    inner: Inner
    count_B: torch.Tensor


def state(rows: int = 3) -> Any:
    return Nested(
        torch.arange(rows),
        torch.randn(rows, 4),
        Inner(torch.randn(rows, 5), (torch.randn(rows, 2, 3), torch.randn(rows, 0, 3))),
        torch.arange(rows) * 10,
    )


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ToyConfig(MethodConfig):
    rate: pydantic.PositiveFloat = 0.5
    steps: pydantic.NonNegativeInt = 3


class Counting(ContextMethod):
    """Predicts the successor of the last token, with certainty growing with the number of tokens read."""

    Config = ToyConfig

    @property
    def capabilities(self) -> Any:
        return Capabilities()

    def start(self, batch_size: int = 1, *, ahead: Any = None) -> Any:
        return State(torch.zeros(batch_size, dtype=torch.int64), torch.zeros(batch_size, 1))

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        rows, length = tokens_BT.shape
        lengths_B = lengths_B if lengths_B is not None else torch.full((rows,), length)
        scores = torch.zeros(rows, length)
        for row in range(rows):
            last = state.pending_BC[row, 0]
            for t in range(int(lengths_B[row])):
                scores[row, t] = self.distribution(last)[tokens_BT[row, t]]
                last = tokens_BT[row, t].float()
            state = dataclasses.replace(
                state, pending_BC=state.pending_BC.index_put((torch.tensor(row), torch.tensor(0)), last)
            )
        return dataclasses.replace(state, length_B=state.length_B + lengths_B), scores if logprobs else None

    def distribution(self, last: Any) -> Any:
        scores = torch.zeros(7)
        scores[(int(last) + 1) % 7] = 2.0
        return scores.log_softmax(-1)

    def next_logprobs(self, state: Any) -> Any:
        return torch.stack([self.distribution(last) for last in state.pending_BC[:, 0]])


def test_tensors_are_named_by_their_fields() -> None:
    names = ["length_B", "pending_BC", "inner.x_BS", "inner.layers.0", "inner.layers.1", "count_B"]
    assert list(state().tensors()) == names


def test_fork_puts_copies_next_to_each_other_and_index_picks() -> None:
    original = state()
    forked = original.fork(2)
    assert forked.length_B.tolist() == [0, 0, 1, 1, 2, 2]
    back = forked.index([1, 3, 5])
    for name, tensor in original.tensors().items():
        assert torch.equal(back.tensors()[name], tensor)


def test_size_counts_every_tensor_once() -> None:
    sizes = {name: tensor.numel() for name, tensor in state().tensors().items()}
    assert state().floats == sum(n for name, n in sizes.items() if name not in ("length_B", "count_B"))
    assert state().nbytes == 4 * state().floats + 8 * (sizes["length_B"] + sizes["count_B"])


def test_save_and_load_give_the_same_tensors(tmp_path: Path) -> None:
    original = state()
    original.save(tmp_path / "s.safetensors")
    loaded = state(1).load(tmp_path / "s.safetensors")
    assert type(loaded) is Nested
    assert all(torch.equal(loaded.tensors()[name], tensor) for name, tensor in original.tensors().items())


def test_loading_another_methods_state_is_one_sentence(tmp_path: Path) -> None:
    State(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 2)).save(tmp_path / "s.safetensors")
    with pytest.raises(UserError, match="another method or backbone"):
        state().load(tmp_path / "s.safetensors")


def test_states_are_values() -> None:
    original = state()
    with pytest.raises(dataclasses.FrozenInstanceError):
        original.length_B = torch.zeros(3)
    assert original.to("cpu").batch_size == 3


def test_configuration_is_parsed_from_text_and_validated() -> None:
    assert ToyConfig.parse({"rate": "0.25", "steps": "7"}).as_dict() == {"rate": 0.25, "steps": 7}
    with pytest.raises(UserError, match=r"Setting rate='-1' is not valid: input should be greater than 0\."):
        ToyConfig.parse({"rate": "-1"})
    with pytest.raises(UserError, match="did you mean 'steps'"):
        ToyConfig.parse({"step": 1})


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=4))
def test_default_score_equals_reading_each_candidate(candidates: Any) -> None:
    method = Counting(SimpleNamespace(vocab_size=7, exclusive=nullcontext))
    start, _ = method.read(method.start(2), torch.tensor([[1, 2], [5, 5]]))
    scores = method.score(start, candidates)
    assert scores.shape == (2, len(candidates), max(len(c) for c in candidates))
    for row in range(2):
        for n, candidate in enumerate(candidates):
            alone = method.read(start.index([row]), torch.tensor([candidate], dtype=torch.int64))[1]
            assert torch.equal(scores[row, n, : len(candidate)], alone[0])
            assert (scores[row, n, len(candidate) :] == 0).all()
    assert start.length_B.tolist() == [2, 2]


def test_candidates_are_read_from_as_many_copies_as_may_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Counting(SimpleNamespace(vocab_size=7, exclusive=nullcontext))
    start, candidates = method.start(2), [[1, 2, 3], [4], [], [5, 6], [1]]
    whole = method.score(start, candidates)
    of_rows = method.score_rows(start, [candidates, candidates[:2]])
    copies, fork = list[int](), State.fork
    monkeypatch.setattr(State, "fork", lambda self, n: copies.append(n) or fork(self, n))
    monkeypatch.setattr("contextlab.formula.FORK_BYTES", 2 * start.nbytes)
    assert torch.equal(method.score(start, candidates), whole)
    assert torch.equal(method.score_rows(start, [candidates, candidates[:2]]), of_rows)
    assert copies == [2, 2, 1] * 2


def test_generate_continues_each_row_and_stops() -> None:
    method = Counting(SimpleNamespace(vocab_size=7, exclusive=nullcontext))
    start = method.start(3)
    written = method.generate(start, [[1], [3, 4], []], max_new_tokens=4, stop=[6])
    assert written == [[2, 3, 4, 5], [5], [1, 2, 3, 4]]
    assert method.generate(start, [[1], [1], [1]], max_new_tokens=0) == [[], [], []]


def test_sampling_is_seeded() -> None:
    method = Counting(SimpleNamespace(vocab_size=7, exclusive=nullcontext))
    options = {"max_new_tokens": 20, "temperature": 2.0}
    first, again, other = (method.generate(method.start(), [[0]], seed=seed, **options) for seed in (1, 1, 2))
    assert first == again != other


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4))
def test_pad_keeps_tokens_and_lengths(sequences: Any) -> None:
    tokens, lengths = pad(sequences)
    assert lengths.tolist() == [len(s) for s in sequences]
    assert [tokens[i, : len(s)].tolist() for i, s in enumerate(sequences)] == sequences


@given(st.integers(0, 500), st.integers(0, 100), st.integers(1, 70))
def test_what_is_ahead_ends_with_a_segment(context: Any, question: Any, segment: Any) -> None:
    first = Lengths(context, question).first_segment(segment)
    assert 1 <= first <= segment
    assert (context + question - first) % segment == 0


def after(rows: int, vocabulary: int = 7) -> Any:
    """Predicts n + 1 after n, and 0 first."""

    def logprobs(chosen_B: Tensor) -> Any:
        last_B = torch.full((rows,), -1) if chosen_B is None else chosen_B
        return torch.nn.functional.one_hot((last_B + 1) % vocabulary, vocabulary).float()

    return logprobs


@given(st.integers(0, 9), st.integers(1, 4))
def test_a_writer_writes_max_new_tokens(count: Any, rows: Any) -> None:
    written = Writer(count, (), 0.0, 0).write(rows, after(rows))
    assert written == [[n % 7 for n in range(count)]] * rows


def test_a_row_ends_at_a_stop_token_and_the_others_go_on() -> None:
    def logprobs(chosen_B: Tensor) -> Any:
        following = [0, 3] if chosen_B is None else [(int(token) + 1) % 7 for token in chosen_B]
        return torch.nn.functional.one_hot(torch.tensor(following), 7).float()

    assert Writer(5, (4,), 0.0, 0).write(2, logprobs) == [[0, 1, 2, 3], [3]]


def test_nothing_is_computed_behind_the_last_token() -> None:
    calls = []

    def logprobs(chosen_B: Tensor) -> Any:
        calls.append(chosen_B)
        return torch.eye(7)[:1]

    assert Writer(3, (), 0.0, 0).write(1, logprobs) == [[0, 0, 0]]
    assert len(calls) == 3


def test_sampling_follows_the_seed() -> None:
    def logprobs(_chosen_B: Tensor) -> Any:
        return torch.zeros(2, 50)

    drawn = [Writer(8, (), 1.0, seed).write(2, logprobs) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
