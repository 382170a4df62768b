"""SnapKV and H2O: which tokens stay, against the attention that transformers computes."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from eager_attention import weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contextlab.backbone import Backbone, load
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.full import Full
from contextlab.methods.h2o import H2O, H2OConfig
from contextlab.methods.parts.scored import ScoredMethod, ScoredState
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.snapkv import SnapKV, SnapKVConfig

FAMILIES = ("tiny-llama", "tiny-gpt2")
BACKBONES = {name: load(name, device="cpu") for name in FAMILIES}


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return BACKBONES[request.param]


def tokens(count: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(1, 90, (rows, count), generator=torch.Generator().manual_seed(seed))


def read(method: Any, text_BT: Tensor, parts: list[int] | None = None, ahead: Lengths | None = None) -> Any:
    state = method.start(len(text_BT), ahead=ahead)
    for part_BT in text_BT.split(parts or text_BT.shape[1], dim=1):
        state, _ = method.read(state, part_BT, logprobs=False)
    return state


def snapkv_scores(weights_KTS: Tensor, window: int, kernel: int) -> Tensor:
    """`score_KS` of every token: averages of averages, and infinity for those of the window."""
    voted_KS = weights_KTS[:, -window:, :-window].mean(1)
    beside = pad(voted_KS, (kernel // 2, kernel // 2))
    averages_KS = torch.stack([beside[:, n : n + kernel].mean(1) for n in range(voted_KS.shape[1])], dim=1)
    return pad(averages_KS, (0, window), value=torch.inf)


def h2o_scores(weights_KTS: Tensor, recent: int) -> Tensor:
    """`score_KS` of every token: sums, and infinity for the newest."""
    score_KS, count = weights_KTS.sum(1), weights_KTS.shape[2]
    return score_KS.masked_fill(torch.arange(count) >= count - recent, torch.inf)


def check_kept(state: ScoredState, backbone: Backbone, text_1T: Tensor, scores: list[Tensor], keep: int) -> None:
    """The values of every head are those of the tokens with the highest scores, in the order of the text."""
    full = read(Full(backbone), text_1T)
    for layer, score_KS in enumerate(scores):
        for head, score_S in enumerate(score_KS):
            ranked = score_S.sort(descending=True, stable=True)
            kept = ranked.indices[:keep].sort().values
            torch.testing.assert_close(state.kv.v[layer][0, head], full.kv.v[layer][0, head, kept])


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(FAMILIES))
def test_snapkv_keeps_what_the_last_queries_attend_to_however_a_text_is_divided(data: Any, family: str) -> None:
    backbone, N = BACKBONES[family], data.draw(st.integers(12, 40))
    window = data.draw(st.integers(1, 10))
    keep, kernel = data.draw(st.integers(window, N - 1)), data.draw(st.sampled_from([1, 3, 5, 7]))
    method = SnapKV(backbone, SnapKVConfig(N=N, keep=keep, window=window, kernel=kernel))
    text_1T, cut = tokens(N, seed=data.draw(st.integers(0, 99))), data.draw(st.integers(1, N - 1))
    scores = [snapkv_scores(w_BKTS[0], window, kernel) for w_BKTS in weights_of(backbone, text_1T)]
    check_kept(read(method, text_1T, [cut, N - cut]), backbone, text_1T, scores, keep)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.sampled_from(FAMILIES))
def test_h2o_keeps_the_newest_and_what_all_queries_attend_to(data: Any, family: str) -> None:
    backbone, N = BACKBONES[family], data.draw(st.integers(12, 40))
    keep = data.draw(st.integers(1, N - 1))
    recent = data.draw(st.integers(0, keep))
    method = H2O(backbone, H2OConfig(N=N, keep=keep, recent=recent))
    text_1T, cut = tokens(N, seed=data.draw(st.integers(0, 99))), data.draw(st.integers(1, N - 1))
    scores = [h2o_scores(w_BKTS[0], recent) for w_BKTS in weights_of(backbone, text_1T)]
    check_kept(read(method, text_1T, [cut, N - cut]), backbone, text_1T, scores, keep)


def test_what_h2o_keeps_keeps_its_score_and_a_segment_of_snapkv_votes_anew(backbone: Backbone) -> None:
    """After a segment and a half: no query at the end of the second segment has been read."""
    text_1T = tokens(36)
    h2o = H2O(backbone, H2OConfig(N=24, keep=9, recent=4))
    snapkv = SnapKV(backbone, SnapKVConfig(N=24, keep=9, window=6))
    middle, end = read(h2o, text_1T[:, :24]), read(h2o, text_1T)
    for before_BKS, after_BKS in zip(middle.score_BKS, end.score_BKS, strict=True):
        assert bool((before_BKS > 0).all())
        assert bool((after_BKS[..., :9] > before_BKS).all())
    for state in (read(snapkv, text_1T[:, :24]), read(snapkv, text_1T)):
        assert not any(bool(score_BKS.any()) for score_BKS in state.score_BKS)


METHODS: dict[str, Any] = {
    "snapkv": lambda b, N, keep: SnapKV(b, SnapKVConfig(N=N, keep=keep, window=5)),
    "h2o": lambda b, N, keep: H2O(b, H2OConfig(N=N, keep=keep)),
}


@pytest.mark.parametrize("name", METHODS)
def test_where_everything_stays_nothing_differs_from_full_attention(name: str, backbone: Backbone) -> None:
    method, text_BT = METHODS[name](backbone, 16, 64), tokens(60, rows=2)
    plain = Sliding(backbone, SlidingConfig(N=16, recent=64, sinks=0))
    logprobs_BT, expected_BT, full_BT = (
        reader.read(reader.start(2), text_BT)[1] for reader in (method, plain, Full(backbone))
    )
    assert torch.equal(logprobs_BT, expected_BT)
    torch.testing.assert_close(logprobs_BT, full_BT, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("context", "cuts"), [(50, [50]), (70, [6, 70]), (128, [64, 128]), (0, [])])
def test_a_segment_ends_with_a_context_of_known_length(
    name: str, context: int, cuts: list[int], backbone: Backbone
) -> None:
    method = METHODS[name](backbone, 64, 20)
    state, done, used = method.start(ahead=Lengths(context, 9)), 0, 0
    for cut in cuts:
        state, _ = method.read(state, tokens(cut - done - 1), logprobs=False)
        assert int(state.kv.used_B) == used + cut - done - 1
        state, _ = method.read(state, tokens(1), logprobs=False)
        done, used = cut, min(used + cut - done, 20)
        assert int(state.kv.used_B) == used
    assert int(state.left_B) == 64


@pytest.mark.parametrize("name", METHODS)
def test_a_context_of_one_segment_is_compressed_once_at_its_end(name: str, backbone: Backbone) -> None:
    short, long = METHODS[name](backbone, 40, 20), METHODS[name](backbone, 100, 20)
    text_1T = tokens(40)
    states = [read(method, text_1T, ahead=Lengths(40, 9)) for method in (short, long)]
    assert [int(state.kv.used_B) for state in states] == [20, 20]
    assert all(map(torch.equal, states[0].kv.k, states[1].kv.k))


def test_the_defaults_keep_a_segment_of_half_the_models_positions(backbone: Backbone) -> None:
    for kind in (SnapKV, H2O):
        method: ScoredMethod[Any] = kind(backbone)
        assert (method.local.segment, method.local.keep_last) == (64, 64)
    assert H2O(backbone).recent == 32


@pytest.mark.parametrize(
    ("kind", "given_settings", "sentence"),
    [
        (SnapKV, {"keep": 20}, "The 64 tokens that vote must stay, and fit a segment: use window=20."),
        (SnapKV, {"N": 30, "keep": 40}, "use window=30."),
        (SnapKV, {"kernel": 4}, "kernel=4 has no middle: use an odd number."),
        (SnapKV, {"keep": 127}, "keep=127 leaves no segment in 128 positions: keep fewer."),
        (
            H2O,
            {"keep": 20, "recent": 21},
            "21 recent tokens are more than stay in view: use recent=20 or a larger keep.",
        ),
        (H2O, {"keep": 100, "N": 29}, "N=29 is more than the 28 positions that a window has: use N=28 or less."),
    ],
)
def test_settings_that_do_not_fit_are_refused(kind: Any, given_settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        kind(BACKBONES["tiny-llama"], kind.Config(**given_settings))
    assert str(refused.value).endswith(sentence)


@pytest.fixture
def kvpress() -> ModuleType:
    """The package; its import wraps all of transformers' attention functions, ours among them, which is undone."""
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    reason = "kvpress is not installed (pip install --no-deps kvpress cachetools)"
    module = pytest.importorskip("kvpress", reason=reason, exc_type=ImportError)
    for name, function in before.items():
        ALL_ATTENTION_FUNCTIONS[name] = function
    return module


