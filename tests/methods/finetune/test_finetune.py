"""Fine-tuning on the context, against torch's optimisers, and as a state machine."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from unchanged import check_reading_leaves

from contextlab import backbone as backbones
from contextlab.accounting.flops import count, llama_block_flops
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.accounting.memory import storage_bytes
from contextlab.accounting.products import ProductCounter
from contextlab.backbone import Backbone
from contextlab.benchmarks.protocols.spans import contextualize
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.finetune import Finetune, FinetuneConfig
from contextlab.methods.finetune.blocks import blocks_of, divided
from contextlab.methods.finetune.fit import Fit
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing import laws

FAMILIES = ["tiny-llama", "tiny-gpt2"]
FORMS: dict[str, dict[str, Any]] = {
    "full": {"lr": 3e-3},
    "some": {"lr": 1e-2, "parameters": "*.mlp.*", "batch": 1},
    "lora": {"what": "lora", "lr": 1e-2, "rank": 2},
    "sgd": {"rule": "sgd", "lr": 0.1, "held_back": 0.4},
}


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(length: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def built(backbone: Backbone, **settings: Any) -> Finetune:
    return Finetune(backbone, FinetuneConfig(**{"N": 32, "epochs": 2, "lr": 3e-3, **settings}))


def read(method: Any, tokens: Tensor, ahead: Lengths | None = None) -> tuple[Any, Tensor]:
    state, logprobs = method.read(method.start(len(tokens), ahead=ahead), tokens)
    assert logprobs is not None
    return state, logprobs


def learned(method: Finetune, tokens: Tensor) -> Any:
    """The state behind a context."""
    return method.read(method.start(len(tokens), ahead=Lengths(tokens.shape[1])), tokens, logprobs=False)[0]


def by_torch(backbone: Backbone, tokens: Tensor, optimiser_of: Any, epochs: int) -> Any:
    """Epochs of one step over all blocks of 32 tokens, on a copy of the model."""
    model = copy.deepcopy(backbone.model).requires_grad_()
    optimiser = optimiser_of([p for p in model.parameters() if p.requires_grad])
    for _ in range(epochs):
        losses = []
        for begin in range(0, tokens.shape[1] - 1, 32):
            block = tokens[:, begin : begin + 33]
            logits = model(block[:, :-1]).logits[0].float()
            losses.append(nn.functional.cross_entropy(logits, block[0, 1:], reduction="none"))
        optimiser.zero_grad()
        torch.cat(losses).mean().backward()
        optimiser.step()
    return model


@pytest.mark.parametrize(
    ("settings", "optimiser_of"),
    [
        ({"rule": "sgd", "lr": 0.05}, lambda p: torch.optim.SGD(p, lr=0.05)),
        ({"lr": 1e-3}, lambda p: torch.optim.Adam(p, lr=1e-3)),
    ],
    ids=["sgd", "adam"],
)
def test_equals_an_optimiser_of_torch_on_a_copy_of_the_model(
    backbone: Backbone, settings: dict[str, Any], optimiser_of: Any
) -> None:
    tokens, question = text(80), text(20, seed=1)
    method = built(backbone, epochs=3, **settings)
    state = learned(method, tokens)
    model = by_torch(backbone, tokens, optimiser_of, 3)
    # Adam divides a rounding error by a gradient that is 0 but for rounding.
    close = {"atol": 2e-3 if settings.get("rule") != "sgd" else 1e-4, "rtol": 1e-3}
    expected = model(torch.cat((torch.tensor([[256]]), question), dim=1)).logits.float().log_softmax(-1)
    after_bos = expected[:, 0].gather(1, question[:, :1])
    within = Window(backbones.wrap(model), WindowConfig(N=32)).read(state_of(model), question)[1]
    logprobs = method.read(state, question)[1]
    assert logprobs is not None
    torch.testing.assert_close(logprobs[:, :1], after_bos, **close)
    torch.testing.assert_close(logprobs[:, 1:], within[:, 1:], **close)
    assert (logprobs - read(built(backbone, lr=0), question)[1]).abs().max() > 1e-2


def state_of(model: Any) -> Any:
    return Window(backbones.wrap(model), WindowConfig(N=32)).start()


# A split has a sharper test below; reading every token of the vocabulary from every state takes long.
COSTLY = [("full", "streaming"), ("lora", "streaming"), ("lora", "normalised")]


@pytest.mark.parametrize(
    ("form", "law"),
    [
        pytest.param(form, law, marks=[pytest.mark.slow] if (form, law) in COSTLY else [])
        for form in ("full", "lora")
        for law in laws.LAWS
    ],
)
def test_keeps_the_laws_while_it_learns(form: str, law: str) -> None:
    """With a context that ends inside of the laws' texts."""
    family = "tiny-gpt2" if form == "lora" else "tiny-llama"
    method = built(backbones.load(family, device="cpu"), context=70, epochs=1, **FORMS[form])
    laws.LAWS[law](method)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scored", [True, False])
