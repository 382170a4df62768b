"""Least squares: what it writes into weights, for which models, and what its cache holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab import locks
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.full import Full
from contextlab.methods.least_squares import LeastSquares, LeastSquaresConfig
from contextlab.methods.parts.targets import Pair, observed
from contextlab.paths import cache_dir

CHUNK = 16


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2", "tiny-opt"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(backbone: Backbone, count: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, 250, (1, count), generator=draw).to(backbone.device)


def method(backbone: Backbone, **settings: object) -> LeastSquares:
    return LeastSquares(backbone, LeastSquaresConfig.parse({"chunk": CHUNK, "study": 0, **settings}))


@torch.no_grad()
def last_states(solver: LeastSquares, pairs: tuple[Pair, ...] | None, tokens_1T: Tensor, context_1T: Tensor) -> Tensor:
    """`hidden_TC` after the highest block: with changes from a cold start, or plain after a context."""
    left: list[Tensor] = []
    plain = solver.fit.plain
    with observed(solver.targets, lambda _i, _x, hidden: left.append(hidden)):
        if pairs is None:
            state, _ = plain.read(plain.start(), context_1T, logprobs=False)
            left.clear()
            plain.forward(state, tokens_1T, plain.local.layout(state, tokens_1T.shape[1]))
        else:
            state = dataclasses.replace(solver.start(), pairs=pairs)
            solver.forward(state, tokens_1T, solver.local.layout(state, tokens_1T.shape[1]))
    return left[-1][0]


@pytest.mark.parametrize("error", ["absolute", "relative"])
def test_the_chunk_once_more_has_the_states_that_it_has_after_itself(error: str, llama: Backbone) -> None:
    # Where the ridge is small and nothing is shortened, every row of the regression is reached.
    solver, chunk = method(llama, ridge=1e-7, rank=llama.width, first_layer=0, error=error), text(llama, CHUNK)
    state, _ = solver.read(solver.start(), chunk)
    wanted = last_states(solver, None, chunk, chunk)
    reached = last_states(solver, state.pairs, chunk, chunk)
    untouched = last_states(solver, solver.start().pairs, chunk, chunk)
    size = (untouched - wanted)[1:].norm()
    assert size > 0.05 * wanted[1:].norm()
    assert (reached - wanted)[1:].norm() < 0.02 * size


def test_relative_errors_give_another_change(llama: Backbone) -> None:
    changes = []
    for error in ("absolute", "relative"):
        solver = method(llama, error=error)
        (pair, *_) = solver.read(solver.start(), text(llama, CHUNK))[0].pairs
        changes.append(pair.up @ pair.down)
    assert not torch.allclose(*changes, rtol=0.01)


def test_a_later_chunk_leaves_more_of_an_earlier_one_where_its_inputs_are_kept(llama: Backbone) -> None:
    first, second = text(llama, CHUNK), text(llama, CHUNK, seed=1)
    errors = []
    for seen in (0, 64):
        solver = method(llama, ridge=1e-3, rank=llama.width, seen=seen, first_layer=llama.layers - 1)
        state, _ = solver.read(solver.start(), torch.cat((first, second), dim=1))
        after_first, _ = solver.read(solver.start(), first)
        now, then = (last_states(solver, s.pairs, first, first) for s in (state, after_first))
        errors.append(float((now - then)[1:].norm()))
    assert errors[1] < 0.7 * errors[0]


def test_self_study_is_of_its_seed(backbone: Backbone) -> None:
    tokens = text(backbone, CHUNK)
    states = [
        solver.read(solver.start(), tokens)[0]
        for solver in (method(backbone, study=2, study_tokens=4, seed=seed) for seed in (0, 0, 1))
    ]
    changes = [state.pairs[0].up @ state.pairs[0].down for state in states]
    assert torch.equal(changes[0], changes[1])
    assert not torch.allclose(changes[0], changes[2])


def test_texts_of_self_study_begin_with_the_prompts_in_turn(llama: Backbone) -> None:
    solver = method(llama, study=3, study_tokens=2, study_prompts="\\nQ:|an")
    prompts = [llama.encode(prompt) for prompt in ("\nQ:", "an", "\nQ:")]
    state, _ = solver.fit.plain.read(solver.fit.plain.start(), text(llama, CHUNK), logprobs=False)
    texts = solver.fit._studied(state, 0)
    assert [written[: len(prompt)] for written, prompt in zip(texts, prompts, strict=True)] == prompts
    assert [len(written) for written in texts] == solver.fit.studied == [len(prompt) + 2 for prompt in prompts]


def test_after_an_announced_context_only_weights_are_left(backbone: Backbone) -> None:
    solver, context = method(backbone), text(backbone, CHUNK + 6)
    state, _ = solver.read(solver.start(ahead=Lengths(CHUNK + 6)), context)
    assert not bool(state.kv.used_B.any())
    assert torch.equal(state.pending_BC, solver.after_bos(state.pairs))
    # Two chunks of equal length.
    halves, _ = solver.read(solver.start(ahead=Lengths(CHUNK + 6)), context[:, :11])
    assert int(halves.left_B) == 11


def test_a_question_is_answered_with_the_weights_of_an_open_chunk_too(backbone: Backbone) -> None:
    solver, tokens = method(backbone), text(backbone, CHUNK)
    ended, _ = solver.read(solver.start(), tokens)
    short = method(backbone, chunk=2 * CHUNK)
    alone = short.memory_alone(short.read(short.start(), tokens)[0])
    torch.testing.assert_close(alone.pairs[0].up @ alone.pairs[0].down, ended.pairs[0].up @ ended.pairs[0].down)
    assert alone.tokens_BN.shape[1] == 0
    assert int(alone.length_B) == 0


def test_a_chunk_of_one_token_changes_nothing(backbone: Backbone) -> None:
    solver = method(backbone, chunk=1)
    state, _ = solver.read(solver.start(), text(backbone, 3))
    assert not any(bool((pair.up @ pair.down).any()) for pair in state.pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 100}, "use chunk="),
        ({"study": 1, "study_prompts": "a" * 300}, "of self-study, do not fit"),
        ({"rank": 10**6}, "rank=1000000 and seen="),
        ({"seen": 10**6}, "must be at most"),
        ({"first_layer": 99}, "first_layer=99 is not one of"),
        ({"modules": "*.0.mlp.down_proj", "first_layer": 2}, "no layer from first_layer=2 on"),
        ({"modules": "*mlp*"}, "several layers of a block"),
        ({"modules": "*q_proj"}, "before it adds them to its residual"),
        ({"generic": "/nowhere/text"}, "generic=/nowhere/text is no text"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, object], message: str, llama: Backbone) -> None:
    with pytest.raises(UserError, match=message):
        method(llama, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk": 100},
        {"chunk": 200, "study_tokens": 100},
        {"chunk": 70, "study": 0},
        {"chunk": 64, "study": 1, "study_prompts": "aaaaaaa"},
    ],
)
def test_the_length_that_is_advised_fits(settings: dict[str, object], llama: Backbone) -> None:
    with pytest.raises(UserError) as refused:
        method(llama, **settings)
    advised = int(str(refused.value).partition("use chunk=")[2].partition(",")[0])
    assert method(llama, **{**settings, "chunk": advised}).local.segment == advised
    with pytest.raises(UserError):
        method(llama, **{**settings, "chunk": advised + 1})
    without = {name: value for name, value in settings.items() if name != "chunk"}
    assert method(llama, **without, chunk=None).local.segment == advised


def test_a_state_fits_only_methods_that_leave_the_same_texts_alone(tmp_path: Path, llama: Backbone) -> None:
    for name, content in (("a", "Some text."), ("b", "Some text."), ("c", "Other text of another kind.")):
        (tmp_path / name).write_text(content)
    first, same, other = (method(llama, generic=str(tmp_path / name)) for name in "abc")
    first.read(first.start(), text(llama, CHUNK))[0].save(tmp_path / "state")
    assert int(same.load_state(tmp_path / "state").length_B) == CHUNK
    with pytest.raises(UserError, match="its settings differ"):
        other.load_state(tmp_path / "state")


def test_a_block_that_normalises_what_it_adds_is_refused() -> None:
    with pytest.raises(UserError, match="before it adds them to its residual"):
        method(backbones.load("tiny-olmo2", device="cpu"))


def test_the_covariance_is_computed_once_and_again_where_its_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: Backbone
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    other = tmp_path / "text.txt"
    other.write_text("Some text.\fSome other text of another kind.")
    first = method(llama, generic=str(other))
    with monkeypatch.context() as unwritable:
        unwritable.setattr(locks, "held", lambda _: pytest.fail("what is in the cache is only read"))
        method(llama, generic=str(other))
    (file,) = (cache_dir() / "inverses").glob("*.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-3])
    again = method(llama, generic=str(other))
    assert file.read_bytes() == whole
    assert all(torch.equal(a, b) for a, b in zip(first.fit.inverses, again.fit.inverses, strict=True))
    other.write_text("\f")
    with pytest.raises(UserError, match="has no text"):
        method(llama, generic=str(other))


def test_the_inverse_covariances_are_counted_as_parameters(llama: Backbone) -> None:
    solver = method(llama)
    assert solver.added_parameters == sum(target.inputs**2 for target in solver.targets)
    assert solver.trained_parameters == 0
    assert Full(llama).added_parameters == 0