def inputs_of_attention(backbone: Backbone, text_1T: Tensor) -> list[dict[str, Any]]:
    """What the attention of every layer is called with."""
    inputs: list[dict[str, Any]] = []
    layers = [layer.self_attn for layer in backbone.model.model.layers]
    hooks = [
        layer.register_forward_pre_hook(lambda _, __, kwargs: inputs.append(kwargs), with_kwargs=True)
        for layer in layers
    ]
    with torch.no_grad():
        backbone.model(text_1T)
    for hook in hooks:
        hook.remove()
    return inputs


class Recorded(SnapKV):
    """Remembers the states at the ends of segments, before anything is dropped."""

    def __init__(self, backbone: Backbone, config: SnapKVConfig) -> None:
        super().__init__(backbone, config)
        self.states: list[ScoredState] = []

    def importance(self, state: ScoredState) -> Sequence[Tensor]:
        self.states.append(state)
        return super().importance(state)


@pytest.mark.parametrize(("window", "kernel", "keep"), [(8, 5, 30), (16, 1, 20), (3, 7, 50)])
def test_snapkv_scores_and_keeps_what_kvpress_does(kvpress: ModuleType, window: int, kernel: int, keep: int) -> None:
    backbone, N = BACKBONES["tiny-llama"], 60
    method = Recorded(backbone, SnapKVConfig(N=N, keep=keep, window=window, kernel=kernel))
    text_1T = tokens(N)
    press = kvpress.SnapKVPress(compression_ratio=1 - (keep + 0.5) / N, window_size=window, kernel_size=kernel)
    state = read(method, text_1T)
    (grown,) = method.states
    ours = SnapKV.importance(method, grown)
    for layer, inputs in enumerate(inputs_of_attention(backbone, text_1T)):
        module, hidden = backbone.model.model.layers[layer].self_attn, inputs["hidden_states"]
        rest = {"position_embeddings": inputs["position_embeddings"]}
        k_1KSD, v_1KSD = grown.kv.k[layer], grown.kv.v[layer]
        theirs = press.score(module, hidden, k_1KSD, v_1KSD, None, rest)
        votes = window * backbone.heads // backbone.kv_heads
        torch.testing.assert_close(ours[layer][..., :-window] / votes, theirs[..., :-window], rtol=0, atol=1e-5)
        _, values = press.compress(module, hidden, k_1KSD, v_1KSD, None, rest)
        assert values.shape[2] == keep
        for head in range(backbone.kv_heads):
            assert set(map(tuple, values[0, head].tolist())) == set(map(tuple, state.kv.v[layer][0, head].tolist()))
