"""The loop: rows that do not mix, restarts without trace, sums that are means, and numbers that must be finite."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from toy_corpus import corpus, corpus_of, learner, options, tiny
from transformers.pytorch_utils import Conv1D

from contextlab import naming, process
from contextlab.accounting.flops import FlopCounter
from contextlab.errors import UserError
from contextlab.methods.evalm import EVALM, PAPER, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.ultragist import UltraGist, UltraGistConfig
from contextlab.training import registry
from contextlab.training.corpus import Corpus
from contextlab.training.loop import Trainer, narrow_products
from contextlab.training.streams import Batch, Streams

METHODS: dict[str, Any] = {
    "longmem": lambda: learner(),
    "evalm": lambda: EVALM(tiny("tiny-gpt2"), EVALMConfig(W=32, c=8, remote_bias=-1.0, weights="none")),
    # From random weights, in the paper's form; OPT has dropout.
    "evalm, own weights": lambda: EVALM(tiny("tiny-opt"), dataclasses.replace(PAPER, W=16, c=16, rank="full")),
    "generative-adapter": lambda: GenerativeAdapter(
        tiny("tiny-gpt2"), GenerativeAdapterConfig(chunk=24, d_r=8, r=4, weights="none")
    ),
    "ultragist": lambda: UltraGist(tiny("tiny-gpt2"), UltraGistConfig(W=16, rank=2, weights="none")),
}

RANKED = ("full", "sliding(N=16)", "retrieval(N=16)", "evalm(W=32,c=8,remote_bias=-1)", "memtrm(N=16)", "trime(N=16)")


def ranked(name: str) -> Any:
    """A method with a low-rank update, as initialised."""
    return naming.single(name.replace("(", "(rank=2,weights=none,") if "(" in name else f"{name}(rank=2)").build(
        tiny("tiny-llama")
    )


def trainer(built: Corpus, method: Any = None, **changed: Any) -> Trainer:
    settings = options(**changed)
    method = method or learner()
    streams = Streams(built, built.training, settings.rows, settings.segment or 32, settings.seed)
    return Trainer(method, streams, registry.named_objective("lm", method, built), settings)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return corpus(tmp_path, monkeypatch)


def weights(training: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in training.parameters])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["lm", "contrast", "harm"])
def test_a_step_leaves_no_graph_behind(name: str, recompute: bool, built: Corpus) -> None:
    """What is not followed back must not be kept either, step after step."""
    method = EVALM(tiny("tiny-llama"), EVALMConfig(W=16, c=4, rank=2, remote_bias=-1.0, weights="none"))
    settings = options(segment=16, recompute=recompute)
    streams = Streams(built, built.training, 2, 16, 0)
    training = Trainer(method, streams, registry.named_objective(name, method, built), settings)
    gc.collect()
    before = {id(item) for item in gc.get_objects() if torch.is_tensor(item)}
    for _ in range(3):
        training.step()
    gc.collect()
    left = [item for item in gc.get_objects() if torch.is_tensor(item) and id(item) not in before]
    assert not [item for item in left if item.grad_fn is not None]


def test_the_first_step_follows_the_mean_over_the_tokens(built: Corpus) -> None:
    training = trainer(built, clip=0.0)
    expected = learner()
    batch = Streams(built, built.training, 2, 32).next()
    loss = -expected.learn(expected.start(2), batch.tokens_BT, batch.lengths_B)[1].logprobs_BT.sum()
    loss = loss / batch.lengths_B.sum()
    norm = torch.stack(
        [
            g.norm()
            for g in torch.autograd.grad(loss, list(expected.learned.parameters()), allow_unused=True)
            if g is not None
        ]
    ).norm()
    step = training.step()
    assert step.loss == pytest.approx(float(loss.detach()), rel=1e-5)
    assert step.nats == step.loss
    assert step.norm == pytest.approx(float(norm), rel=1e-4)
    assert step.tokens == int(batch.lengths_B.sum()) == training.progress.tokens


def test_it_learns_a_few_texts_by_heart(built: Corpus) -> None:
    small = dataclasses.replace(
        built, documents=tuple(dataclasses.replace(document, tokens=60) for document in built.documents)
    )
    training = trainer(small, tokens=10**6, lr=5e-3, schedule="constant", warmup=0.0)
    losses = [training.step().loss for _ in range(60)]
    assert sum(losses[-6:]) / 6 < sum(losses[:6]) / 6 - 1


def test_batches_are_accumulated_to_one_mean(built: Corpus) -> None:
    once, twice = trainer(built, clip=0.0, rows=4), trainer(built, clip=0.0, rows=2, accumulate=2)
    first, second = (each.streams.next() for each in (once, once))
    halves = iter([_half(first, 0), _half(first, 2), _half(second, 0), _half(second, 2)])
    twice.streams.next = lambda: next(halves)  # type: ignore[method-assign]
    wholes = iter([first, second])
    once.streams.next = lambda: next(wholes)  # type: ignore[method-assign]
    # The halves are other rows, so that each begins from an empty state.
    twice._restarted = lambda batch: twice.method.start(2)  # type: ignore[method-assign]
    step, other = once.step(), twice.step()
    assert other.loss == pytest.approx(step.loss, rel=1e-5)
    assert other.norm == pytest.approx(step.norm, rel=1e-4)
    torch.testing.assert_close(weights(once), weights(twice), atol=1e-5, rtol=1e-4)


def _half(batch: Batch, first: int) -> Batch:
    rows = slice(first, first + 2)
    return Batch(
        batch.tokens_BT[rows], batch.lengths_B[rows], batch.fresh_B[rows], batch.documents[rows], batch.begins[rows]
    )


def test_rows_do_not_mix(built: Corpus) -> None:
    """What one row reads leaves the state of the other as it is."""
    states = []
    for other in (False, True):
        training = trainer(built, lr=1e-12)
        following = training.streams.next

        def next_batch(following: Any = following, other: bool = other) -> Batch:
            batch = following()
            changed = batch.tokens_BT.clone()
            changed[1] = (changed[1] + 5 * other) % 256
            return dataclasses.replace(batch, tokens_BT=changed)

        training.streams.next = next_batch  # type: ignore[method-assign]
        for _ in range(5):
            training.step()
        states.append(training.state.index([0]).tensors())
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], atol=1e-5, rtol=1e-5, msg=name)


def test_a_row_that_begins_a_document_carries_nothing_on(built: Corpus) -> None:
    training = trainer(built, lr=1e-12)
    while True:
        training.step()
        _, place, begin = training.streams.position[0]
        if place and begin > 0:
            break
    document = training.streams.order(0, 0)[place]
    alone, _ = training.method.read(training.method.start(), built.piece(document, 0, begin)[None])
    row = training.state.index([0])
    assert row.length_B.tolist() == [begin]
    future = built.piece(document, begin, begin + 20)[None]
    torch.testing.assert_close(
        training.method.read(row, future)[1], training.method.read(alone, future)[1], atol=1e-4, rtol=1e-4
    )


def test_gradients_end_at_the_segment(built: Corpus) -> None:
    training = trainer(built)
    training.step()
    assert not any(tensor.requires_grad for tensor in training.state.tensors().values())


def test_the_backbone_is_left_alone(built: Corpus) -> None:
    method = learner()
    digest = method.backbone.digest
    training = trainer(built, method)
    for _ in range(3):
        training.step()
    assert method.backbone.digest == digest
    assert all(parameter.grad is None for parameter in method.backbone.model.parameters())
    assert not method.untrained


def test_learning_is_training_mode_and_what_follows_is_not(built: Corpus) -> None:
    method: Any = METHODS["evalm"]()
    training, modes = trainer(built, method), []
    objective = training.objective

    def watched(state: Any, batch: Batch) -> Any:
        modes.append(method.learned.training)
        return type(objective).__call__(objective, state, batch)

    training.objective = watched  # type: ignore[assignment]
    watched.prepare = lambda batch: 0  # type: ignore[attr-defined]
    training.step()
    assert set(modes) == {True}
    assert not method.learned.training


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_refused_and_changes_no_weight(built: Corpus, number: float) -> None:
    training = trainer(built)
    training.step()
    before = weights(training)
    learn = training.method.learn

    def spoilt(*args: Any) -> Any:
        state, predicted = learn(*args)
        return state, dataclasses.replace(predicted, logprobs_BT=predicted.logprobs_BT * number)

    training.method.learn = spoilt  # type: ignore[method-assign, assignment]
    with pytest.raises(UserError, match="not finite after 64 tokens: use a smaller --lr"):
        training.step()
    assert torch.equal(weights(training), before)
    assert training.progress.steps == 1


def test_a_method_without_anything_to_learn_is_one_sentence() -> None:
    built = corpus_of([40] * 9)
    with pytest.raises(UserError, match="Full has nothing to learn: train a method that"):
        trainer(built, Full(tiny()))


def test_flops_are_those_that_the_watch_sees(built: Corpus) -> None:
    training = trainer(built)
    batch = Streams(built, built.training, 2, 32).next()
    with FlopCounter() as counter:
        (training.objective(training.method.start(2), batch).loss).backward()
    training.optimiser.zero_grad()
    training.step()
    assert training.progress.flops == pytest.approx(counter.flops, rel=1e-6)
    assert training.progress.seconds > 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_an_objective_computes_in_advance_is_part_of_the_flops(built: Corpus, accumulate: int) -> None:
    """A second training reads from the disk what the first has computed, and costs as much."""

    def taught(*, free: bool = False) -> Trainer:
        training = trainer(built, accumulate=accumulate)
        training.objective = registry.named_objective("teacher(k=6)", training.method, built)
        if free:
            training.objective.prepare = lambda batch: 0  # type: ignore[method-assign]
        training.step()
        return training

    first, second, unpaid = taught(), taught(), taught(free=True)
    streams = Streams(built, built.training, 2, 32)
    in_advance = sum(first.objective.prepare(streams.next()) for _ in range(accumulate))
    assert in_advance > 0
    assert first.progress.flops == second.progress.flops == unpaid.progress.flops + in_advance


def test_the_watch_changes_no_number(built: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = trainer(built)
    losses = [watched.step().loss for _ in range(5)]
    monkeypatch.setattr(Trainer, "_watch_is_due", False)
    unwatched = trainer(built)
    assert [unwatched.step().loss for _ in range(5)] == losses
    assert torch.equal(weights(watched), weights(unwatched))


@pytest.mark.parametrize("name", ["full", "retrieval(N=16)", "evalm(W=32,c=8,remote_bias=-1)"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_that_are_computed_again_change_no_number(name: str, dtype: str, built: Corpus) -> None:
    trainings = []
    for recompute in (False, True):
        with process.seeded(0):
            trained = trainer(built, ranked(name), recompute=recompute, dtype=dtype)
            trainings.append(([trained.step().loss for _ in range(3)], trained))
    (losses, plain), (again, recomputed) = trainings
    assert losses == again
    assert torch.equal(weights(plain), weights(recomputed))
    assert recomputed.progress.flops > plain.progress.flops


def test_layers_that_change_while_reading_cannot_be_computed_again(built: Corpus) -> None:
    with pytest.raises(UserError, match=r"GenerativeAdapter changes its layers .* leave recompute out"):
        trainer(built, METHODS["generative-adapter"](), recompute=True).step()


@pytest.mark.parametrize("restarted", [[True, True], [True, False]])
def test_what_a_restarted_row_had_in_view_costs_no_attention(restarted: list[bool]) -> None:
    method = Full(tiny())
    tokens_BT = torch.arange(2 * 60).view(2, 60)
    state, _ = method.read(method.start(2), tokens_BT, torch.tensor([60, 7]))
    after = method.restart(state, torch.tensor(restarted))
    assert after.kv.slots == int(after.kv.used_B.max())


@pytest.mark.parametrize("name", METHODS)
def test_with_narrow_products_it_learns_nearly_the_same(name: str, built: Corpus) -> None:
    wide, narrow = (trainer(built, METHODS[name](), dtype=dtype) for dtype in ("float32", "bfloat16"))
    losses = []
    for each in (wide, narrow):
        torch.manual_seed(0)  # of what methods draw in training
        losses.append([each.step().loss for _ in range(4)])
    assert losses[1] == pytest.approx(losses[0], rel=0.01)
    assert losses[1] != losses[0]
    assert {parameter.dtype for parameter in narrow.parameters} == {torch.float32}
    for key, tensor in narrow.state.tensors().items():
        assert tensor.dtype == wide.state.tensors()[key].dtype, key


class WideWeights(TorchDispatchMode):
    """Counts the products with the weight of a linear layer, or with a part of it, in float32."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        layers = (part for module in modules for part in module.modules() if isinstance(part, nn.Linear | Conv1D))
        self.memory = {layer.weight.untyped_storage().data_ptr() for layer in layers}
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
            self.count += any(x.untyped_storage().data_ptr() in self.memory for x in args if x.dtype == torch.float32)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [*METHODS, *RANKED])
