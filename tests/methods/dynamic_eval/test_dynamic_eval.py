from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.flops import count
from contextlab.accounting.memory import storage_bytes
from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.dynamic_eval import DynamicEval, DynamicEvalConfig, gradient_statistics
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing import laws

FAMILIES = ["tiny-llama", "tiny-gpt2"]
SMALL = {"N": 32, "segment": 16}


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def text(length: int, rows: int = 1, seed: int = 0) -> Any:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def make(backbone: Backbone, **settings: Any) -> Any:
    return DynamicEval(backbone, DynamicEvalConfig(**{**SMALL, "lr": 0.01, **settings}))


def read(method: Any, tokens: Tensor, **options: Any) -> Any:
    return method.read(method.start(len(tokens), **options), tokens)


def window(backbone: Backbone, tokens: Tensor) -> Any:
    return read(Window(backbone, WindowConfig(N=32)), tokens)[1]


def save_statistics(backbone: Backbone, folder: Path) -> Any:
    path = folder / "ms.safetensors"
    save_file(gradient_statistics(backbone, text(16, rows=4, seed=9).tolist()), path)
    return path


def oracle(backbone: Backbone, tokens: Tensor, optimiser_of: Any, cache: Any) -> Any:
    """The paper's loop on a copy of the model with an optimiser of torch; contexts of 32, segments of 16."""
    copied = backbones.wrap(copy.deepcopy(backbone.model))
    optimiser = optimiser_of([p for p in copied.model.parameters() if p.requires_grad])
    losses = []
    for begin in range(0, tokens.shape[1] - 1, 16):
        start = begin // 32 * 32
        if begin == start:
            kv = copied.empty_kv(1)
        segment, targets = tokens[:, begin : begin + 16], tokens[:, begin + 1 : begin + 17]
        position = torch.arange(begin - start, begin - start + segment.shape[1])[None]
        reader = CacheReader(copied, kv, Layout(position))
        logprobs = copied.logprobs(copied.forward(segment, position, reader)[:, : targets.shape[1]], targets)
        losses.append(logprobs.detach())
        if targets.shape[1] < 16:
            break
        optimiser.zero_grad()
        (-logprobs.mean()).backward()
        optimiser.step()
        with torch.no_grad():
            if cache == "recomputed":
                position = torch.arange(begin - start + 16)[None]
                reader = CacheReader(copied, copied.empty_kv(1), Layout(position))
                copied.forward(tokens[:, start : begin + 16], position, reader)
            grown = reader.grown(torch.tensor([16]))
        kv = KV(tuple(k.detach() for k in grown.k), tuple(v.detach() for v in grown.v), grown.used_B)
    return torch.cat(losses, dim=1), copied.model


@pytest.mark.parametrize("cache", ["stale", "recomputed"])
@pytest.mark.parametrize(
    ("settings", "optimiser_of"),
    [
        ({"rule": "sgd", "lr": 0.03}, lambda p: torch.optim.SGD(p, lr=0.03)),
        ({"lr": 1e-3, "eps": 1e-4}, lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-4)),
    ],
    ids=["sgd", "adam"],
)
def test_equals_an_optimiser_of_torch_on_a_copy_of_the_model(
    backbone: Backbone, settings: dict[str, float | str], optimiser_of: Callable[..., Any], cache: str
) -> None:
    tokens = text(90)
    method = make(backbone, cache=cache, **settings)
    state, logprobs = read(method, tokens)
    expected, model = oracle(backbone, tokens, optimiser_of, cache)
    torch.testing.assert_close(logprobs[:, 1:], expected, atol=1e-4, rtol=1e-4)
    assert state.steps_B.tolist() == [5]
    for name, weights in zip(method.model.names, state.learned.weights, strict=True):
        torch.testing.assert_close(weights[0], model.get_parameter(name), atol=1e-5, rtol=1e-4)
    assert (logprobs[:, 17:] - window(backbone, tokens)[:, 17:]).abs().max() > 1e-2


