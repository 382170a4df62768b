"""Objectives that compare with another memory: what they compute, and what following them changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from toy_corpus import corpus_of, tiny

from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.training import registry
from contextlab.training.streams import Batch

BUILT = corpus_of([90] * 9)


def adapter() -> AnyMethod:
    config = GenerativeAdapterConfig(chunk=16, d_r=16, r=8, modules="*attn.c_proj|*mlp.c_proj", weights="none")
    return GenerativeAdapter(tiny("tiny-gpt2"), config)


def batch(rows: int, length: int = 16, fresh: bool = False) -> Batch:
    tokens_BT = torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(7))
    lengths_B = torch.full((rows,), length)
    return Batch(tokens_BT, lengths_B, torch.full((rows,), fresh), (0,) * rows, (16,) * rows)


def stirred(method: AnyMethod, size: float) -> AnyMethod:
    """The method with weights moved from where they begin, the same every time."""
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    return method


def histories(rows: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 16), generator=torch.Generator().manual_seed(8))


def losses(method: AnyMethod, state: Any, training_batch: Batch) -> torch.Tensor:
    """Mean loss per row behind a state."""
    return -method.learn(state, training_batch.tokens_BT, training_batch.lengths_B)[1].logprobs_BT.mean(1).detach()


@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_contrast_is_own_plus_softplus_of_the_difference(weight: float) -> None:
    method, training_batch = stirred(adapter(), 0.05), batch(3)
    state, _ = method.read(method.start(3), histories(3))
    own, other = losses(method, state, training_batch), losses(method, state.index([1, 2, 0]), training_batch)
    assert float((own - other).abs().max()) > 1e-4
    expected = sum(
        16 * (a + math.log1p(math.exp(weight * (a - b)))) for a, b in zip(own.tolist(), other.tolist(), strict=True)
    )
    outcome = registry.named_objective(f"contrast(weight={weight})", method, BUILT)(state, training_batch)
    assert float(outcome.loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(outcome.nats) == pytest.approx(float(16 * own.sum()), rel=1e-5)


@pytest.mark.parametrize("name", ["contrast", "harm"])
def test_rows_that_begin_a_document_have_nothing_to_compare(name: str) -> None:
    method, training_batch = adapter(), batch(2, fresh=True)
    outcome = registry.named_objective(name, method, BUILT)(method.start(2), training_batch)
    assert float(outcome.loss.detach()) == pytest.approx(float(outcome.nats), rel=1e-5)


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_harm_is_what_another_memory_costs_beyond_an_empty_one(weight: float) -> None:
    method, training_batch = stirred(adapter(), 0.05), batch(4)
    state, _ = method.read(method.start(4), histories(4))
    own, other = losses(method, state, training_batch), losses(method, state.index([1, 2, 3, 0]), training_batch)
    none = losses(method, method.start(4), training_batch)
    assert 0 < int((other > none).sum()) < 4, "rows with harm and without are both needed"
    expected = float(16 * (own + weight * (other - none).clamp(min=0)).sum())
    outcome = registry.named_objective(f"harm(weight={weight})", method, BUILT)(state, training_batch)
    assert float(outcome.loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(outcome.nats) == pytest.approx(float(16 * own.sum()), rel=1e-5)


def test_following_harm_makes_another_memory_harmless() -> None:
    method, training_batch = stirred(adapter(), 0.1), batch(2)
    objective = registry.named_objective("harm(weight=10)", method, BUILT)
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-3)

    def harm() -> torch.Tensor:
        state, _ = method.read(method.start(2), histories(2))
        none = losses(method, method.start(2), training_batch)
        return (losses(method, state.index([1, 0]), training_batch) - none).clamp(min=0).mean()

    before = harm()
    for _ in range(30):
        state, _ = method.learn(method.start(2), histories(2))
        optimiser.zero_grad()
        objective(state, training_batch).loss.backward()
        optimiser.step()
    assert float(before) > 0.03
    assert float(harm()) < 0.2 * float(before)


def test_harm_is_not_lowered_by_a_worse_loss_without_memory() -> None:
    config = EVALMConfig(W=8, c=4, sinks=1, rank=4, remote_bias=2.0, weights="none")
    method, training_batch = stirred(EVALM(tiny("tiny-llama"), config), 0.1), batch(2)
    state, _ = method.read(method.start(2), histories(2))
    none = losses(method, method.start(2), training_batch)
    parameters = list(method.learned.parameters())
    losses_with_graph = [
        -method.learn(some, training_batch.tokens_BT, training_batch.lengths_B)[1].logprobs_BT.mean(1)
        for some in (state, state.index([1, 0]))
    ]
    assert float((losses_with_graph[1] - none).max()) > 0
    expected = 16 * (losses_with_graph[0] + (losses_with_graph[1] - none).clamp(min=0)).sum()
    loss = registry.named_objective("harm", method, BUILT)(state, training_batch).loss
    for actual, wanted in zip(
        torch.autograd.grad(loss, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        assert (actual is None) == (wanted is None)
        assert actual is None or wanted is None or torch.allclose(actual, wanted, rtol=1e-3, atol=1e-5)


def test_following_contrast_makes_the_own_memory_worth_more() -> None:
    method = adapter()
    repeated = batch(2, 16)
    objective = registry.named_objective("contrast", method, BUILT)
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-2)
    history, _ = method.read(method.start(2), repeated.tokens_BT)
    before = (losses(method, history.index([1, 0]), repeated) - losses(method, history, repeated)).mean()
    for _ in range(40):
        state, _ = method.learn(method.start(2), repeated.tokens_BT)
        outcome = objective(state, repeated)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
    history, _ = method.read(method.start(2), repeated.tokens_BT)
    after = (losses(method, history.index([1, 0]), repeated) - losses(method, history, repeated)).mean()
    assert float(after) > float(before) + 0.1
    assert float(after) > 0.05


def test_one_row_is_one_sentence() -> None:
    method, training_batch = adapter(), batch(1)
    with pytest.raises(UserError, match="needs another row's memory: use --rows 2 or more"):
        registry.named_objective("contrast", method, BUILT)(method.start(1), training_batch)
