"""The attention objective: an error of 0 where attention is full, layers that learn alone, and a loss that falls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_corpus import corpus, corpus_of, learner, options, tiny

from contextlab.errors import UserError
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.training import registry
from contextlab.training.loop import Trainer
from contextlab.training.streams import Batch, Streams

OPEN: dict[str, Any] = {"W": 16, "c": 4, "sinks": 2, "remote_bias": -1.0, "weights": "none"}


def evalm(family: str = "tiny-llama", **changed: Any) -> EVALM:
    return EVALM(tiny(family), EVALMConfig(**{**OPEN, **changed}))


def batch(length: int = 60, shorter: int = 17) -> Batch:
    tokens_BT = torch.randint(0, 256, (2, length), generator=torch.Generator().manual_seed(2))
    lengths_B = torch.tensor([length, length - shorter])
    return Batch(tokens_BT, lengths_B, torch.ones(2, dtype=torch.bool), (0, 0), (0, 0))


def loss(method: EVALM, training_batch: Batch) -> torch.Tensor:
    objective = registry.named_objective("attention", method, corpus_of([30] * 3))
    outcome = objective(method.start(len(training_batch.lengths_B)), training_batch)
    assert outcome.nats is None
    return outcome.loss / training_batch.lengths_B.sum()


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-opt"])
def test_where_attention_is_full_there_is_no_error(family: str) -> None:
    """One window holds the whole text; or, in the second window, every chunk is one token at its own position."""
    assert float(loss(evalm(family, W=64), batch()).detach()) < 1e-9
    if family == "tiny-llama":
        whole = evalm(family, W=32, c=1, sinks=0, remote_bias=0.0)
        assert float(loss(whole, batch()).detach()) < 1e-9


def test_the_error_is_that_of_the_outputs_side_by_side() -> None:
    """In the first layer inputs do not depend on attention, so that its error can be computed alone."""
    method, training_batch = evalm(), batch(shorter=0)
    outputs: dict[str, list[torch.Tensor]] = {"full": [], "own": []}
    steps_BT = torch.arange(60).expand(2, -1)
    attends = {"full": _reader(method, steps_BT), "own": method.whole_attention()}
    for name, attend in attends.items():

        def record(*arguments: Any, attend: Any = attend, name: str = name) -> torch.Tensor:
            outputs[name].append(attend(*arguments))
            return outputs[name][-1]

        with torch.no_grad():
            method.backbone.forward(training_batch.tokens_BT, steps_BT, record)
    expected = (outputs["own"][0] - outputs["full"][0]).square().sum() / outputs["full"][0].square().sum()
    objective = registry.named_objective("attention", method, corpus_of([30] * 3))
    errors = _errors(objective, training_batch)
    torch.testing.assert_close(errors[0], expected)
    torch.testing.assert_close(torch.stack(errors).mean(), loss(method, training_batch).detach())


def test_a_layers_gradient_does_not_depend_on_the_other_layers() -> None:
    method, training_batch = evalm(), batch()

    def gradient() -> list[torch.Tensor]:
        first = list(method.summaries[0].parameters())
        return list(torch.autograd.grad(loss(method, training_batch), first, allow_unused=True))

    before = gradient()
    assert any(bool(part.any()) for part in before)
    with torch.no_grad():
        for parameter in method.summaries[1].parameters():
            parameter.add_(0.3)
    assert all(torch.equal(a, b) for a, b in zip(before, gradient(), strict=True))


def test_padding_counts_nothing() -> None:
    method, training_batch = evalm(), batch()
    other = Batch(training_batch.tokens_BT.clone(), *list(vars(training_batch).values())[1:])
    other.tokens_BT[1, 43:] = 9
    torch.testing.assert_close(loss(method, training_batch), loss(method, other))
    cut = Batch(
        training_batch.tokens_BT[1:, :43],
        training_batch.lengths_B[1:],
        *(part[1:] for part in list(vars(training_batch).values())[2:5]),
    )
    alone = Batch(training_batch.tokens_BT[1:], *list(vars(cut).values())[1:])
    torch.testing.assert_close(loss(method, alone), loss(method, cut))


def test_summaries_learn_a_text_and_the_update_of_the_backbone_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = corpus(tmp_path, monkeypatch)
    method = evalm(rank=2)
    streams = Streams(built, built.training[:1], 1, 48)
    fixed = streams.next()
    streams.next = lambda: fixed  # type: ignore[method-assign]
    settings = options(tokens=10**6, rows=1, segment=48, lr=2e-2, schedule="constant", warmup=0.0)
    trainer = Trainer(method, streams, registry.named_objective("attention", method, built), settings)
    before = {name: tensor.clone() for name, tensor in method.learned.state_dict().items()}
    steps = [trainer.step() for _ in range(30)]
    assert steps[-1].loss < 0.7 * steps[0].loss
    assert steps[0].nats is None
    changed = {
        name.partition(".")[0]
        for name, tensor in method.learned.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert changed == {"summaries"}
    assert trainer.state.length_B.tolist() == [0]
    assert trainer.progress.flops > 0


def test_a_method_without_such_attention_is_one_sentence() -> None:
    with pytest.raises(UserError, match="LongMem has no attention over whole texts that could be fitted"):
        registry.named_objective("attention", learner(), corpus_of([30] * 3))


def test_a_segment_beyond_full_attention_is_one_sentence() -> None:
    with pytest.raises(UserError, match="use --segment 128 or less"):
        loss(evalm(), batch(129))


def _reader(method: EVALM, position_BT: torch.Tensor) -> Any:
    from contextlab.attention import Layout

    return method.backbone.reader(2, Layout(position_BT))


def _errors(objective: Any, training_batch: Batch) -> list[torch.Tensor]:
    from contextlab.attention import Layout
    from contextlab.training.attention_fit import _Beside

    backbone = objective.method.backbone
    steps_BT = torch.arange(training_batch.tokens_BT.shape[1]).expand_as(training_batch.tokens_BT)
    beside = _Beside(
        backbone.reader(2, Layout(steps_BT)), objective.attend, steps_BT < training_batch.lengths_B[:, None]
    )
    with torch.no_grad():
        backbone.forward(training_batch.tokens_BT, steps_BT, beside)
    return [error.detach() for error in beside.errors]