def test_what_is_learned_is_bitwise_the_same_at_every_split(backbone: Backbone, form: str, scored: bool) -> None:
    method, tokens = built(backbone, **FORMS[form]), text(75)
    whole = method.read(method.start(ahead=Lengths(60)), tokens, logprobs=scored)
    for split in (0, 1, 31, 32, 59, 60, 61, 74):
        state, first = method.read(method.start(ahead=Lengths(60)), tokens[:, :split], logprobs=scored)
        state, second = method.read(state, tokens[:, split:], logprobs=scored)
        for name, tensor in state.tensors().items():
            if name.startswith("weights"):
                assert torch.equal(tensor, whole[0].tensors()[name]), (split, name)
        if first is not None and second is not None and whole[1] is not None:
            torch.testing.assert_close(torch.cat((first, second), dim=1), whole[1], atol=1e-4, rtol=1e-4)


def test_a_context_is_predicted_before_it_is_learned(backbone: Backbone) -> None:
    tokens = text(50)
    window = read(Window(backbone, WindowConfig(N=32)), tokens)[1]
    assert torch.equal(read(built(backbone), tokens, Lengths(50))[1], window)
    assert torch.equal(read(built(backbone), tokens)[1], window)


def test_nothing_stays_of_a_context_but_weights(backbone: Backbone) -> None:
    state = learned(built(backbone), text(60, rows=2))
    assert state.kv.slots == 0
    assert state.tokens_BN.shape == (2, 0)
    assert state.length_B.tolist() == [60, 60]
    unchanged = learned(built(backbone, lr=0), text(60))
    question = text(20, seed=3)
    closed = ClosedBook(backbone)
    expected = closed.read(closed.start(), question)[1]
    torch.testing.assert_close(built(backbone, lr=0).read(unchanged, question)[1], expected)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_learned_helps_to_predict_this_context_and_no_other(backbone: Backbone, form: str) -> None:
    settings = {**FORMS[form], "epochs": 12, "held_back": 0.0}
    method, own, other = built(backbone, **settings), text(64), text(64, seed=1)
    state = learned(method, own)
    before = read(built(backbone, lr=0), own[:, :32])[1].mean()
    gains = [method.read(state, tokens[:, :32])[1].mean() for tokens in (own, other)]  # type: ignore[union-attr]
    assert gains[0] > before + 0.1
    assert gains[0] > gains[1] + 0.1


def test_rows_have_weights_of_their_own_bitwise(backbone: Backbone) -> None:
    method, tokens = built(backbone, context=40), text(60, rows=3)
    lengths = torch.tensor([60, 12, 40])
    together, logprobs = method.read(method.start(3), tokens, lengths)
    assert logprobs is not None
    for row, length in enumerate(lengths.tolist()):
        alone, expected = method.read(method.start(), tokens[row : row + 1, :length])
        assert expected is not None
        assert torch.equal(logprobs[row, :length], expected[0])
        for mine, other in zip(together.weights, alone.weights, strict=True):
            assert torch.equal(mine[row], other[0])
    assert together.open_B.tolist() == [False, True, False]
    assert together.tokens_BN.shape == (3, 12)


def test_a_state_without_a_context_holds_no_copy_of_the_weights(backbone: Backbone) -> None:
    method = built(backbone)
    state = method.read(method.start(4), text(20, rows=4))[0]
    assert state.nbytes > 4 * sum(w.nbytes for w in method.model.trained)
    assert storage_bytes(state.weights) == storage_bytes(dict(backbone.model.named_parameters()).values())


