"""The teacher objective: full attention's predictions, kept on the disk.

Legend: N places, k tokens kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_corpus import corpus, learner, options

from contextlab.accounting.flops import FlopCounter
from contextlab.methods.full import Full
from contextlab.training import registry
from contextlab.training.loop import Trainer
from contextlab.training.streams import Streams
from contextlab.training.teacher import block

Teaching = tuple[Any, Any, Streams]


@pytest.fixture
def teaching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Teaching:
    """An objective, its method, and streams whose documents are longer than the model's positions."""
    built, method = corpus(tmp_path, monkeypatch), learner()
    assert all(entry.tokens > 2 * method.backbone.max_positions for entry in built.documents)
    return registry.named_objective("teacher(k=6)", method, built), method, Streams(built, built.training, 2, 50)


def test_targets_are_full_attentions_most_probable_tokens(teaching: Teaching) -> None:
    objective, method, streams = teaching
    full = Full(method.backbone)
    state = full.start(2)
    for _ in range(6):
        batch = streams.next()
        expected = []
        for row, length in enumerate(batch.lengths_B.tolist()):
            alone = state.index([row])
            for place in range(length):
                expected.append(full.next_logprobs(alone)[0])
                alone, _ = full.read(alone, batch.tokens_BT[row : row + 1, place : place + 1])
        state, _ = full.read(state, batch.tokens_BT, batch.lengths_B)
        ids_Nk, logprobs_Nk = objective._targets(batch)
        top = torch.stack(expected).topk(6)
        torch.testing.assert_close(logprobs_Nk, top.values, atol=3e-3, rtol=2e-3)
        torch.testing.assert_close(torch.stack(expected).gather(1, ids_Nk), top.values, atol=1e-4, rtol=1e-4)


def test_full_attention_is_computed_once(teaching: Teaching, monkeypatch: pytest.MonkeyPatch) -> None:
    objective, method, streams = teaching
    batches = [streams.next() for _ in range(4)]
    first = [objective._targets(batch)[0] for batch in batches]
    monkeypatch.setattr(Full, "predict", lambda *_: pytest.fail("computed again"))
    again = registry.named_objective("teacher(k=6)", method, streams.corpus)
    again.prepare(batches[0])
    assert all(torch.equal(a, again._targets(batch)[0]) for a, batch in zip(first, batches, strict=True))  # type: ignore[attr-defined]


def test_the_first_block_that_is_read_may_be_far_in_a_document(teaching: Teaching) -> None:
    objective, _, streams = teaching
    objective.block = 1
    last = streams.corpus.documents[0].tokens - 1
    assert last > 400
    assert block(objective._path(0, last)) is None
    assert torch.equal(objective._stored(0, last)["ids"], block(objective._path(0, last))["ids"])  # type: ignore[index]


def test_a_teacher_of_fewer_tokens_does_not_read_what_one_of_more_has_kept(teaching: Teaching) -> None:
    objective, method, streams = teaching
    batch = streams.next()
    more = objective._targets(batch)[0]
    fewer = registry.named_objective("teacher(k=3)", method, streams.corpus)._targets(batch)[0]  # type: ignore[attr-defined]
    assert torch.equal(fewer, more[:, :3])


def test_a_teacher_costs_as_much_whether_it_is_kept_or_computed(teaching: Teaching) -> None:
    objective, method, streams = teaching
    batches = [streams.next() for _ in range(4)]
    computed = [objective.prepare(batch) for batch in batches]
    again = registry.named_objective("teacher(k=6)", method, streams.corpus)
    assert computed == [again.prepare(batch) for batch in batches]
    assert all(computed)


def test_the_parts_of_a_block_cost_what_it_costs(teaching: Teaching) -> None:
    objective, method, streams = teaching
    text_T = streams.corpus.piece(0, 0, method.backbone.max_positions)
    with FlopCounter() as watched:
        _, predicted = objective.full.predict(objective.full.start(), text_T[None])
        method.backbone.logprobs_of_all(predicted.hidden_BTC[0])
    parts = Streams(streams.corpus, [0], 1, len(text_T) // 4)
    assert sum(objective.prepare(parts.next()) for _ in range(4)) == pytest.approx(watched.flops, rel=0.02)


def test_the_loss_has_a_gradient_and_falls_when_it_is_followed(teaching: Teaching) -> None:
    objective, method, streams = teaching
    batch = streams.next()
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        outcome = objective(method.start(2), batch)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
        losses.append(float(outcome.loss.detach()))
    assert losses[-1] < losses[0]
    _, logprobs_BT = method.read(method.start(2), batch.tokens_BT, batch.lengths_B)
    assert float(objective(method.start(2), batch).nats) == pytest.approx(-float(logprobs_BT.sum()), rel=1e-4)


def test_what_backward_computes_again_is_as_narrow_as_it_was(teaching: Teaching) -> None:
    objective, method, streams = teaching
    trainer = Trainer(method, streams, objective, options(dtype="bfloat16"))
    first = trainer.step()
    assert first.loss < first.nats * 1.5
    assert trainer.step().norm > 0


def test_a_divided_corpus_has_targets_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corpus(tmp_path, monkeypatch, documents=4)
    divided, method = whole.with_ends_held_back(), learner()
    assert len(divided.documents) == 8

    def target(built: Any) -> Any:
        return registry.named_objective("teacher(k=6)", method, built)._stored(2, 0)["ids"]  # type: ignore[attr-defined]

    target(whole)
    after_the_other = target(divided)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "empty"))
    assert torch.equal(after_the_other, target(divided))
