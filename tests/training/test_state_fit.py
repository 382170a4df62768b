"""The states objective: its error is what weights do not add, and following it puts a chunk into the weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_corpus import corpus_of, learner, tiny

from contextlab.errors import UserError
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.least_squares import LeastSquares, LeastSquaresConfig
from contextlab.methods.least_squares.fit import after_context
from contextlab.methods.parts.targets import observed
from contextlab.training import registry
from contextlab.training.state_fit import StateFit
from contextlab.training.streams import Batch

CHUNK = 16
BUILT = corpus_of([90] * 9)
MODULES = "*mlp.down_proj"


def adapter(stirred: float = 0.0, **changed: Any) -> GenerativeAdapter:
    settings = {"chunk": CHUNK, "d_r": 16, "r": 8, "modules": MODULES, "weights": "none", **changed}
    method = GenerativeAdapter(tiny("tiny-llama"), GenerativeAdapterConfig(**settings))
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(stirred * torch.randn(parameter.shape, generator=random))
    return method


def batch(lengths: list[int]) -> Batch:
    tokens_BT = torch.randint(1, 256, (len(lengths), CHUNK), generator=torch.Generator().manual_seed(7))
    rows = len(lengths)
    fresh_B = torch.ones(rows, dtype=torch.bool)
    return Batch(tokens_BT, torch.tensor(lengths), fresh_B, (0,) * rows, (0,) * rows)


def objective(method: Any) -> StateFit:
    fit = registry.named_objective("states", method, BUILT)
    assert isinstance(fit, StateFit)
    return fit


def error(method: Any, training_batch: Batch) -> Tensor:
    loss = objective(method)(method.start(len(training_batch.lengths_B)), training_batch).loss
    return loss / training_batch.lengths_B.sum()


def after(method: Any, state: Any, tokens_BT: Tensor) -> Tensor:
    """Log-probabilities of tokens after a state, without the first."""
    logprobs_BT: Tensor = method.read(state, tokens_BT)[1]
    return logprobs_BT[:, 1:]


def test_weights_that_add_nothing_leave_all_that_is_lacking() -> None:
    assert float(error(adapter(), batch([CHUNK] * 3)).detach()) == pytest.approx(1.0, rel=1e-5)


def test_in_the_lowest_layer_it_is_what_weights_do_not_add() -> None:
    """The first token lacks nothing; every other one counts in units of its state's size."""
    method, tokens_BT = adapter(stirred=1.0), batch([CHUNK] * 2).tokens_BT
    fit, lowest = objective(method), method.targets[:1]
    cold, empty = list[tuple[Tensor, Tensor]](), fit.full.start(2)
    with observed(lowest, lambda _, x_BTI, hidden_BTC: cold.append((x_BTI, hidden_BTC))):
        after_context(fit.full, empty, tokens_BT, [])
    state, _ = fit.full.read(empty, tokens_BT)
    (in_view_BTC,), ((x_BTI, cold_BTC),) = after_context(fit.full, state, tokens_BT, lowest), cold
    pair = method.memory_alone(method.read(method.start(2), tokens_BT)[0]).pairs[0]
    added_BTC = torch.einsum("btI,brI,bor->bto", x_BTI, pair.down, pair.up)
    off, whole = 0.0, 0.0
    for b in range(2):
        for t in range(CHUNK):
            lacking_C = in_view_BTC[b, t] - cold_BTC[b, t] if t else torch.zeros(cold_BTC.shape[2])
            size = max(float(in_view_BTC[b, t].norm()), float(cold_BTC[b, t].norm()))
            off += float((added_BTC[b, t] - lacking_C).norm() / size) ** 2
            whole += float(lacking_C.norm() / size) ** 2
    with torch.no_grad():
        errors = fit._errors(tokens_BT, method.memory_alone(method.read(method.start(2), tokens_BT)[0]).pairs)
    assert abs(off / whole - 1) > 0.1
    assert float(errors[0]) == pytest.approx(off / whole, rel=1e-4)


def test_the_lowest_weights_of_least_squares_leave_little() -> None:
    """It solves for the same states; with a small ridge the first token, which it leaves free, is what is left."""
    training_batch = batch([CHUNK] * 2)
    solved = LeastSquares(
        tiny("tiny-llama"),
        LeastSquaresConfig(chunk=CHUNK, first_layer=0, study=0, ridge=1e-6, rank=CHUNK, error="relative"),
    )
    state, _ = solved.read(solved.start(2), training_batch.tokens_BT)
    method = adapter()
    fit = objective(method)
    with torch.no_grad():
        errors = fit._errors(training_batch.tokens_BT, state.pairs)
    assert float(errors[0]) < 0.2


def test_rows_without_a_whole_chunk_teach_nothing() -> None:
    method, training_batch = adapter(stirred=0.05), batch([CHUNK, CHUNK - 3, CHUNK])
    whole = batch([CHUNK] * 3)
    rows = torch.tensor([0, 2])
    alone = dataclasses.replace(whole, tokens_BT=whole.tokens_BT[rows], lengths_B=whole.lengths_B[rows])
    assert float(error(method, training_batch)) == pytest.approx(float(error(method, alone)), rel=1e-5)
    none = objective(method)(method.start(1), batch([CHUNK - 1]))
    assert float(none.loss) == 0.0
    assert none.nats is None


def test_the_gradient_reaches_all_of_the_generator_and_none_of_the_model() -> None:
    method = adapter(stirred=0.05)
    error(method, batch([CHUNK] * 2)).backward()
    for name, parameter in method.learned.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name
    assert all(parameter.grad is None for parameter in method.backbone.model.parameters())


def test_following_it_puts_a_chunk_into_the_weights() -> None:
    method, training_batch = adapter(), batch([CHUNK] * 2)
    fit = objective(method)
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=3e-2)
    for _ in range(60):
        optimiser.zero_grad()
        fit(method.start(2), training_batch).loss.backward()
        optimiser.step()

    tokens_BT = training_batch.tokens_BT
    memory = method.memory_alone(method.read(method.start(2), tokens_BT)[0])
    in_view_BT = after(fit.full, fit.full.read(fit.full.start(2), tokens_BT)[0], tokens_BT)
    own, other, none = (
        float((after(method, state, tokens_BT) - in_view_BT).square().mean())
        for state in (memory, memory.index([1, 0]), method.start(2))
    )
    assert float(error(method, training_batch).detach()) < 0.5
    assert own < 0.7 * none
    assert own < other


def test_what_it_cannot_learn_from_is_one_sentence() -> None:
    with pytest.raises(UserError, match="LongMem keeps no context as weights: use --objective lm"):
        objective(learner(N=CHUNK, csz=4))
    with pytest.raises(UserError, match="several layers of a block"):
        objective(adapter(modules="*mlp*"))
    with pytest.raises(
        UserError, match=f"A segment of 32 tokens is not one of the method's chunks: use --segment {CHUNK}"
    ):
        objective(adapter()).check(2 * CHUNK)
    objective(adapter()).check(CHUNK)