def test_no_linear_layer_is_left_out_of_narrow_products(name: str, built: Corpus) -> None:
    """Nor one of a backbone with updates, whose layers are others than the frozen backbone's."""
    narrow = trainer(built, METHODS[name]() if name in METHODS else ranked(name), dtype="bfloat16")
    with WideWeights([narrow.method.backbone.model, narrow.learned]) as wide:
        for _ in range(3):
            narrow.step()
    assert wide.count == 0


def test_the_rate_follows_the_schedule(built: Corpus) -> None:
    training = trainer(built, schedule="linear", warmup=0.0, tokens=320)
    rates = [training.step().rate for _ in range(3)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 3e-3
    assert rates[1] == pytest.approx(3e-3 * (1 - 64 / 320))


def test_parts_learn_at_rates_of_their_own(built: Corpus) -> None:
    plain, other = trainer(built), trainer(built, rates="*.q_proj.*:10")
    before = {name: parameter.detach().clone() for name, parameter in plain.learned.named_parameters()}
    assert plain.step().rate == other.step().rate
    changed = dict(other.learned.named_parameters())
    factors = {name: 10 if ".q_proj." in name else 1 for name in before}
    assert set(factors.values()) == {1, 10}
    for name, parameter in plain.learned.named_parameters():
        expected = factors[name] * (parameter - before[name])
        torch.testing.assert_close(changed[name] - before[name], expected, rtol=1e-4, atol=1e-6)


def test_a_segment_that_nothing_learned_takes_part_in_is_a_step_without_change(
    built: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a method that learns how to read its memory, while that is empty."""
    training = trainer(built)
    before, learn = weights(training), training.method.learn

    def unlearned(*arguments: Any) -> Any:
        state, predicted = learn(*arguments)
        return state.detach(), dataclasses.replace(predicted, logprobs_BT=predicted.logprobs_BT.detach())

    monkeypatch.setattr(training.method, "learn", unlearned)
    first = training.step()
    assert first.tokens > 0
    assert first.norm == 0
    assert torch.equal(weights(training), before)
    monkeypatch.undo()
    assert training.step().tokens > first.tokens
    assert not torch.equal(weights(training), before)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-opt"])
def test_a_model_computes_nearly_the_same_and_then_again_exactly(name: str) -> None:
    model = tiny(name).model
    tokens = torch.arange(20)[None]
    before = model(tokens).logits
    with narrow_products([model]):
        narrow = model(tokens).logits
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, before)
    torch.testing.assert_close(narrow, before, atol=0.1, rtol=0.1)
    assert torch.equal(model(tokens).logits, before)


def test_weights_and_gradients_stay_wide() -> None:
    layer = nn.Linear(4, 3)
    with narrow_products([nn.Sequential(layer), layer]):
        y = layer(torch.randn(2, 4, requires_grad=True))
        y.sum().backward()
    assert (y.dtype, layer.weight.dtype, layer.weight.grad.dtype) == (torch.float32,) * 3
    assert torch.equal(y.detach(), y.detach().bfloat16().float())


def test_a_layer_of_something_else_stays_wide() -> None:
    layer, other, x = nn.Linear(4, 3), nn.Linear(4, 3), torch.randn(2, 4)
    before = other(x)
    with narrow_products([layer]):
        assert torch.equal(other(x), before)


def test_an_error_leaves_nothing_behind() -> None:
    layer, forward = nn.Linear(4, 3), nn.Linear.forward
    with pytest.raises(RuntimeError), narrow_products([layer]):
        layer(torch.zeros(2, 5))
    assert nn.Linear.forward is forward


def test_what_is_no_linear_layer_computes_as_it_did() -> None:
    norm = nn.LayerNorm(4)
    x = torch.randn(2, 4)
    before = norm(x)
    with narrow_products([norm]):
        assert torch.equal(norm(x), before)
        assert torch.equal(x @ x.T, x @ x.T)
        assert not torch.is_autocast_enabled("cpu")
