"""Cartridges against gradients of transformers, against peft, and as a state machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache
from unchanged import check_reading_leaves

from contextlab import backbone as backbones
from contextlab.accounting.flops import count
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.accounting.products import ProductCounter
from contextlab.attention import KV
from contextlab.backbone import Backbone
from contextlab.benchmarks.protocols.spans import contextualize
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.cartridge import Cartridge, CartridgeConfig
from contextlab.methods.cartridge.fit import Lesson
from contextlab.methods.full import Full
from contextlab.methods.parts.rules import SGD
from contextlab.methods.sliding import Sliding, SlidingConfig

SMALL: dict[str, Any] = {"p": 12, "N": 40, "chunk": 30, "study": 2, "study_tokens": 8, "steps": 3, "batch": 3}
OBJECTIVES = ("self-study", "lm")


@pytest.fixture(params=["tiny-llama", "tiny-gpt2"], scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def built(backbone: Backbone, **settings: Any) -> Cartridge:
    return Cartridge(backbone, CartridgeConfig.parse({**SMALL, **settings}))


def text(length: int, *, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def learned(method: Cartridge, tokens_BT: Tensor) -> Any:
    rows, length = tokens_BT.shape
    return method.read(method.start(rows, ahead=Lengths(length, 9)), tokens_BT, logprobs=False)[0]


def numbers(kv: KV) -> list[Tensor]:
    return [*kv.k, *kv.v]


def own_cache(backbone: Backbone, tokens_1T: Tensor) -> list[Tensor]:
    """Keys of every layer, then values, by transformers alone."""
    with torch.no_grad():
        cache = backbone.model(tokens_1T, use_cache=True).past_key_values
    return [layer.keys for layer in cache.layers] + [layer.values for layer in cache.layers]


def own_logprobs(backbone: Backbone, cached: list[Tensor], tokens_1T: Tensor) -> Tensor:
    """`logprobs_tV` after every token of a text that follows a cache, by transformers alone."""
    half = len(cached) // 2
    cache = DynamicCache(config=backbone.model.config)
    for layer in range(half):
        cache.update(cached[layer], cached[half + layer], layer)
    positions_1T = cached[0].shape[2] + torch.arange(tokens_1T.shape[1])[None]
    logits = backbone.model(tokens_1T, past_key_values=cache, position_ids=positions_1T).logits
    return logits[0].float().log_softmax(-1)


def test_it_begins_with_the_cache_of_the_first_tokens(backbone: Backbone) -> None:
    tokens = text(70)
    state = learned(built(backbone, lr=0), tokens)
    for cached, expected in zip(numbers(state.kv), own_cache(backbone, tokens[:, :12]), strict=True):
        torch.testing.assert_close(cached, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_step_follows_the_gradient_that_transformers_gives(backbone: Backbone, objective: str) -> None:
    tokens = text(70)
    method = built(backbone, objective=objective, steps=1, batch=100, k=10_000)
    method.fit.rule = SGD(0.1)  # type: ignore[assignment]
    lessons = method.fit._lessons(tokens)
    begin = own_cache(backbone, tokens[:, :12])
    leaves = [x[:, :, 1:].clone().requires_grad_() for x in begin]
    cached = [torch.cat((x[:, :, :1], leaf), dim=2) for x, leaf in zip(begin, leaves, strict=True)]
    losses = []
    for number, lesson in enumerate(lessons):
        studied = torch.tensor([lesson.tokens])
        student_tV = own_logprobs(backbone, cached, studied[:, :-1])
        if objective == "lm":
            losses.append(cross_entropy(student_tV, studied[0, 1:], reduction="none"))
            continue
        chunk = tokens.tensor_split([23, 46], dim=1)[number // 2]
        with torch.no_grad():
            whole = torch.cat((chunk, studied[:, :-1]), dim=1)
            teacher_tV = backbone.model(whole).logits[0, chunk.shape[1] :].float().softmax(-1)
        losses.append(-(teacher_tV * student_tV).sum(-1))
    gradients = torch.autograd.grad(torch.cat(losses).mean(), leaves)
    trained = numbers(learned(method, tokens).kv)
    assert any(bool(gradient.abs().max() > 1e-4) for gradient in gradients)
    for x, before, gradient in zip(trained, begin, gradients, strict=True):
        torch.testing.assert_close(x[:, :, 1:], before[:, :, 1:] - 0.1 * gradient, atol=2e-6, rtol=1e-4)
        torch.testing.assert_close(x[:, :, :1], before[:, :, :1], atol=1e-6, rtol=1e-5)


def test_texts_of_self_study_are_written_after_their_chunk(llama: Backbone) -> None:
    tokens, method = text(45), built(llama, chunk=45)
    full = Full(llama)
    state = full.read(full.start(), tokens)[0]
    written = full.generate(state, [[], []], max_new_tokens=8, temperature=1.0, seed=0)
    lessons = method.fit._lessons(tokens)
    assert [lesson.tokens for lesson in lessons] == written
    for lesson in lessons:
        after = full.read(state, torch.tensor([lesson.tokens[:1]]))[0]
        assert lesson.logprobs_Nk is not None
        torch.testing.assert_close(lesson.logprobs_Nk[0], full.next_logprobs(after)[0].topk(64).values)
    other = built(llama, chunk=45, seed=1).fit._lessons(tokens)
    assert [lesson.tokens for lesson in other] != written


def test_tokens_of_the_context_are_each_learned_once_with_lm(llama: Backbone) -> None:
    tokens = torch.arange(70)[None]
    lessons: list[Lesson] = built(llama, objective="lm").fit._lessons(tokens)
    assert [token for lesson in lessons for token in lesson.tokens[1:]] == list(range(1, 70))
    assert max(len(lesson.tokens) for lesson in lessons) <= 31


@pytest.mark.parametrize("length", [0, 1, 12])
def test_a_cartridge_with_room_for_the_context_is_its_prompt(backbone: Backbone, length: int) -> None:
    tokens, after = text(length), text(20, seed=2)
    full = Full(backbone)
    expected = full.read(full.read(full.start(), tokens)[0], after)[1]
    assert expected is not None
    method = built(backbone)
    state = learned(method, tokens)
    assert state.kv.used_B.tolist() == [length]
    logprobs = method.read(state, after)[1]
    assert logprobs is not None
    torch.testing.assert_close(logprobs[:, 1:], expected[:, 1:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_token_more_is_trained(llama: Backbone, objective: str) -> None:
    begin, state = (learned(built(llama, objective=objective, lr=lr), text(13)) for lr in (0, 0.02))
    for x, y in zip(numbers(state.kv), numbers(begin.kv), strict=True):
        assert torch.equal(x[:, :, :1], y[:, :, :1])
        assert not torch.equal(x[:, :, 1:], y[:, :, 1:])
    assert built(llama, objective=objective).read(state, text(100))[1].isfinite().all()  # type: ignore[union-attr]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_division_of_a_text_trains_bitwise_the_same(backbone: Backbone, objective: str) -> None:
    method, tokens = built(backbone, objective=objective, context=50), text(60)
    whole = method.read(method.start(), tokens)
    for split, logprobs in ((0, True), (5, False), (13, True), (49, False), (50, True), (51, False)):
        state = method.read(method.start(), tokens[:, :split], logprobs=logprobs)[0]
        state, second = method.read(state, tokens[:, split:])
        cartridges = zip(numbers(state.kv), numbers(whole[0].kv), strict=True)
        assert all(torch.equal(x[:, :, :12], y[:, :, :12]) for x, y in cartridges), split
        assert second is not None
        torch.testing.assert_close(second, whole[1][:, split:], atol=1e-4, rtol=1e-4)  # type: ignore[index]


def test_rows_are_trained_alone_bitwise(backbone: Backbone) -> None:
    method, tokens = built(backbone, context=40), text(60, rows=4)
    lengths = torch.tensor([60, 12, 40, 0])
    together, logprobs = method.read(method.start(4), tokens, lengths)
    assert logprobs is not None
    for row, length in enumerate(lengths.tolist()):
        alone = method.read(method.start(), tokens[row : row + 1, :length])[0]
        if length >= 40:
            pairs = zip(numbers(together.kv), numbers(alone.kv), strict=True)
            assert all(torch.equal(x[row, :, :12], y[0, :, :12]) for x, y in pairs)
        after = text(10, seed=row)
        expected = method.read(alone, after)[1]
        torch.testing.assert_close(method.read(together.row(row), after)[1], expected, atol=1e-4, rtol=1e-4)
    assert together.open_B.tolist() == [False, True, False, True]
    assert together.tokens_BN.shape == (4, 12)


def test_a_context_is_read_by_windows_after_its_first_tokens_until_it_ends(backbone: Backbone) -> None:
    """The segments of a context end with it, so that the first one of 50 tokens has 10."""
    tokens = text(50)
    sliding = Sliding(backbone, SlidingConfig(N=40, sinks=12, recent=0))
    expected = sliding.read(sliding.start(ahead=Lengths(50)), tokens)[1]
    method = built(backbone)
    logprobs = method.read(method.start(ahead=Lengths(50, 3)), tokens)[1]
    torch.testing.assert_close(logprobs, expected)


def test_nothing_stays_of_a_context_but_the_cartridge(backbone: Backbone) -> None:
    method = built(backbone)
    state = learned(method, text(60, rows=2))
    assert state.kv.used_B.tolist() == [12, 12]
    assert state.tokens_BN.shape == (2, 0)
    assert state.nbytes == sum(x.nbytes for x in numbers(state.kv)) + state.pending_BC.nbytes + 8 * 2 * 4
    assert method.memory_alone(state) is state
    whole = text(90, seed=5)[0].tolist()
    bos = torch.tensor([[backbone.bos]])
    own_V = own_logprobs(backbone, [x[:1] for x in numbers(state.kv)], bos)[0]
    torch.testing.assert_close(method.next_logprobs(state)[0], own_V, atol=1e-4, rtol=1e-4)
    # At the end of a window the cartridge stays.
    on = method.read(state.row(0), torch.tensor([whole[:80]]))[0]
    for x, y in zip(numbers(on.kv), numbers(state.kv), strict=True):
        assert torch.equal(x[0], y[0])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_helps_to_predict_this_context_and_no_other(backbone: Backbone, objective: str) -> None:
    settings = {"objective": objective, "steps": 25, "study": 6, "batch": 12, "chunk": 20}
    method, own, other = built(backbone, **settings), text(40), text(40, seed=1)
    lessons = [method.fit._lessons(tokens) for tokens in (own, other)]
    before, after = (built(backbone, **settings, lr=lr).fit(own) for lr in (0, 0.02))

    def loss(cartridge: KV, number: int) -> float:
        with torch.no_grad():
            whole = method.fit._cache(cartridge, [x[:, :, 1:] for x in numbers(cartridge)], len(lessons[number]))
            return float(method.fit._loss(whole, lessons[number]))

    gains = [loss(before, number) - loss(after, number) for number in (0, 1)]
    assert gains[0] > 0.05
    assert gains[0] > gains[1]


def test_reading_on_leaves_states_and_backbone_as_they_were(backbone: Backbone) -> None:
    method = built(backbone, context=40)
    state = method.read(method.start(), text(30))[0]
    after = check_reading_leaves(method, state, text(30, seed=1))
    assert all(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not any(tensor.requires_grad for tensor in after.tensors().values())


def test_it_is_trained_where_a_caller_has_switched_gradients_off(llama: Backbone) -> None:
    method, tokens = built(llama), text(50)
    expected = numbers(learned(method, tokens).kv)
    with torch.inference_mode():
        state = learned(method, tokens.clone())
        method.score(state, [[1, 2]])
    assert all(map(torch.equal, expected, numbers(state.kv)))


def test_a_narrow_backbone_keeps_narrow_numbers() -> None:
    narrow = backbones.load("tiny-llama", device="cpu", dtype="bfloat16")
    method = built(narrow)
    state = learned(method, text(50))
    assert {x.dtype for x in numbers(state.kv)} == {torch.bfloat16}
    assert method.read(state, text(20))[1].isfinite().all()  # type: ignore[union-attr]
    begin = numbers(learned(built(narrow, lr=0), text(50)).kv)
    assert not any(torch.equal(x, y) for x, y in zip(numbers(state.kv), begin, strict=True))


def test_the_ledger_counts_training_where_the_context_is_read(llama: Backbone) -> None:
    method, context = built(llama), text(64)[0].tolist()
    meter = Meter(method, Ledger("cpu"))
    state = contextualize(meter, context, Lengths(64, 5))
    meter.score("query", state, [[1, 2, 3, 4, 5]])
    costs = meter.take()["cost"]
    assert costs["contextualize"]["flops"] > 10 * costs["query"]["flops"]
    assert costs["contextualize"]["tokens"] == 64
    full = Meter(Full(llama), Ledger("cpu"))
    full.score("query", contextualize(full, context[:12], Lengths(12, 5)), [[1, 2, 3, 4, 5]])
    assert costs["query"]["flops"] == full.take()["cost"]["query"]["flops"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_products_and_watch_count_the_same(backbone: Backbone, objective: str) -> None:
    method, tokens = built(backbone, objective=objective), text(60)
    state = method.start(ahead=Lengths(50))
    with ProductCounter() as products:
        method.read(state, tokens)
    assert count(lambda: method.read(state, tokens))[1] == products.flops


def test_pefts_cartridge_with_the_same_numbers_predicts_the_same(llama: Backbone) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    if not hasattr(peft, "CartridgeConfig"):
        pytest.skip("this peft has no cartridges")
    from peft.tuners.cartridge.utils import prompt_embeddings_from_past_key_values

    tokens, after = text(60), text(20, seed=2)
    method = built(llama)
    model = backbones.load("tiny-llama", device="cpu").model
    config = peft.CartridgeConfig(task_type="CAUSAL_LM", num_virtual_tokens=12, num_frozen_tokens=1)
    with torch.no_grad():
        prompt = model(tokens, use_cache=True).past_key_values
        begin = prompt_embeddings_from_past_key_values(
            [(layer.keys, layer.values) for layer in prompt.layers], num_virtual_tokens=12
        )
        theirs = peft.get_peft_model(model, config)
        encoder = theirs.prompt_encoder["default"]
        torch.testing.assert_close(flat(learned(built(llama, lr=0), tokens).kv), begin, atol=1e-5, rtol=1e-5)
        state = learned(method, tokens)
        encoder.load_prompt_embeddings(flat(state.kv))
        logits = theirs(input_ids=after, attention_mask=torch.ones_like(after)).logits[0, -20:]
    expected = logits[:-1].log_softmax(-1).gather(1, after[0, 1:, None])[:, 0]
    logprobs = method.read(state, after)[1]
    assert logprobs is not None
    torch.testing.assert_close(logprobs[0, 1:], expected, atol=1e-4, rtol=1e-4)


def flat(kv: KV) -> Tensor:
    """Keys and values in the order of peft: tokens, then layers with keys before values, then heads."""
    pairs = [x[0].transpose(0, 1) for pair in zip(kv.k, kv.v, strict=True) for x in pair]
    return torch.stack(pairs, dim=1).flatten(1)


def test_divergence_is_one_sentence(llama: Backbone) -> None:
    with pytest.raises(UserError, match="diverged: its numbers are not finite; use a smaller lr than 1e"):
        learned(built(llama, lr=1e30), text(50))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"N": 500}, "use N=116"),
        ({"p": 128}, "with objective=self-study: use a smaller p"),
        ({"chunk": 100, "study_tokens": 40}, "study_tokens=28"),
        ({"objective": "lm", "chunk": 120}, "chunk=116"),
        ({"frozen": 12}, "leaves nothing of 12 tokens to train: use a larger p"),
        ({"study_tokens": 1}, "study_tokens"),
        ({"objective": "qa"}, "objective"),
    ],
)
def test_settings_that_do_not_fit(llama: Backbone, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        built(llama, **settings)