def test_a_low_rank_update_is_all_that_learns_and_all_that_is_kept(llama: Backbone) -> None:
    method = built(llama, what="lora", rank=3)
    state = learned(method, text(64))
    # Queries and outputs map 32 to 32, keys and values 32 to 16.
    numbers = 4 * 3 * (2 * (32 + 32) + 2 * (32 + 16))
    assert sum(w.numel() for w in state.weights) == numbers
    assert sum(w.numel() for w in learned(built(llama, what="lora", rank=3, targets="all"), text(40)).weights) > numbers
    assert not any("lora" in name for name, _ in llama.model.named_parameters())


def test_alpha_scales_the_update(llama: Backbone) -> None:
    """A step of SGD moves B by lr alpha / r of the gradient, which counts alpha / r: four times as much for two."""
    plain = learned(built(llama, lr=0), text(40))
    tokens, settings = text(8, seed=2), {"what": "lora", "rank": 2, "rule": "sgd", "epochs": 1, "lr": 1e-3}
    before = built(llama, lr=0).read(plain, tokens)[1]
    moved = []
    for alpha in (2, 4):
        method = built(llama, alpha=alpha, **settings)
        moved.append(method.read(learned(method, text(40)), tokens)[1] - before)
    torch.testing.assert_close(moved[1], 4 * moved[0], rtol=0.1, atol=1e-4)


def test_early_stopping_keeps_the_best_epoch_and_may_keep_none(llama: Backbone) -> None:
    tokens = text(32 * 5 + 1)
    stopping = built(llama, lr=0.05, epochs=30, held_back=0.2, patience=2)
    state = learned(stopping, tokens)
    # Random tokens teach nothing about other random tokens.
    for w, trained in zip(state.weights, stopping.model.trained, strict=True):
        assert torch.equal(w[0], trained)
    repeated = text(16).repeat(1, 11)
    useful = built(llama, lr=3e-3, epochs=6, held_back=0.2)
    moved = learned(useful, repeated)
    assert any(bool((w[0] != trained).any()) for w, trained in zip(moved.weights, useful.model.trained, strict=True))


