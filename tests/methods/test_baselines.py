from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab.attention import CacheReader, Layout
from contextlab.backbone import load
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.full import Full
from contextlab.methods.parts import branches
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.window import Window, WindowConfig

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


def text(length: int, rows: int = 1, seed: int = 0) -> Any:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def read(method: Any, tokens: Tensor) -> Any:
    logprobs = method.read(method.start(len(tokens)), tokens)[1]
    assert logprobs is not None
    return logprobs


def plain(backbone: Backbone, tokens: Tensor) -> Any:
    """Log-probabilities of all tokens but the first, by the model's own forward pass."""
    with torch.no_grad():
        scores = backbone.model(tokens).logits[:, :-1].log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None])[..., 0]


def test_full_equals_the_model_itself(backbone: Backbone) -> None:
    tokens = text(120, rows=2)
    torch.testing.assert_close(read(Full(backbone), tokens)[:, 1:], plain(backbone, tokens), atol=1e-5, rtol=1e-5)


def test_full_starts_anew_where_the_positions_end(backbone: Backbone) -> None:
    tokens = text(200)
    logprobs = read(Full(backbone), tokens)
    torch.testing.assert_close(logprobs[:, 129:], plain(backbone, tokens[:, 128:]), atol=1e-5, rtol=1e-5)


def test_window_equals_the_model_on_every_window_alone(backbone: Backbone) -> None:
    tokens = text(100)
    logprobs = read(Window(backbone, WindowConfig(N=32)), tokens)
    for begin in range(0, 100, 32):
        piece = tokens[:, begin : begin + 32]
        torch.testing.assert_close(logprobs[:, begin + 1 : begin + 32], plain(backbone, piece), atol=1e-5, rtol=1e-5)


def test_the_first_token_of_a_window_is_predicted_from_the_window_before(backbone: Backbone) -> None:
    tokens = text(33)
    logprobs = read(Window(backbone, WindowConfig(N=32)), tokens)
    torch.testing.assert_close(logprobs[0, 32], plain(backbone, tokens)[0, 31])


