"""Objectives: what they say is what they compute, over real tokens only, with a gradient to what is learned."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from toy_corpus import corpus, corpus_of, learner

from contextlab.errors import UserError
from contextlab.training import registry
from contextlab.training.streams import Batch


def batch(rows: int = 2, length: int = 20) -> Batch:
    tokens_BT = torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(2))
    lengths_B = torch.tensor([length, length - 7][:rows])
    return Batch(tokens_BT, lengths_B, torch.ones(rows, dtype=torch.bool), (0,) * rows, (0,) * rows)


def test_the_language_model_loss_is_that_of_reading() -> None:
    method, training_batch = learner(), batch()
    outcome = registry.named_objective("lm", method, corpus_of([30, 30, 30]))(method.start(2), training_batch)
    _, logprobs_BT = method.read(method.start(2), training_batch.tokens_BT, training_batch.lengths_B)
    assert logprobs_BT is not None
    torch.testing.assert_close(outcome.loss.detach(), -logprobs_BT.sum())
    torch.testing.assert_close(outcome.nats, -logprobs_BT.sum())
    gradients = torch.autograd.grad(outcome.loss, list(method.learned.parameters()), allow_unused=True)
    assert any(bool(gradient.any()) for gradient in gradients if gradient is not None)


def test_padding_counts_in_no_loss() -> None:
    method, training_batch = learner(), batch()
    other = Batch(training_batch.tokens_BT.clone(), *list(vars(training_batch).values())[1:])
    other.tokens_BT[1, 13:] = 9
    objective = registry.named_objective("lm", method, corpus_of([30, 30, 30]))
    losses = [objective(method.start(2), each).loss.detach() for each in (training_batch, other)]
    assert torch.equal(losses[0], losses[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lmm", "There is no objective 'lmm': did you mean 'lm'"),
        ("lm(k=3)", "There are no settings of lm"),
        ("teacher(k=0)", "k='0' of teacher"),
        ("teacher(x=3)", "There is no setting of teacher 'x'"),
        ("lm,teacher", "names 2 objectives"),
    ],
)
def test_a_wrong_objective_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        registry.named_objective(text, learner(), corpus_of([30, 30, 30]))


def test_objectives_of_a_corpus_of_files_are_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = corpus(tmp_path, monkeypatch)
    assert type(registry.named_objective("teacher(k=5)", learner(), built)).__name__ == "Teacher"