@pytest.fixture(params=["adam, tiny-llama", "adam, tiny-gpt2", "sgd, tiny-gpt2", "rms, tiny-llama"], scope="module")
def method(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    rule, family = request.param.split(", ")
    loaded = backbones.load(family)
    if rule == "sgd":
        return make(loaded, rule="sgd", lr=0.1, cache="recomputed")
    if rule == "rms":
        path = save_statistics(loaded, tmp_path_factory.mktemp("statistics"))
        return make(loaded, rule="rms", lr=1e-4, statistics=path, parameters="*.mlp.*")
    return make(loaded)


@pytest.mark.parametrize("law", ["score is pure", "forks", "normalised", "lengths", "determinism"])
def test_keeps_the_laws_while_it_learns(backbone: Backbone, law: str) -> None:
    """The other laws have sharper tests below."""
    laws.LAWS[law](make(backbone))


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("split", [0, 5, 16, 22, 54])
def test_what_is_learned_is_bitwise_the_same_at_every_split(method: Any, split: int, scored: bool) -> None:
    """With a first context of 22 tokens: boundaries at 16, 22, 38, 54 and 70."""
    tokens = text(80)
    whole, expected = read(method, tokens, ahead=Lengths(22))
    state, first = method.read(method.start(ahead=Lengths(22)), tokens[:, :split], logprobs=scored)
    state, second = method.read(state, tokens[:, split:])
    assert whole.steps_B.tolist() == [5]
    for field in ("length_B", "left_B", "fill_B", "steps_B", "tokens_BN", "loss_B"):
        assert torch.equal(getattr(state, field), getattr(whole, field)), field
    for mine, other in zip(state.learned.weights, whole.learned.weights, strict=True):
        assert torch.equal(mine, other)
    torch.testing.assert_close(second, expected[:, split:], atol=1e-4, rtol=1e-5)
    if scored:
        torch.testing.assert_close(first, expected[:, :split], atol=1e-4, rtol=1e-5)


def test_rows_may_be_split_at_different_places(method: Any) -> None:
    tokens = text(70, rows=4)
    expected = read(method, tokens)[1]
    lengths = torch.tensor([0, 16, 31, 45])
    state, _ = method.read(method.start(4), tokens, lengths)
    rest = torch.stack([tokens[row].roll(-int(n)) for row, n in enumerate(lengths)])
    logprobs = method.read(state, rest, 70 - lengths)[1]
    for row, n in enumerate(lengths.tolist()):
        torch.testing.assert_close(logprobs[row, : 70 - n], expected[row, n:], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("cut", [1, 16, 17, 32, 33, 60])
def test_later_targets_change_no_earlier_loss_bitwise(method: Any, cut: int) -> None:
    tokens, other = text(64), text(64)
    other[:, cut:] = (other[:, cut:] + 1) % 256
    assert torch.equal(read(method, tokens)[1][:, :cut], read(method, other)[1][:, :cut])


def test_nothing_is_learned_before_the_first_segment_is_complete(method: Any) -> None:
    """Token 16 completes the first segment; its own prediction is from before the update."""
    tokens = text(40)
    logprobs, plain = read(method, tokens)[1], window(method.backbone, tokens)
    torch.testing.assert_close(logprobs[:, :17], plain[:, :17], atol=1e-5, rtol=1e-5)
    assert (logprobs[:, 17:32] - plain[:, 17:32]).abs().max() > 1e-3


def test_a_segment_as_long_as_the_context_is_plain_within_the_first_context(backbone: Backbone) -> None:
    tokens = text(32)
    logprobs = read(make(backbone, segment=400), tokens)[1]
    torch.testing.assert_close(logprobs, window(backbone, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cache", ["stale", "recomputed"])
def test_without_a_rate_it_is_the_window_and_shares_all_weights(backbone: Backbone, cache: str) -> None:
    method = make(backbone, lr=0, cache=cache)
    tokens = text(80, rows=2)
    state, logprobs = read(method, tokens)
    torch.testing.assert_close(logprobs, window(backbone, tokens), atol=1e-5, rtol=1e-5)
    assert isinstance(method.baseline(), Window)
    assert method.baseline().local.segment == 32
    for held, own in zip(state.learned.weights, method.model.trained, strict=True):
        assert held.data_ptr() == own.data_ptr()
    assert make(backbone).baseline() is None


def test_learning_helps_on_a_text_that_repeats_itself(backbone: Backbone) -> None:
    tokens = text(32).repeat(1, 4)
    gain = (read(make(backbone, lr=3e-3), tokens)[1] - window(backbone, tokens)).mean(0)
    assert gain[96:].mean() > 0.5


def test_weights_last_over_contexts_and_a_new_state_has_the_trained_ones(backbone: Backbone) -> None:
    method, tokens = make(backbone), text(60)
    first = read(method, tokens)[1]
    other = tokens.clone()
    other[:, :10] = text(10, seed=5)
    assert (read(method, other)[1][:, 40:] - first[:, 40:]).abs().max() > 1e-3
    assert torch.equal(read(method, tokens)[1], first)


def test_rows_have_weights_of_their_own_bitwise(method: Any) -> None:
    tokens, lengths = text(50, rows=3), torch.tensor([50, 9, 33])
    together, logprobs = method.read(method.start(3), tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, alone_logprobs = read(method, tokens[row : row + 1, :length])
        assert torch.equal(logprobs[row, :length], alone_logprobs[0])
        for mine, other in zip(together.learned.weights, alone.learned.weights, strict=True):
            assert torch.equal(mine[row], other[0])
    assert together.steps_B.tolist() == [3, 0, 2]


def test_an_unchanged_state_holds_no_copy_of_the_weights(backbone: Backbone) -> None:
    method = make(backbone)
    own = sum(w.nbytes for w in method.model.trained)
    for rows in (1, 5):
        state = method.read(method.start(rows), text(10, rows=rows))[0]
        state = method.read(state, text(5, rows=rows))[0]
        assert state.nbytes > 3 * rows * own
        assert storage_bytes(state.learned.weights) == storage_bytes(dict(backbone.model.named_parameters()).values())
        assert storage_bytes((*state.learned.m, *state.learned.v)) < 1000


def test_reading_on_leaves_the_first_state_as_it_was(method: Any) -> None:
    state, _ = read(method, text(40))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    method.read(state, text(40, seed=1))
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, before[name]), name
        assert not tensor.requires_grad
        assert tensor.grad_fn is None


def test_only_chosen_parameters_are_held(backbone: Backbone) -> None:
    some = make(backbone, parameters="*.mlp.*")
    held = sum(w.numel() for w in some.start().learned.weights)
    assert held == sum(p.numel() for n, p in backbone.model.named_parameters() if ".mlp." in n)
    assert len(make(backbone, rule="sgd", lr=0.1).start().learned.m) == 0


@pytest.mark.parametrize("read_before", [5, 16, 32])
def test_scores_follow_every_update_inside_a_candidate(method: Any, read_before: int) -> None:
    state, _ = read(method, text(read_before, rows=2))
    candidates = [text(30, seed=3)[0].tolist(), [7], [], text(17, seed=4)[0].tolist()]
    expected = ContextMethod.score(method, state, candidates)
    torch.testing.assert_close(method.score(state, candidates), expected, atol=1e-4, rtol=1e-5)


def test_a_saved_state_goes_on_bitwise(method: Any, tmp_path: Path) -> None:
    state, _ = read(method, text(45, rows=2))
    state.save(tmp_path / "state.safetensors")
    loaded = method.load_state(tmp_path / "state.safetensors")
    future = text(40, rows=2, seed=8)
    assert torch.equal(method.read(loaded, future)[1], method.read(state, future)[1])


def test_reading_without_scores_learns_the_same(method: Any) -> None:
    tokens = text(70)
    scored, silent = read(method, tokens)[0], method.read(method.start(), tokens, logprobs=False)[0]
    for mine, other in zip(scored.tensors().values(), silent.tensors().values(), strict=True):
        assert torch.equal(mine, other)


def test_a_backward_pass_costs_two_forward_passes(backbone: Backbone) -> None:
    method, plain = make(backbone), make(backbone, lr=0)
    tokens = text(48)
    state, cold = method.start(), plain.start()
    learning, reading = (count(lambda m=m, s=s: m.read(s, tokens))[1] for m, s in ((method, state), (plain, cold)))
    learned = count(lambda: plain.read(cold, tokens[:, :32]))[1]
    assert learning - reading == pytest.approx(2 * learned, rel=0.02)


def test_capabilities(backbone: Backbone) -> None:
    capabilities = make(backbone).capabilities
    assert capabilities.needs_gradients
    assert capabilities.exact_streaming
    assert capabilities.segment == 32


@pytest.mark.parametrize("rate", [3.0, 1e20])
def test_divergence_is_reported(backbone: Backbone, rate: float) -> None:
    method = make(backbone, lr=rate, rule="sgd")
    with pytest.raises(UserError, match="diverged after"):
        read(method, text(32).repeat(1, 20))


def test_a_row_that_diverges_ends_alone(backbone: Backbone) -> None:
    method = make(backbone, lr=1e20, rule="sgd")
    state, together = method.read(method.start(2), text(640).repeat(2, 1), torch.tensor([640, 5]))
    assert together[0].isnan().all()
    assert torch.equal(together[1, :5], read(method, text(640)[:, :5])[1][0])
    state, later = method.read(state, text(3).repeat(2, 1))
    assert later[0].isnan().all()
    assert later[1].isfinite().all()
    assert state.length_B.tolist() == [643, 8]


def test_a_text_that_gets_harder_is_no_divergence(backbone: Backbone) -> None:
    easy = torch.full((1, 160), 7)
    logprobs = read(make(backbone, lr=1e-5), torch.cat((easy, text(160)), dim=1))[1]
    assert logprobs.isfinite().all()
    assert logprobs[:, 160:].mean() < logprobs[:, 80:160].mean() - 0.5


def test_inference_mode_is_refused(backbone: Backbone) -> None:
    method = make(backbone)
    with torch.inference_mode(), pytest.raises(UserError, match=r"outside of torch\.inference_mode"):
        read(method, text(5))


def test_statistics_must_be_there_and_fit(backbone: Backbone, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no statistics file"):
        make(backbone, rule="rms", statistics=tmp_path / "none.safetensors")
    save_file({"other": torch.zeros(3)}, tmp_path / "other.safetensors")
    (tmp_path / "no.safetensors").write_text("not tensors")
    for name in ("other", "no"):
        with pytest.raises(UserError, match=r"does not fit|cannot be read"):
            make(backbone, rule="rms", statistics=tmp_path / f"{name}.safetensors")


def test_narrow_backbones_learn_too() -> None:
    narrow = backbones.load("tiny-llama", dtype="bfloat16")
    state, logprobs = read(make(narrow, lr=1e-5), text(50))
    assert logprobs.isfinite().all()
    assert {w.dtype for w in state.learned.weights} == {torch.float32}
    moved = sum(
        bool((w[0] != own).any()) for w, own in zip(state.learned.weights, narrow.model.parameters(), strict=True)
    )
    assert moved == len(state.learned.weights)


def test_prompts_behind_one_row_are_continued_with_what_it_has_learned(method: Any) -> None:
    state, _ = read(method, text(40))
    assert int(state.steps_B) > 0
    prompts = [[3, 5], [7], [11, 2, 4]]
    expected = method.generate(state.fork(len(prompts)), prompts, max_new_tokens=5)
    assert method.generate(state, prompts, max_new_tokens=5) == expected