def test_what_is_ahead_places_the_boundaries(backbone: Backbone) -> None:
    tokens = text(60)
    method = Window(backbone, WindowConfig(N=32))
    _, logprobs = method.read(method.start(ahead=Lengths(10)), tokens)
    assert logprobs is not None
    torch.testing.assert_close(logprobs[:, 11:42], plain(backbone, tokens[:, 10:42]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", [Full, Window, Sliding, Sinks])
def test_within_the_first_window_all_methods_are_full_attention(backbone: Backbone, method: type[Any]) -> None:
    tokens = text(60)
    torch.testing.assert_close(read(method(backbone), tokens)[:, 1:], plain(backbone, tokens), atol=1e-5, rtol=1e-5)


def test_two_windows_of_sliding_are_full_attention() -> None:
    backbone = load("tiny-llama")
    tokens = text(64)
    logprobs = read(Sliding(backbone, SlidingConfig(N=32)), tokens)
    torch.testing.assert_close(logprobs, read(Full(backbone), tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sinks", [0, 3])
def test_sliding_by_hand(sinks: int) -> None:
    """Every window attends to cached states of the sinks and of the window before, at their slots."""
    backbone = load("tiny-llama")
    tokens = text(90, seed=3)
    method = Sliding(backbone, SlidingConfig(N=20, sinks=sinks))
    kv, pending, pieces = backbone.empty_kv(1), backbone.bos_hidden_C[None], []
    for begin in range(0, 90, 20):
        piece = tokens[:, begin : begin + 20]
        position = kv.used_B[:, None] + torch.arange(piece.shape[1])
        reader = CacheReader(backbone, kv, Layout(position))
        with torch.no_grad():
            hidden = backbone.forward(piece, position, reader)
        pieces.append(backbone.logprobs(torch.cat((pending[:, None], hidden[:, :-1]), 1), piece))
        kv, pending = reader.grown(torch.tensor([piece.shape[1]])), hidden[:, -1]
        kv = kv.keep(sinks, 20, torch.tensor([True]), backbone)
    torch.testing.assert_close(read(method, tokens), torch.cat(pieces, 1).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sinks", [0, 2])
def test_sinks_equals_streaming_token_by_token(sinks: int) -> None:
    """A cache of sinks and recent keys without positions, rotated to their slots, one token at a time."""
    backbone = load("tiny-qwen2")
    tokens = text(70, seed=4)
    recent = 17
    kv, pending, pieces = backbone.empty_kv(1), backbone.bos_hidden_C[None], []
    for t in range(70):
        token = tokens[:, t : t + 1]
        pieces.append(backbone.logprobs(pending[:, None], token)[0, 0])
        kv = kv.keep(sinks, recent - 1, torch.tensor([True]), backbone)
        reader = CacheReader(backbone, kv, Layout(kv.used_B[:, None]))
        with torch.no_grad():
            pending = backbone.forward(token, kv.used_B[:, None], reader)[:, 0]
        kv = reader.grown(torch.tensor([1]))
    ours = read(Sinks(backbone, SinksConfig(sinks=sinks, recent=recent)), tokens)[0]
    torch.testing.assert_close(ours, torch.stack(pieces).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", range(94, 103))
def test_what_is_written_beside_others_is_what_is_written_alone_where_the_cache_of_sinks_becomes_full(
    length: int,
) -> None:
    backbone = load("tiny-llama", dtype="float64")
    method = Sinks(backbone, SinksConfig(sinks=2, recent=100))
    state, _ = method.read(method.start(), text(length))
    prompts = [text(3, seed=seed)[0].tolist() for seed in (1, 2)]
    written = method.generate(state, prompts, max_new_tokens=30)
    assert written == [method.generate(state, [prompt], max_new_tokens=30)[0] for prompt in prompts]


def test_far_tokens_reach_each_method_as_far_as_it_says() -> None:
    backbone = load("tiny-llama")
    methods = {
        "full": (Full(backbone), 127),
        "window": (Window(backbone, WindowConfig(N=32)), 31),
    }
    for method, reach in methods.values():
        tokens = text(128)
        changed = tokens.clone()
        changed[:, 0] = (changed[:, 0] + 1) % 256
        moved = (read(method, tokens) - read(method, changed)).abs()[0] > 0
        assert int(moved.nonzero().max()) >= reach - 1
        assert not moved[reach + 2 :].any()


def test_contexts_that_are_not_scored_skip_windows_that_leave_nothing(backbone: Backbone) -> None:
    method = Window(backbone, WindowConfig(N=32))
    tokens, tail = text(100), text(20, seed=9)
    scored, _ = method.read(method.start(), tokens)
    silent, nothing = method.read(method.start(), tokens, logprobs=False)
    assert nothing is None
    assert silent.nbytes == scored.nbytes
    torch.testing.assert_close(method.read(silent, tail)[1], method.read(scored, tail)[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", [Full, Window, Sliding, Sinks])
def test_candidates_in_one_pass_equal_forks(backbone: Backbone, method: type[Any]) -> None:
    baseline = method(backbone)
    candidates = [[1, 2, 3, 4], [9], [7, 8]]
    for length in (0, 50, 61, 126, 200):
        state, _ = baseline.read(baseline.start(2), text(length, rows=2), torch.tensor([length, length // 2]))
        torch.testing.assert_close(
            baseline.score(state, candidates), ContextMethod.score(baseline, state, candidates), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("most", [1, 7, 20])
def test_how_many_lie_side_by_side_does_not_matter(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    method = Full(backbone)
    state, _ = method.read(method.start(), text(30))
    candidates = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]
    scores, written = method.score(state, candidates), method.generate(state, candidates, max_new_tokens=4)
    monkeypatch.setattr(branches, "AT_ONCE", most)
    torch.testing.assert_close(method.score(state, candidates), scores, atol=1e-5, rtol=1e-5)
    assert method.generate(state, candidates, max_new_tokens=4) == written


def test_the_last_token_written_needs_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that was placed for a question and an answer holds both side by side with others."""
    method, prompts = Window(load("tiny-llama"), WindowConfig(N=32)), [[1, 2, 3, 4], [5]]
    state, _ = method.read(method.start(ahead=Lengths(20, 6)), text(20))
    expected = [method.generate(state, [prompt], max_new_tokens=3)[0] for prompt in prompts]
    monkeypatch.delattr(ContextMethod, "generate")
    assert method.generate(state, prompts, max_new_tokens=3) == expected


def test_closed_book_forgets_what_it_read() -> None:
    backbone = load("tiny-llama")
    method = ClosedBook(backbone)
    state, _ = method.read(method.start(), text(50), logprobs=False)
    assert state.length_B.tolist() == [50]
    assert torch.equal(method.score(state, [[1, 2, 3]]), method.score(method.start(), [[1, 2, 3]]))
    assert method.generate(state, [[5]], max_new_tokens=4) == method.generate(method.start(), [[5]], max_new_tokens=4)
    assert method.capabilities.uses_context is False


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda b: Window(b, WindowConfig(N=500)),
            "^N=500 is more than the 128 positions that a window has: use N=128 or less",
        ),
        (lambda b: Sliding(b, SlidingConfig(N=100)), "use N=62"),
        (lambda b: Sinks(b, SinksConfig(recent=200)), "use recent=124"),
    ],
)
def test_windows_that_do_not_fit_are_one_sentence(build: Callable[..., Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(load("tiny-llama"))


def test_defaults_are_the_papers_where_the_model_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = load("tiny-llama")
    monkeypatch.setattr(backbone, "max_positions", 8192)
    assert Window(backbone).local == LocalCache(1024)
    assert Sliding(backbone).local == LocalCache(1024, keep_first=4, keep_last=1024)
    assert Sinks(backbone).local == LocalCache(256, keep_first=4, keep_last=1020, band=1020)
    assert Full(backbone).capabilities.max_context == 8192


@pytest.mark.parametrize(("method", "length", "cached"), [(Full, 40, 40), (Window, 40, 8), (Sliding, 40, 28)])
def test_cached_is_what_a_question_meets(backbone: Backbone, method: type[Any], length: int, cached: int) -> None:
    config = {} if method is Full else {"config": method.Config(N=32 if method is Window else 16)}
    state, _ = (baseline := method(backbone, **config)).read(baseline.start(2), text(length).repeat(2, 1))
    assert state.cached == 2 * cached