@pytest.mark.parametrize(("rule", "lr", "epochs"), [("adam", 0.02, 12), ("sgd", 2.0, 5)])
def test_what_is_kept_has_the_lowest_loss_of_all_epochs(
    llama: Backbone, rule: str, lr: float, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where later epochs have changed the weights further."""
    losses = []
    loss = Fit.loss

    def recorded(fit: Fit, *arguments: Any) -> float:
        losses.append(loss(fit, *arguments))
        return losses[-1]

    monkeypatch.setattr(Fit, "loss", recorded)
    method = built(llama, rule=rule, lr=lr, epochs=epochs, patience=epochs, held_back=0.2)
    # Few kinds of tokens in no order: how often each occurs is soon learned, and the rest is by heart.
    blocks = blocks_of(text(176) % 8, torch.ones(176, dtype=torch.bool), 32)
    kept = method.fit(blocks)
    assert 0 < losses.index(min(losses)) < len(losses) - 1
    held = divided(blocks, 0.2, random.Random(0))[1]
    assert loss(method.fit, kept, held) == min(losses)


def test_patience_limits_what_is_spent(llama: Backbone) -> None:
    tokens = text(32 * 5 + 1)

    def flops(**settings: Any) -> int:
        method = built(llama, lr=0.05, held_back=0.2, **settings)
        return count(lambda: learned(method, tokens))[1]

    assert flops(epochs=30, patience=2) < flops(epochs=4, patience=30)


def test_a_context_costs_three_forward_passes_an_epoch(llama: Backbone) -> None:
    _ = llama.bos_hidden_C
    tokens = text(97)
    triangle = 32 * 33 // 2
    forward = llama.layers * llama_block_flops(96, 3 * triangle, llama.config) + 2 * 96 * llama.width * llama.vocab_size
    cost = count(lambda: learned(built(llama, epochs=5), tokens))[1]
    assert cost == pytest.approx(5 * 3 * forward, rel=0.06)


def test_the_ledger_counts_it_where_the_context_is_read(llama: Backbone) -> None:
    method, context = built(llama, epochs=3), text(64)[0].tolist()
    meter = Meter(method, Ledger("cpu"))
    state = contextualize(meter, context, Lengths(64, 5))
    meter.score("query", state, [[1, 2, 3, 4, 5]])
    costs = meter.take()["cost"]
    assert costs["contextualize"]["flops"] > 30 * costs["query"]["flops"]
    assert costs["contextualize"]["tokens"] == 64


@pytest.mark.parametrize("form", ["full", "some", "lora"])
def test_products_and_watch_count_the_same(backbone: Backbone, form: str) -> None:
    method, tokens = built(backbone, **FORMS[form]), text(60)
    state = method.start(ahead=Lengths(50))
    with ProductCounter() as products:
        method.read(state, tokens)
    assert count(lambda: method.read(state, tokens))[1] == products.flops


def test_answers_alone_are_learned(llama: Backbone) -> None:
    shown = "Input: good\nOutput: yes\n\nInput: bad\nOutput: no\n\n"
    tokens = torch.tensor([llama.encode(shown)])
    method = built(llama, form="sft", N=64, epochs=1, rule="sgd", lr=0.1)
    state = learned(method, tokens)
    model = copy.deepcopy(llama.model).requires_grad_()
    logits = model(tokens[:, :-1]).logits[0].float()
    losses = nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
    answers = [shown.index(" yes") + i for i in range(4)] + [shown.index(" no") + i for i in range(3)]
    losses[torch.tensor(answers) - 1].mean().backward()
    for name, w, trained in zip(method.model.names, state.weights, method.model.trained, strict=True):
        expected = trained - 0.1 * model.get_parameter(name).grad
        torch.testing.assert_close(w[0], expected, atol=1e-5, rtol=1e-4)


def test_scores_follow_a_context_that_ends_inside_a_candidate(backbone: Backbone) -> None:
    method = built(backbone, context=40)
    for length in (20, 40, 50):
        state = method.read(method.start(2), text(length, rows=2))[0]
        candidates = [text(30, seed=3)[0].tolist(), [7], []]
        expected = ContextMethod.score(method, state, candidates)
        torch.testing.assert_close(method.score(state, candidates), expected, atol=1e-4, rtol=1e-4)


def test_sampling_behind_one_context_draws_other_tokens_for_every_prompt(llama: Backbone) -> None:
    method = built(llama)
    written = method.generate(learned(method, text(40)), [[3]] * 4, max_new_tokens=6, temperature=1.0)
    assert len({tuple(answer) for answer in written}) > 1


@pytest.mark.parametrize("length", [0, 1, 2])
def test_contexts_of_a_few_tokens(backbone: Backbone, length: int) -> None:
    method = built(backbone)
    state = learned(method, text(length))
    moved = any(bool((w[0] != own).any()) for w, own in zip(state.weights, method.model.trained, strict=True))
    assert moved == (length > 1)
    assert method.read(state, text(10))[1].isfinite().all()  # type: ignore[union-attr]


def test_reading_on_leaves_states_and_backbone_as_they_were(backbone: Backbone) -> None:
    method = built(backbone, context=40)
    check_reading_leaves(method, method.read(method.start(), text(30))[0], text(30, seed=1))


def test_narrow_backbones_learn_in_float32() -> None:
    narrow = backbones.load("tiny-llama", device="cpu", dtype="bfloat16")
    for what in ("full", "lora"):
        method = built(narrow, what=what)
        state = learned(method, text(50))
        assert {w.dtype for w in state.weights} == {torch.float32}
        assert method.read(state, text(20))[1].isfinite().all()  # type: ignore[union-attr]


def test_divergence_is_one_sentence(llama: Backbone) -> None:
    with pytest.raises(UserError, match="diverged: its loss is not finite; use a smaller lr than 1e"):
        learned(built(llama, lr=1e30, rule="sgd", epochs=4), text(64))


def test_what_cannot_be_learned_is_one_sentence(llama: Backbone) -> None:
    with pytest.raises(UserError, match="No answer after the text 'Output:' is in this context"):
        learned(built(llama, form="sft"), text(40))
    with torch.inference_mode(), pytest.raises(UserError, match=r"outside of torch\.inference_mode"):
        learned(built(llama), text(40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"N": 500}, "use N=128"),
        ({"block": 500}, "use block=128"),
        ({"form": "sft", "answer": ""}, "answer=Output:"),
        ({"parameters": "*.none"}, "matches nothing"),
        ({"what": "lora", "rank": 33}, "at most 32"),
    ],
)
def test_settings_that_do_not_fit(llama: Backbone, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("*", r"\*")):
        Finetune(llama, FinetuneConfig.parse(settings))


def test_rates_follow_what_learns() -> None:
    assert FinetuneConfig().lr == 1e-5
    assert FinetuneConfig(what="lora").lr == 1e-4
    assert functools.partial(FinetuneConfig, lr=0.5)().lr == 0.5
