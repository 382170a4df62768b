"""Reconstruction and completion: what their probes hold, that a memory alone predicts them, and that they put
a text into the memory.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from toy_corpus import corpus_of, learner, tiny

from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.window import Window, WindowConfig
from contextlab.training import registry
from contextlab.training.probes import Probe, ProbeObjective
from contextlab.training.streams import Batch

CHUNK = 16
BUILT = corpus_of([90] * 9)


def adapter(*, stirred: bool = True) -> AnyMethod:
    config = GenerativeAdapterConfig(chunk=CHUNK, d_r=16, r=8, modules="*attn.c_proj|*mlp.c_proj", weights="none")
    method = GenerativeAdapter(tiny("tiny-gpt2"), config)
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in method.learned.parameters() if stirred else ():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=random))
    return method


def evalm() -> AnyMethod:
    return EVALM(tiny(), EVALMConfig(W=CHUNK, c=4, weights="none"))


def twin() -> AnyMethod:
    method = Window(tiny(), WindowConfig(N=CHUNK, rank=2, weights="none"))
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    return method


LEARNERS = {"adapter": adapter, "longmem": lambda: learner(N=CHUNK, csz=4), "evalm": evalm, "twin": twin}


def batch(rows: int, chunks: int = 1, lengths: list[int] | None = None) -> Batch:
    tokens_BT = torch.randint(1, 256, (rows, chunks * CHUNK), generator=torch.Generator().manual_seed(7))
    lengths_B = torch.tensor(lengths or [chunks * CHUNK] * rows)
    return Batch(tokens_BT, lengths_B, torch.ones(rows, dtype=torch.bool), (0,) * rows, (0,) * rows)


def outcome(text: str, method: AnyMethod, training_batch: Batch) -> Any:
    torch.manual_seed(0)
    return registry.named_objective(text, method, BUILT)(method.start(len(training_batch.lengths_B)), training_batch)


def nats(method: AnyMethod, state: Any, tokens_BT: Tensor) -> Tensor:
    """Mean loss per row of all tokens but the first."""
    return -method.read(state, tokens_BT)[1][:, 1:].mean(1)


def memory(method: AnyMethod, tokens_BT: Tensor) -> Any:
    state, _ = method.read(method.start(len(tokens_BT)), tokens_BT)
    with torch.no_grad():
        return method.memory_alone(state)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_chunk_is_predicted_from_its_memory_alone(name: str) -> None:
    method, training_batch = LEARNERS[name](), batch(3)
    own_B = nats(method, memory(method, training_batch.tokens_BT), training_batch.tokens_BT)
    made_of = outcome("reconstruction", method, training_batch)
    assert float(made_of.loss.detach()) == pytest.approx(3 * CHUNK * float(own_B.mean()), rel=1e-5)
    assert float(made_of.nats) == pytest.approx(float(made_of.loss.detach()), rel=1e-6)


def test_the_memory_alone_of_the_twin_is_nothing() -> None:
    method, training_batch = twin(), batch(2)
    cold_B = nats(method, method.start(2), training_batch.tokens_BT)
    assert float(outcome("reconstruction", method, training_batch).loss.detach()) == pytest.approx(
        2 * CHUNK * float(cold_B.mean()), rel=1e-5
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_completion_is_the_loss_of_later_chunks_read_in_order(name: str) -> None:
    method, training_batch = LEARNERS[name](), batch(2, chunks=3)
    _, logprobs_BT = method.read(method.start(2), training_batch.tokens_BT)
    parts = [logprobs_BT[:, n * CHUNK + 1 : (n + 1) * CHUNK] for n in (1, 2)]
    expected = -float(torch.cat(parts, dim=1).mean()) * training_batch.tokens_BT.numel()
    assert float(outcome("completion", method, training_batch).loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_the_mixture_is_the_mean_over_the_tokens_of_all_slots() -> None:
    method, training_batch = adapter(), batch(2, chunks=2)
    first, second = training_batch.tokens_BT.split(CHUNK, dim=1)
    completion = nats(method, memory(method, first), second).mean()
    torch.manual_seed(0)
    torch.randint(1, (2,))
    drawn_B = torch.randint(2, (2,))
    again = torch.stack([(first, second)[n][row] for row, n in enumerate(drawn_B.tolist())])
    both = [nats(method, memory(method, first), first), nats(method, memory(method, training_batch.tokens_BT), again)]
    for weight in (1.0, 3.0):
        text = f"reconstruction(completion={weight})"
        expected = (sum(float(loss.mean()) for loss in both) + weight * float(completion)) / (2 + weight)
        loss = float(outcome(text, method, training_batch).loss.detach())
        assert loss == pytest.approx(expected * training_batch.tokens_BT.numel(), rel=1e-4)


def test_random_windows_end_with_what_was_read() -> None:
    method, training_batch = adapter(), batch(4, chunks=2)
    objective = registry.named_objective("reconstruction(targets=random)", method, BUILT)
    assert isinstance(objective, ProbeObjective)
    kept = list[Probe]()
    loss_of = objective.probe

    def kept_probe(state: Any, probe: Probe) -> Any:
        kept.append(probe)
        return loss_of(state, probe)

    vars(objective)["probe"] = kept_probe
    for _ in range(20):
        objective(method.start(4), training_batch)
    begins = set()
    for probe in kept:
        for tokens, length, counted, context in zip(
            probe.tokens_BT, probe.lengths_B.tolist(), probe.counted_BT, probe.context_BP, strict=True
        ):
            whole = context.tolist()
            begin = next(n for n in range(len(whole)) if whole[n : n + length] == tokens[:length].tolist())
            assert length == min(CHUNK, len(whole) - begin) > 1
            assert counted.tolist() == [0 < n < length for n in range(CHUNK)]
            begins.add(begin)
    assert len(begins) > CHUNK


@pytest.mark.parametrize("text", ["reconstruction", "completion"])
@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_a_contrast_is_added_with_the_next_rows_memory(text: str, weight: float) -> None:
    method, training_batch = adapter(), batch(3, chunks=2 if text == "completion" else 1)
    context, target = training_batch.tokens_BT[:, :CHUNK], training_batch.tokens_BT[:, -CHUNK:]
    state = memory(method, context)
    own_B, other_B = nats(method, state, target), nats(method, state.index([1, 2, 0]), target)
    assert float((own_B - other_B).abs().max()) > 1e-4
    expected = [
        a + math.log1p(math.exp(weight * (a - b))) for a, b in zip(own_B.tolist(), other_B.tolist(), strict=True)
    ]
    made_of = outcome(f"{text}(contrast={weight})", method, training_batch)
    assert float(made_of.loss.detach()) == pytest.approx(sum(expected) / 3 * training_batch.tokens_BT.numel(), rel=1e-4)
    assert float(made_of.nats) == pytest.approx(float(own_B.mean()) * training_batch.tokens_BT.numel(), rel=1e-5)


def test_a_teacher_has_the_context_in_its_prompt() -> None:
    method, training_batch = adapter(), batch(2)
    whole = method.backbone.vocab_size
    logprobs = []
    for row in training_batch.tokens_BT:
        full = Full(method.backbone)
        state, _ = full.read(full.start(), row[None])
        for token in row:
            logprobs.append(full.next_logprobs(state)[0])
            state, _ = full.read(state, token[None, None])
    teacher_BTV = torch.stack(logprobs).view(2, CHUNK, -1)
    state, expected = memory(method, training_batch.tokens_BT), 0.0
    for n in range(CHUNK):
        student_BV = method.next_logprobs(state)
        expected -= float((teacher_BTV[:, n].exp() * student_BV).sum()) if n else 0.0
        state, _ = method.read(state, training_batch.tokens_BT[:, n : n + 1])
    made_of = outcome(f"reconstruction(teacher={whole})", method, training_batch)
    assert float(made_of.loss.detach()) == pytest.approx(expected * CHUNK / (CHUNK - 1), rel=1e-3)
    assert not math.isclose(float(made_of.loss.detach()), float(made_of.nats), rel_tol=1e-3)
    assert torch.autograd.grad(made_of.loss, list(method.learned.parameters()), allow_unused=True)[0] is not None


def test_rows_with_fewer_whole_chunks_are_left_out() -> None:
    method, training_batch = adapter(), batch(3, chunks=2, lengths=[2 * CHUNK, 2 * CHUNK - 1, 2 * CHUNK])
    kept = Batch(
        training_batch.tokens_BT[[0, 2]],
        training_batch.lengths_B[[0, 2]],
        training_batch.fresh_B[[0, 2]],
        (0, 0),
        (0, 0),
    )
    for text in ("completion", "completion(contrast=5)"):
        losses = [
            float(outcome(text, method, each).loss.detach() / each.lengths_B.sum()) for each in (training_batch, kept)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_nothing_is_learned_from_less_than_a_chunk() -> None:
    method, training_batch = adapter(), batch(2, lengths=[CHUNK - 1, 3])
    made_of = outcome("reconstruction", method, training_batch)
    assert float(made_of.loss) == float(made_of.nats) == 0
    assert not made_of.loss.requires_grad


@pytest.mark.parametrize(
    "text", ["reconstruction", "reconstruction(contrast=20)", "reconstruction(teacher=8,contrast=5)"]
)
def test_following_it_lowers_it_and_puts_the_text_into_the_memory(text: str) -> None:
    method, training_batch = adapter(stirred=False), batch(2)
    objective, losses = registry.named_objective(text, method, BUILT), []
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        made_of = objective(method.start(2), training_batch)
        made_of.loss.backward()
        optimiser.step()
        losses.append(float(made_of.loss.detach()))
    assert losses[-1] < losses[0]
    if "teacher" in text:
        # What a toy predicts is not the text.
        return
    state = memory(method, training_batch.tokens_BT)
    own_B, other_B = (
        nats(method, state, training_batch.tokens_BT),
        nats(method, state.index([1, 0]), training_batch.tokens_BT),
    )
    assert float((other_B - own_B).min()) > 0.05


def test_the_gradient_reaches_through_earlier_chunks() -> None:
    method, training_batch = adapter(), batch(2, chunks=3)
    gradients = torch.autograd.grad(
        outcome("completion", method, training_batch).loss, list(method.learned.parameters())
    )
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in gradients)
    assert all(parameter.grad is None for parameter in method.backbone.model.parameters())


def test_what_cannot_be_learned_from_is_one_sentence() -> None:
    for text, segment, message in (
        ("reconstruction", CHUNK - 1, "fewer than 1 of the method's chunks: use --segment 16 or more"),
        ("completion", 2 * CHUNK - 1, "fewer than 2 of the method's chunks: use --segment 32 or more"),
        ("completion(completion=0)", 64, "Neither reconstruction nor completion has a weight"),
    ):
        with pytest.raises(UserError, match=message):
            registry.named_objective(text, adapter(), BUILT).check(segment)
    registry.named_objective("completion", adapter(), BUILT).check(2 * CHUNK)
    for method in (learner(local="sliding"), Full(tiny())):
        with pytest.raises(UserError, match="no segments that start cold"):
            registry.named_objective("reconstruction", method, BUILT).check(64)
