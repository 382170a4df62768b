from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken
from safetensors.torch import save_file

from contextlab import backbone as backbones
from contextlab.accounting.decompositions import svd_flops
from contextlab.accounting.flops import count, head_flops, llama_block_flops
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.generative_adapter.chunks import read_chunks
from contextlab.methods.window import Window, WindowConfig

FAMILIES = ["tiny-llama", "tiny-gpt2"]
SMALL = {"chunk": 32, "d_r": 8, "r": 4}
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def tokens(rows: int, length: int, seed: int = 0) -> Any:
    return torch.randint(0, 257, (rows, length), generator=torch.Generator().manual_seed(seed))


def randomised(backbone: Backbone, path: Path, **settings: Any) -> Any:
    """A method whose A1 is not zero, from a weights file."""
    method = GenerativeAdapter(backbone, GenerativeAdapterConfig(**SMALL | settings))
    random = torch.Generator().manual_seed(1)
    for i in range(len(method.generator.targets)):
        torch.nn.init.normal_(method.generator.layer(i).A1, std=0.5, generator=random)
    save_file(method.generator.state_dict(), path)
    return GenerativeAdapter(backbone, GenerativeAdapterConfig(**SMALL | settings | {"weights": path}))


@pytest.fixture(scope="module")
def method(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return randomised(backbone, tmp_path_factory.mktemp("weights") / "w.safetensors")


def untrained(backbone: Backbone) -> Any:
    return GenerativeAdapter(backbone, GenerativeAdapterConfig(**SMALL))


@pytest.mark.parametrize("around", PARTS)
def test_every_law(tmp_path: Path, around: bool) -> None:
    """With weights that write something; those of registered methods are as initialised."""
    assert broken(lambda b: randomised(b, tmp_path / "w.safetensors"), *FAMILIES, around=around) == {}


@torch.no_grad()
def test_a_decay_lets_every_older_chunk_count_less(backbone: Backbone, tmp_path: Path) -> None:
    """However a chunk is divided into calls, and after a call of no tokens, S is multiplied once a chunk."""
    method = randomised(backbone, tmp_path / "w.safetensors", decay=0.25)
    text, alone = tokens(1, 96), []
    for begin in range(0, 96, 32):
        # Weights change what later chunks are read as: every chunk here is the first of a text.
        state, _ = method.read(method.start(), text[:, begin : begin + 32])
        alone.append(state.S_BLRR[:, 0])
    state = method.start()
    for begin, end in ((0, 20), (20, 32), (32, 32), (32, 60), (60, 96)):
        state, _ = method.read(state, text[:, begin:end])
    # The lowest adapted layer is before all weights that are changed.
    torch.testing.assert_close(state.S_BLRR[:, 0], alone[0] / 16 + alone[1] / 4 + alone[2], **CLOSE)


@pytest.mark.parametrize("around", PARTS)
def test_every_law_with_a_decay(tmp_path: Path, around: bool) -> None:
    assert broken(lambda b: randomised(b, tmp_path / "w.safetensors", decay=0.5), FAMILIES[0], around=around) == {}


def test_untrained_it_is_the_window_bitwise(backbone: Backbone) -> None:
    adapter, window = untrained(backbone), Window(backbone, WindowConfig(N=32))
    text = tokens(2, 100)
    assert torch.equal(adapter.read(adapter.start(2), text)[1], window.read(window.start(2), text)[1])


def test_untrained_a_question_is_answered_as_without_the_context(backbone: Backbone) -> None:
    adapter, closed = untrained(backbone), ClosedBook(backbone)
    question = [[7, 8, 9, 10], [3]]
    for length in (0, 1, 32, 45, 100):
        state, _ = adapter.read(adapter.start(2, ahead=Lengths(length, 4)), tokens(2, length), logprobs=False)
        torch.testing.assert_close(adapter.score(state, question), closed.score(closed.start(2), question), **CLOSE)
        written = adapter.generate(state, question, max_new_tokens=5)
        assert written == closed.generate(closed.start(2), question, max_new_tokens=5)


def test_the_context_changes_the_answer_and_only_through_the_weights(method: Any) -> None:
    score = {}
    for name, seed in (("own", 0), ("again", 0), ("other", 1)):
        state, _ = method.read(method.start(ahead=Lengths(64, 3)), tokens(1, 64, seed), logprobs=False)
        assert state.kv.used_B.tolist() == [0]
        score[name] = method.score(state, [[1, 2, 3]])
    assert torch.equal(score["own"], score["again"])
    assert float((score["own"] - score["other"]).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("context", "expected"),
    [(100, [25, 25, 25, 25, 32]), (65, [22, 22, 21, 32]), (32, [32, 32]), (33, [17, 16, 32]), (5, [5, 32]), (0, [32])],
)
def test_an_announced_context_is_cut_into_equal_chunks(method: Any, context: int, expected: list[int]) -> None:
    state = method.start(ahead=Lengths(context))
    lengths = []
    while sum(lengths) < context + 32:
        lengths.append(int(state.left_B))
        state, _ = method.read(state, tokens(1, lengths[-1]), logprobs=False)
    assert lengths == expected


def test_reading_in_pieces_over_the_end_of_the_context_changes_nothing(method: Any) -> None:
    text = tokens(2, 80)
    whole = method.read(method.start(2, ahead=Lengths(45)), text)[1]
    for cut in (0, 22, 23, 44, 45, 46, 60):
        state, first = method.read(method.start(2, ahead=Lengths(45)), text[:, :cut])
        second = method.read(state, text[:, cut:])[1]
        torch.testing.assert_close(torch.cat((first, second), dim=1), whole, **CLOSE)


@pytest.mark.parametrize(("normalisation", "decay"), [("svd", 1.0), ("polar", 1.0), ("svd", 0.5)])
@torch.no_grad()
def test_all_chunks_at_once_give_what_streaming_gives(
    backbone: Backbone, tmp_path: Path, normalisation: str, decay: float
) -> None:
    method = randomised(backbone, tmp_path / "w.safetensors", normalisation=normalisation, decay=decay)
    text = tokens(2, 90)
    state = method.start(2, ahead=Lengths(90))
    hidden = []
    for piece in text.split(30, dim=1):
        state, hidden_B30C = method.step(state, piece, torch.tensor([30, 30]))
        hidden.append(hidden_B30C[:, :-1])
        state = dataclasses.replace(state, length_B=state.length_B + 30)
    hidden_BnTC, S_BnLRR = read_chunks(method.generator, text.view(2, 3, 30))
    scale = float(state.S_BLRR.abs().max())
    torch.testing.assert_close(S_BnLRR[:, -1] / scale, state.S_BLRR / scale, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden_BnTC[:, :, :-1], torch.stack(hidden, dim=1), atol=1e-4, rtol=1e-5)


def test_padding_of_chunks_at_once_has_no_effect_and_gradients_flow(method: Any) -> None:
    text, lengths = tokens(2, 60).view(2, 2, 30), torch.tensor([[30, 30], [30, 11]])
    changed = text.clone()
    changed[1, 1, 11:] = 5
    (_, first), (hidden, second) = (read_chunks(method.generator, x, lengths) for x in (text, changed))
    assert torch.equal(first, second)
    parameters = dict(method.generator.named_parameters())
    gradients = torch.autograd.grad(hidden[:, 1].square().mean(), list(parameters.values()))
    assert all(bool(g.isfinite().all()) for g in gradients)
    last = [g for name, g in zip(parameters, gradients, strict=True) if name.endswith("A1")]
    assert all(bool(g.any()) for g in last)


def test_contextualising_without_scores_leaves_the_same_state(method: Any) -> None:
    text = tokens(2, 100)
    scored, silent = (method.read(method.start(2), text, logprobs=wanted)[0] for wanted in (True, False))
    for name, tensor in scored.tensors().items():
        assert torch.equal(silent.tensors()[name], tensor)


def test_rows_carry_different_weights_and_end_their_chunks_apart(method: Any) -> None:
    text = tokens(3, 64)
    lengths = torch.tensor([64, 40, 10])
    together, _ = method.read(method.start(3), text, lengths, logprobs=False)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = method.read(method.start(), text[row : row + 1, :length], logprobs=False)
        torch.testing.assert_close(together.S_BLRR[row], alone.S_BLRR[0], atol=1e-3, rtol=1e-4)
        assert bool(together.pairs[0].up[row].any()) == (length >= 32)
    scores = method.score(together.index([0, 0]), [[1, 2]])
    assert torch.equal(scores[0], scores[1])


def test_writing_learns_nothing_unless_a_chunk_ends(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = method.read(method.start(), tokens(1, 40), logprobs=False)
    learned = []
    gram = type(method.generator.layer(0)).gram
    monkeypatch.setattr(type(method.generator.layer(0)), "gram", lambda *a: learned.append(1) or gram(*a))
    short = method.generate(state, [[1, 2, 3]], max_new_tokens=21)
    assert learned == []
    assert method.generate(state, [[1, 2, 3]], max_new_tokens=22)[0][:21] == short[0]
    assert learned != []


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_narrow_and_wide_weights(backbone: Backbone, dtype: str, tmp_path: Path) -> None:
    method = randomised(backbones.load(backbone.name, dtype=dtype), tmp_path / "w.safetensors")
    state, logprobs = method.read(method.start(2, ahead=Lengths(40)), tokens(2, 60))
    wide = torch.promote_types(method.backbone.dtype, torch.float32)
    assert {state.S_BLRR.dtype, state.pairs[0].up.dtype, state.pairs[0].down.dtype} == {wide}
    assert bool(logprobs.isfinite().all())
    assert bool(method.score(state, [[1, 2]]).isfinite().all())


def test_hidden_states_that_are_not_finite_are_one_sentence(backbone: Backbone) -> None:
    broken = backbones.load(backbone.name)
    method = untrained(broken)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[3] = float("nan")
    with pytest.raises(UserError, match="not finite: load the backbone with --dtype float32"):
        method.read(method.start(), torch.full((1, 32), 3), logprobs=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r": 9, "d_r": 8}, "r=9 is larger than d_r=8"),
        ({"r": 9}, "choose r of at most 8"),
        ({"chunk": 4096}, "use chunk=128"),
        ({"modules": "*nothing*"}, "matches no linear layer"),
    ],
)
def test_settings_that_do_not_fit_the_backbone(
    backbone: Backbone, settings: dict[str, int | str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        GenerativeAdapter(backbone, GenerativeAdapterConfig(**settings))


def test_weights_are_loaded_digested_and_checked(backbone: Backbone, method: Any, tmp_path: Path) -> None:
    assert method.baseline() is None
    assert untrained(backbone).baseline() is not None
    path = method.config.weights
    again = GenerativeAdapter(backbone, GenerativeAdapterConfig(**SMALL, weights=path))
    assert again.weights_digest == method.weights_digest != untrained(backbone).weights_digest
    for wrong in ({"d_r": 4, "r": 2}, {"rms_norm": False}, {"modules": "*mlp*"}):
        with pytest.raises(UserError, match="does not hold GenerativeAdapter weights"):
            GenerativeAdapter(backbone, GenerativeAdapterConfig(**SMALL | wrong | {"weights": path}))
    for other in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(UserError, match=r"check weights=|cannot be read"):
            GenerativeAdapter(backbone, GenerativeAdapterConfig(weights=other))


def test_parameters_and_state_are_of_the_papers_sizes(backbone: Backbone, method: Any) -> None:
    width, layers = backbone.width, backbone.layers
    expected = layers * (4 * width * 8 + width)
    assert method.added_parameters == method.trained_parameters == expected
    state, _ = method.read(method.start(ahead=Lengths(96)), tokens(1, 96), logprobs=False)
    assert state.floats == layers * (8 * 8 + 2 * 4 * width) + width


def test_defaults_are_the_papers_in_proportion(backbone: Backbone) -> None:
    generator = GenerativeAdapter(backbone).generator
    assert (generator.d_r, generator.rank, generator.scale) == (8, 1, 1 / 16)
    paper = GenerativeAdapterConfig(d_r=1024, r=128, alpha=64)
    assert paper.widths(4096) == GenerativeAdapterConfig().widths(4096) == (1024, 128)
    assert GenerativeAdapter(backbone, GenerativeAdapterConfig(d_r=16, alpha=4)).generator.scale == 1 / 4


def test_a_question_costs_the_pairs_more_than_the_closed_book() -> None:
    backbone = backbones.load("tiny-llama")
    method, full = untrained(backbone), Full(backbone)
    state, _ = method.read(method.start(ahead=Lengths(64)), tokens(1, 64), logprobs=False)
    question = [list(range(20))]
    pairs = backbone.layers * 20 * 2 * 4 * (32 + 32)
    plain = backbone.layers * llama_block_flops(20, 210, backbone.config) + head_flops(20, backbone.config)
    assert count(lambda: full.score(full.start(), question))[1] == plain
    assert count(lambda: method.score(state, question))[1] == plain + pairs
    written = count(lambda: method.generate(state, question, max_new_tokens=1))[1]
    assert written - count(lambda: full.generate(full.start(), question, max_new_tokens=1))[1] == pairs


def test_contextualising_costs_projections_products_and_a_decomposition_per_chunk() -> None:
    backbone = backbones.load("tiny-llama")
    method = untrained(backbone)
    _ = backbone.bos_hidden_C
    flops = count(lambda: method.read(method.start(ahead=Lengths(64)), tokens(1, 64), logprobs=False))[1]
    plain = backbone.layers * (
        2 * llama_block_flops(32, 32 * 33 // 2, backbone.config) + llama_block_flops(1, 1, backbone.config)
    )
    learning = 64 * 2 * (2 * 32 * 8 + 8 * 8)
    making = 2 * (svd_flops((8, 8)) + 2 * 2 * 4 * 8 * 32)
    applying = 65 * 2 * 4 * (32 + 32)
    assert flops == plain + backbone.layers * (learning + making + applying)


def test_on_the_embedded_backbone_both_stay_within_their_bounds() -> None:
    """Arithmetic of SmolLM2-135M's sizes: 30 layers, width 576, 3 key heads of 64, feed-forward 1,536."""
    layers, width, vocabulary, chunk = 30, 576, 49152, 1024
    d_r, rank = GenerativeAdapterConfig().widths(width)
    assert (d_r, rank) == (144, 18)
    block = 2 * (2 * width * width + 2 * width * 192 + 3 * width * 1536)
    question = layers * (block + 4 * width * 31 / 2) + 2 * width * vocabulary
    pair = layers * 2 * rank * 2 * width
    assert pair / question < 0.005
    plain = layers * chunk * (block + 4 * width * (chunk + 1) / 2)
    of_generator = svd_flops((d_r, d_r)) + 2 * 2 * rank * d_r * width
    added = layers * (chunk * 2 * (2 * width * d_r + d_r * d_r) + of_generator) + chunk * pair
    assert added / plain < 0.08


@pytest.mark.parametrize("length", [32, 40, 96])
def test_the_memory_alone_is_what_an_adapter_answers_with(method: Any, length: int) -> None:
    state, _ = method.read(method.start(2), tokens(2, length), logprobs=False)
    question = tokens(2, 70, seed=5)
    with torch.no_grad():
        alone = method.memory_alone(state)
        applied = method.apply(method.adapter(state))
    expected, logprobs = (method.read(start, question)[1] for start in (applied, alone))
    # Both are cut at the end of a chunk; what the adapter goes on to learn there, a state that only answers does not.
    torch.testing.assert_close(logprobs[:, 1:32], expected[:, 1:32], **CLOSE)
    assert alone.S_BLRR.shape[1] == 0
    assert method.read(alone, question)[0].S_BLRR.shape[1] == 0
    assert not torch.allclose(logprobs[:, 1:32], method.read(method.start(2), question)[1][:, 1:32], **CLOSE)


def test_a_context_that_is_learned_leaves_the_state_of_reading(method: Any) -> None:
    text, lengths = tokens(2, 80), torch.tensor([80, 45])
    learned = method.learn_context(method.start(2), text, lengths)
    read, _ = method.read(method.start(2), text, lengths, logprobs=False)
    for name, tensor in read.tensors().items():
        torch.testing.assert_close(learned.tensors()[name].detach(), tensor, **CLOSE)
    loss = method.memory_alone(learned).pairs[0].up.square().sum()
    assert bool(torch.autograd.grad(loss, method.generator.layer(0).A2)[0].any())
