from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import AROUND, PARTS, broken
from safetensors.torch import save_file
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.flops import count, llama_block_flops
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.evalm import EVALM, PAPER, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.testing import laws

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt"]
FORMS = {
    "closed": {"W": 32, "c": 8},
    "open": {"W": 32, "c": 8, "remote_bias": -0.5, "sinks": 2},
    "overlap": {"W": 24, "c": 8, "remote_bias": 0.5, "overlap": True},
    "papers": {"W": 16, "c": 8, "remote_bias": 0.5, "sinks": 0, "remote_visibility": "before_chunk", "adaptive": "qk"},
    "small chunks": {"W": 24, "c": 4, "remote_bias": 0.5, "sinks": 6},
    "learned": {"W": 24, "c": 12, "remote_bias": 0.0, "pooling": "learned"},
}
STORED = torch.randint(0, 256, (1, 200), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return backbones.load("tiny-llama")


@pytest.fixture(scope="module")
def exact() -> Any:
    return {name: backbones.load(name, dtype="float64") for name in FAMILIES}


def text(length: int, rows: int = 1, seed: int = 0) -> Any:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def read(method: Any, tokens: Tensor) -> Any:
    return method.read(method.start(len(tokens)), tokens)[1]


@pytest.mark.parametrize("around", PARTS)
def test_laws_in_the_papers_form(around: bool) -> None:
    """Those with overlap are tested with an update."""
    assert broken(lambda b: EVALM(b, EVALMConfig(**FORMS["papers"])), "tiny-llama", around=around) == {}


@settings(max_examples=10, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    form=st.sampled_from(sorted(FORMS)),
    cuts=st.lists(st.integers(0, 100), max_size=5),
)
def test_any_split_equals_the_parallel_form(exact: Any, family: Any, form: Any, cuts: Any) -> None:
    method = EVALM(exact[family], EVALMConfig(**FORMS[form]))
    tokens = text(100, seed=len(cuts))
    with method.as_attention(), torch.no_grad():
        expected = method.backbone.model(tokens).logits.double().log_softmax(-1)[:, :-1]
    expected = expected.gather(-1, tokens[:, 1:, None])[..., 0]
    state, pieces = method.start(), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 100], strict=True):
        state, part = method.read(state, tokens[:, begin:end])
        pieces.append(part)
    # Log-probabilities are float32 whatever the model.
    torch.testing.assert_close(torch.cat(pieces, 1)[:, 1:], expected.float(), atol=1e-5, rtol=1e-5)
    hidden = state.pending_BC
    whole = method.read(method.start(), tokens)[0].pending_BC
    torch.testing.assert_close(hidden, whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("overlap", [False, True])
def test_closed_it_is_local_attention_with_sinks(backbone: Backbone, overlap: bool) -> None:
    method = EVALM(backbone, EVALMConfig(W=32, c=8, overlap=overlap))
    baseline = method.baseline()
    assert isinstance(baseline, Sliding)
    assert method.capabilities.segment == baseline.capabilities.segment == (None if overlap else 32)
    tokens = text(200, rows=2)
    torch.testing.assert_close(read(method, tokens), read(baseline, tokens), atol=1e-5, rtol=1e-5)


def test_open_summaries_reach_over_windows_and_local_attention_does_not(llama: Backbone) -> None:
    tokens, other = text(96), text(96)
    other[:, 8:32] = text(24, seed=1)
    for bias, reaches in ((None, False), (0.0, True)):
        method = EVALM(llama, EVALMConfig(W=32, c=8, remote_bias=bias))
        gap = (read(method, tokens) - read(method, other))[:, 66:].abs().max()
        assert (gap > 1e-3) == reaches


@pytest.mark.parametrize("twice", [False, True])
def test_the_summary_of_the_sinks_is_seen_where_it_is_asked_for(llama: Backbone, twice: bool) -> None:
    """Garbage in the summary of the first chunk, whose tokens are all sinks."""
    method = EVALM(llama, EVALMConfig(W=32, c=4, remote_bias=0.0, sink_summaries=twice))
    tokens = text(110)
    state, _ = method.read(method.start(), tokens[:, :70], logprobs=False)
    chunks = state.chunks
    k, v = (tuple(x.index_fill(2, torch.tensor([0]), 3.0) for x in part) for part in (chunks.k, chunks.v))
    spoiled = dataclasses.replace(state, chunks=chunks.replace(k, v, chunks.used_B))
    gap = (method.read(state, tokens[:, 70:])[1] - method.read(spoiled, tokens[:, 70:])[1]).abs()[:, 1:].max()
    assert (gap > 1e-3) == twice
    assert twice or gap == 0


def test_chunks_of_one_token_in_reach_are_full_attention(llama: Backbone) -> None:
    """c 1 with the geometry's positions: in the second window every summary stands where its token stood."""
    method = EVALM(llama, EVALMConfig(W=32, c=1, sinks=0, remote_bias=0.0))
    tokens = text(64)
    torch.testing.assert_close(read(method, tokens), read(Full(llama), tokens), atol=1e-4, rtol=1e-4)


def test_summaries_behind_the_models_reach_share_the_farthest_position(llama: Backbone) -> None:
    geometry = EVALMConfig(W=64, c=8).geometry(llama.max_positions)
    assert geometry.far == 128 - 4 - 64
    positions = geometry.positions(100, torch.tensor([800]), torch.tensor([864]))[0]
    assert positions.tolist() == [-60] * 40 + list(range(-60, 0))


def test_state_holds_what_the_formula_says(backbone: Backbone) -> None:
    method = EVALM(backbone, EVALMConfig(W=32, c=8, sinks=3))
    state, _ = method.read(method.start(), text(32 * 3 + 13), logprobs=False)
    per_token = 2 * backbone.kv_heads * backbone.head_width
    local, chunks = 3 + 13, (32 * 3 + 13) // 8
    numbers = backbone.layers * ((local + chunks) * per_token + per_token // 2) + backbone.width
    assert state.nbytes == 4 * numbers + 4 * 8
    assert storage_bytes(state.tensors().values()) <= 1.1 * state.nbytes
    learned = EVALM(backbone, EVALMConfig(W=32, c=8, sinks=3, pooling="learned"))
    smaller, _ = learned.read(learned.start(), text(32 * 3 + 13), logprobs=False)
    assert state.nbytes - smaller.nbytes == 4 * backbone.layers * per_token // 2


def test_memory_grows_by_the_summaries_alone(llama: Backbone) -> None:
    """Twice the text costs the room of its summaries, and nothing else."""
    method = EVALM(llama, EVALMConfig(W=32, c=8, remote_bias=0.0))
    peaks = []
    for length in (256, 512):
        with PeakMemory() as memory:
            state, _ = method.read(method.start(), text(length), logprobs=False)
        peaks.append((memory.peak_bytes, state.nbytes))
    rotated = 256 // 8 * llama.kv_heads * llama.head_width * 4 * 8
    tokens = 256 * 8 * 2
    assert peaks[1][0] - peaks[0][0] <= peaks[1][1] - peaks[0][1] + rotated + tokens


def test_flops_are_those_of_what_is_seen_and_of_the_summaries(llama: Backbone) -> None:
    _ = llama.bos_hidden_C
    method = EVALM(llama, EVALMConfig(W=32, c=8, remote_bias=0.0))
    state = method.start()
    triangle, chunks, width, kv_heads = 32 * 33 // 2, 12, llama.head_width, llama.kv_heads
    pairs = triangle + 2 * (32 * 4 + triangle) + 32 * 4 + 32 * 8
    pooling = 2 * 2 * 96 * width * kv_heads
    maps = 3 * 2 * chunks * width * width * kv_heads
    expected = llama.layers * (llama_block_flops(96, pairs, llama.config) + pooling + maps)
    assert count(lambda: method.read(state, text(96), logprobs=False))[1] == pytest.approx(expected, rel=1e-3)


def test_reading_changes_no_state_in_place(llama: Backbone) -> None:
    method = EVALM(llama, EVALMConfig(W=32, c=8, remote_bias=0.0))
    state, _ = method.read(method.start(2), text(60, rows=2), torch.tensor([60, 41]))
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    after, _ = method.read(state, text(7, rows=2, seed=1), torch.tensor([0, 7]))
    assert after.chunks.used_B.tolist() == [7, 6]
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, before[name]), name


def test_silent_reading_leaves_the_same_state(backbone: Backbone) -> None:
    method = EVALM(backbone, EVALMConfig(**FORMS["open"]))
    states = [method.read(method.start(), text(150), logprobs=scored)[0] for scored in (True, False)]
    for name, tensor in states[0].tensors().items():
        assert torch.equal(tensor, states[1].tensors()[name]), name


def test_a_first_window_for_what_is_ahead_holds_whole_chunks(llama: Backbone) -> None:
    method = EVALM(llama, EVALMConfig(W=32, c=8, remote_bias=0.0))
    assert method.start(ahead=Lengths(50, 21)).left_B.tolist() == [8]
    assert method.start(ahead=Lengths(50, 14)).left_B.tolist() == [32]
    state, _ = method.read(method.start(ahead=Lengths(50, 21)), text(50))
    assert state.chunks.used_B.tolist() == [6]
    assert state.left_B.tolist() == [22]


@pytest.mark.parametrize("form", ["open", "papers"])
def test_candidates_in_one_pass_equal_forks(backbone: Backbone, form: str) -> None:
    method = EVALM(backbone, EVALMConfig(**FORMS[form]))
    for length in (50, 60, 69):
        state, _ = method.read(method.start(2), text(length, rows=2), torch.tensor([length, length // 2]))
        for candidates in ([[1, 2, 3], [9]], [[1] * 9, [2] * 3]):
            expected = ContextMethod.score(method, state, candidates)
            torch.testing.assert_close(method.score(state, candidates), expected, atol=1e-5, rtol=1e-5)


def test_weights_are_loaded_digested_and_counted(llama: Backbone, tmp_path: Path) -> None:
    biased = EVALM(llama, EVALMConfig(remote_bias=-2.0))
    width, kv_heads = llama.head_width, llama.kv_heads
    per_layer = kv_heads * (2 * (width * width + width) + width * width + width) + llama.heads
    assert biased.added_parameters == biased.trained_parameters == llama.layers * per_layer
    save_file({k: v.clone() for k, v in biased.summaries.state_dict().items()}, tmp_path / "evalm.safetensors")
    loaded = EVALM(llama, EVALMConfig(weights=tmp_path / "evalm.safetensors"))
    assert loaded.weights_digest == biased.weights_digest
    assert loaded.baseline() is None
    tokens = text(150)
    assert torch.equal(read(loaded, tokens), read(biased, tokens))
    (tmp_path / "other.safetensors").write_bytes(b"no")
    for path, options in (("evalm", {"pooling": "learned"}), ("other", {}), ("none", {})):
        with pytest.raises(UserError, match=r"does not hold EVALM weights|cannot be read"):
            EVALM(llama, EVALMConfig(weights=tmp_path / f"{path}.safetensors", **options))


def test_a_chunk_larger_than_the_input_is_local_attention(llama: Backbone) -> None:
    method = EVALM(llama, EVALMConfig(c=64, remote_bias=0.0))
    torch.testing.assert_close(read(method, text(50)), read(Full(llama), text(50)), atol=1e-5, rtol=1e-5)


def test_states_that_are_not_finite_are_one_sentence() -> None:
    broken = backbones.load("tiny-llama")
    method = EVALM(broken, EVALMConfig(W=32, c=8))
    state = method.start()
    with torch.no_grad():
        broken.model.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    with pytest.raises(UserError, match="no longer finite"):
        method.read(state, text(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"W": 30}, "W=30 must be a multiple of the chunk c=16"),
        ({"W": 4096}, "use W=112"),
        ({"c": 200}, "do not fit"),
        ({"W": 16, "sinks": 20}, "no more sinks than W"),
    ],
)
def test_settings_that_do_not_fit(llama: Backbone, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EVALM(llama, EVALMConfig(**options))


def test_the_papers_form_has_its_state(llama: Backbone) -> None:
    assert PAPER.c == PAPER.W
    assert PAPER.geometry(backbones.PAPER_POSITIONS).own
    assert all(name in backbones.known() for name in backbones.PAPER_SHAPES)


def test_sliding_keeps_as_much_of_the_windows_before_as_it_is_told(llama: Backbone) -> None:
    tokens = text(120)
    whole = read(Sliding(llama, SlidingConfig(N=24)), tokens)
    torch.testing.assert_close(read(Sliding(llama, SlidingConfig(N=24, recent=24)), tokens), whole)
    cold = Sliding(llama, SlidingConfig(N=24, recent=0))
    state, logprobs = cold.read(cold.start(), tokens[:, :96])
    assert state.kv.used_B.tolist() == [4]
    assert (logprobs - whole[:, :96]).abs()[0, 26:].max() > 1e-3
    with pytest.raises(UserError, match="take fewer"):
        Sliding(llama, SlidingConfig(recent=124))


def test_an_untrained_method_costs_what_an_open_one_does(backbone: Backbone) -> None:
    tokens, _ = text(120), backbone.bos_hidden_C
    closed, opened = (EVALM(backbone, EVALMConfig(W=32, c=8, remote_bias=bias)) for bias in (None, -1.0))
    costs = [count(lambda m=method: m.read(m.start(), tokens))[1] for method in (closed, opened)]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("storage", [None, "float16", "int8", "int4"])
@pytest.mark.parametrize("c", [4, 8, 16])
def test_summaries_take_the_bytes_of_their_type(storage: str | None, c: int) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method = EVALM(backbone, EVALMConfig(W=32, c=c, remote_bias=-1.0, storage_dtype=storage))
    state, _ = method.read(method.start(), STORED[:, :100], logprobs=False)
    numbers, vectors = backbone.head_width, 100 // c * backbone.layers * backbone.kv_heads * 2
    each = {None: 4 * numbers, "float16": 2 * numbers, "int8": numbers + 4, "int4": numbers // 2 + 4}[storage]
    assert sum(x.nbytes for x in (*state.chunks.k, *state.chunks.v)) == vectors * each


@pytest.mark.parametrize("pooling", ["eva", "learned"])
def test_narrow_summaries_change_little(pooling: str) -> None:
    backbone, results = backbones.load("tiny-llama", device="cpu"), []
    for storage in (None, "float16", "int8", "int4"):
        config = EVALMConfig(W=32, c=4, remote_bias=0.0, pooling=pooling, storage_dtype=storage)
        method = EVALM(backbone, config)
        results.append(method.read(method.start(), STORED[:, :200])[1])
    changes = [float((result - results[0]).abs().mean()) for result in results[1:]]
    assert 0 < changes[0] < changes[1] < changes[2] < 0.1
    assert changes[1] < 0.01


# In float32 the 1e-7 by which rows side by side differ from rows alone are enough for another rounding.
@pytest.mark.parametrize("law", [name for name in laws.LAWS if name not in AROUND])
@pytest.mark.parametrize(
    "settings",
    [
        {"c": 8, "pooling": "learned", "overlap": True, "storage_dtype": "int8"},
        {"c": 4, "remote_visibility": "before_chunk", "storage_dtype": "float16"},
    ],
)
def test_forms_with_narrow_summaries_keep_the_laws_of_reading(settings: dict[str, Any], law: str) -> None:
    config = EVALMConfig(W=32, remote_bias=-0.5, **settings)
    assert laws.Case(law, "tiny-gpt2", "float64").broken(lambda b: EVALM(b, config)) is None


@pytest.mark.parametrize("storage", ["float16", "int8"])
def test_narrow_summaries_are_not_learned_with(storage: str) -> None:
    method = EVALM(backbones.load("tiny-llama"), EVALMConfig(W=32, c=4, remote_bias=0.0, storage_dtype=storage))
    with pytest.raises(UserError, match=f"stored in {storage}: learn without storage_dtype"):
        method.learn(method.start(), STORED[:, :40])


def test_a_range_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method = EVALM(backbone, EVALMConfig(W=32, c=4, remote_bias=0.0, storage_dtype="int8"))
    state, _ = method.read(method.start(), STORED[:, :70])
    damaged = state.chunks.k[0].clone()
    damaged[..., -1] = 255
    damaged[..., -2] = 255
    chunks = state.chunks.replace((damaged, *state.chunks.k[1:]), state.chunks.v, state.chunks.used_B)
    dataclasses.replace(state, chunks=chunks).own(method).save(tmp_path / "state.safetensors")
    with pytest.raises(UserError, match="A range of chunks is not finite"):
        method.load_state(tmp_path / "state.safetensors")
