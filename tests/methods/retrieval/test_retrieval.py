"""Retrieval: by hand, by the laws, against the sliding window that it begins as, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from law_forms import PARTS, broken
from random_texts import read, text
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.flops import count, llama_block_flops
from contextlab.accounting.memory import PeakMemory
from contextlab.attention import per_head, rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.testing import laws

FORMS: dict[str, dict[str, Any]] = {
    "default": {"K": 16},
    "learned": {"N": 24, "K": 8, "csz": 2, "sinks": 2, "rank": 2, "representatives": 1, "shared": True},
    "small": {"N": 17, "K": 12, "csz": 3, "M": 30, "first_layer": 0},
    "no sinks": {"N": 20, "K": 8, "sinks": 0, "first_layer": 3},
    "blocks": {"N": 17, "K": 14, "csz": 7, "M": 35, "representatives": 3, "shared": True, "stored_in": "host"},
}


@pytest.fixture(params=["tiny-llama", "tiny-gpt2"], scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def built(backbone: Backbone, **settings: Any) -> Retrieval:
    return Retrieval(backbone, RetrievalConfig(**settings))


@pytest.mark.parametrize(("family", "form"), [("tiny-gpt2", "learned"), ("tiny-llama", "small")])
@pytest.mark.parametrize("around", PARTS)
def test_laws(family: str, form: str, around: bool) -> None:
    assert broken(lambda b: built(b, **FORMS[form]), family, around=around) == {}


@pytest.mark.parametrize("law", ["causality", "rows", "saving", "restart"])
def test_laws_of_blocks_with_representatives(law: str) -> None:
    laws.LAWS[law](built(backbones.load("tiny-llama", device="cpu"), **FORMS["blocks"]))


@pytest.mark.parametrize("width", [1, 5, 16])
def test_blocks_with_representatives_are_the_same_however_the_text_is_split(llama: Backbone, width: int) -> None:
    method, tokens = built(llama, **FORMS["blocks"]), text(75, rows=2)
    state, parts = method.start(2), []
    for piece in tokens.split(width, dim=1):
        state, logprobs = method.read(state, piece)
        parts.append(logprobs)
    torch.testing.assert_close(torch.cat(parts, 1), read(method, tokens), atol=1e-5, rtol=1e-5)


class ByHand:
    """Attention written out: every token's keys before rotation, and for each window who sees whom at which slot."""

    def __init__(
        self,
        backbone: Backbone,
        N: int,
        sinks: int,
        K: int,
        csz: int,
        first_layer: int,
        representatives: int | None = None,
        shared: bool = False,
        every: int = 1,
    ) -> None:
        self.backbone, self.N, self.sinks, self.take, self.csz = backbone, N, sinks, K // csz, csz
        self.retrieving, self.window = range(first_layer, backbone.layers, every), 0
        self.representatives, self.shared = representatives, shared
        none = torch.zeros(1, backbone.kv_heads, 0, backbone.head_width)
        self.k, self.v = [none] * backbone.layers, [none] * backbone.layers
        self.scores = [torch.zeros(1, backbone.kv_heads, 200) for _ in range(backbone.layers)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None = None) -> Tensor:
        begin = self.window * self.N
        self.k[layer], self.v[layer] = torch.cat((self.k[layer], k), 2), torch.cat((self.v[layer], v), 2)
        end = begin + q.shape[2]
        recent = max(begin - self.N, 0)
        near = [*range(min(self.sinks, recent)), *range(recent, end)]
        groups = q.shape[1] // k.shape[1]
        all_k, all_v = (x[layer].repeat_interleave(groups, 1) for x in (self.k, self.v))
        q = self.turned(q, torch.arange(len(near) - q.shape[2], len(near)))
        products = q @ self.turned(all_k[:, :, near], torch.arange(len(near))).transpose(2, 3)
        distance = torch.arange(begin, end)[:, None] - torch.tensor(near)
        following = products.masked_fill((distance < 1) | (distance > self.N), 0.0)
        self.scores[layer][:, :, near] += following.unflatten(1, (-1, groups)).sum((2, 3)) / (groups * self.N)
        logits = products * scale
        logits = logits.masked_fill(torch.tensor(near) > torch.arange(begin, end)[:, None], -torch.inf)
        values = all_v[:, :, near]
        chunks = (recent - self.sinks) // self.csz
        if layer in self.retrieving and chunks > 0:
            old = torch.arange(self.sinks, self.sinks + chunks * self.csz)
            far_k = self.turned(all_k[:, :, old], torch.full(old.shape, self.sinks))
            in_chunks = far_k.unflatten(2, (chunks, self.csz))
            means = in_chunks.mean(3)
            if self.representatives is not None:
                scores = self.scores[layer].repeat_interleave(groups, 1)[:, :, old].unflatten(2, (chunks, self.csz))
                stand = torch.zeros_like(scores).scatter(3, scores.topk(self.representatives, -1).indices, 1.0)
                means = (in_chunks * stand[..., None]).sum(3)
            relevance = q @ means.transpose(2, 3)
            if self.shared:
                relevance = relevance.sum(1, keepdim=True).expand_as(relevance)
            best = relevance.topk(min(self.take, chunks), -1).indices
            chosen = torch.zeros(*q.shape[:3], chunks, dtype=torch.bool).scatter(3, best, True)
            far = (q @ far_k.transpose(2, 3) * scale).masked_fill(~chosen.repeat_interleave(self.csz, 3), -torch.inf)
            logits, values = torch.cat((logits, far), 3), torch.cat((values, all_v[:, :, old]), 2)
        return logits.softmax(-1) @ values

    def turned(self, x: Tensor, position: Tensor) -> Tensor:
        return rotate(x, per_head(self.backbone, position[None]))


@pytest.mark.parametrize(
    "settings",
    [
        {"N": 16, "sinks": 4, "K": 8, "csz": 4, "first_layer": 1},
        {"N": 17, "sinks": 3, "K": 4, "csz": 2, "first_layer": 0},
        {"N": 20, "sinks": 0, "K": 96, "csz": 3, "first_layer": 2},
        {"N": 16, "sinks": 4, "K": 8, "csz": 4, "first_layer": 0, "every": 2},
        {"N": 15, "sinks": 2, "K": 10, "csz": 5, "first_layer": 1, "representatives": 2},
        {"N": 15, "sinks": 2, "K": 10, "csz": 5, "first_layer": 0, "every": 3, "representatives": 2},
        {"N": 20, "sinks": 4, "K": 8, "csz": 4, "first_layer": 0, "representatives": 1, "shared": True},
    ],
)
def test_by_hand(llama: Backbone, settings: dict[str, Any]) -> None:
    tokens, attend = text(110, seed=3), ByHand(llama, **settings)
    pending, expected = llama.bos_hidden_C[None], []
    for begin in range(0, 110, settings["N"]):
        piece = tokens[:, begin : begin + settings["N"]]
        with torch.no_grad():
            hidden = llama.forward(piece, torch.zeros_like(piece), attend)
            expected.append(llama.logprobs(torch.cat((pending[:, None], hidden[:, :-1]), 1), piece))
        pending, attend.window = hidden[:, -1], attend.window + 1
    result = read(built(llama, **settings, M=240), tokens)
    torch.testing.assert_close(result, torch.cat(expected, 1), atol=2e-5, rtol=2e-5)


def test_it_begins_as_a_sliding_window_bitwise_and_then_differs(backbone: Backbone) -> None:
    method, sliding = built(backbone, N=24, K=8), Sliding(backbone, SlidingConfig(N=24))
    tokens = text(90, rows=2)
    result, expected = read(method, tokens), read(sliding, tokens)
    assert torch.equal(result[:, :48], expected[:, :48])
    assert not torch.allclose(result[:, 49:], expected[:, 49:], atol=1e-3)


def test_what_has_left_the_view_matters_as_far_back_as_the_bank_reaches(llama: Backbone) -> None:
    tokens, other = text(120), text(120)
    other[:, 20:28] = text(8, seed=1)
    for capacity, reaches in ((1024, True), (24, False)):
        method = built(llama, N=20, K=16, M=capacity, first_layer=0)
        # Keys of the first layer are those of the tokens alone; later ones carry on what was seen.
        first, second = (method.read(method.start(), x)[0].bank.kv.k[0] for x in (tokens, other))
        assert torch.equal(first, second) != reaches


def test_tokens_that_fill_no_chunk_wait_in_the_bank(llama: Backbone) -> None:
    method = built(llama, N=17, csz=4, K=8, sinks=3)
    state = method.start()
    for begin in range(0, 17 * 6, 17):
        state, _ = method.read(state, text(17, seed=begin))
        left = max(begin + 17 - 17 - 3, 0)
        assert state.bank.kv.used_B.tolist() == [left]
        assert state.bank.count_B.tolist() == [left // 4]


def test_rows_at_different_places_have_banks_of_their_own(backbone: Backbone) -> None:
    method, lengths = built(backbone, **FORMS["small"]), torch.tensor([110, 0, 35, 68])
    tokens, following = text(110, rows=4), text(40, rows=4, seed=1)
    state, _ = method.read(method.start(4), tokens, lengths)
    together = method.read(state, following)[1]
    assert together is not None
    for row, length in enumerate(lengths.tolist()):
        alone, _ = method.read(method.start(), tokens[row : row + 1, :length])
        own = method.read(alone, following[row : row + 1])[1]
        assert own is not None
        torch.testing.assert_close(together[row], own[0], atol=1e-5, rtol=1e-5)


def test_readings_that_go_on_from_one_state_do_not_meet(llama: Backbone) -> None:
    method = built(llama, N=16, K=8)
    state, _ = method.read(method.start(), text(100), logprobs=False)
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    ways = [method.read(state, text(60, seed=seed))[1] for seed in (1, 2, 1)]
    assert torch.equal(ways[0], ways[2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors().items())


PROMPTS = [[3, 5, 7, 9], [], [11], [20, 21, 22, 23, 24, 25], [4, 4]]


@pytest.mark.parametrize("length", [0, 5, 70, 96])
def test_continuations_share_the_bank_and_equal_those_of_copies(backbone: Backbone, length: int) -> None:
    """Also where a window ends inside of them (after 70 tokens of windows of 24), which makes copies needed."""
    method = built(backbone, N=24, K=8)
    state, _ = method.read(method.start(), text(length))
    scores = method.score(state, PROMPTS)
    for prompt, result in zip(PROMPTS, scores[0], strict=True):
        alone = ContextMethod.score(method, state, [prompt])[0, 0]
        torch.testing.assert_close(result[: len(prompt)], alone, atol=1e-5, rtol=1e-5)
    written = method.generate(state, PROMPTS, max_new_tokens=5)
    assert written == [ContextMethod.generate(method, state, [prompt], max_new_tokens=5)[0] for prompt in PROMPTS]


def test_many_continuations_do_not_copy_the_bank(llama: Backbone) -> None:
    method = built(llama, N=32, K=16)
    state, _ = method.read(method.start(), text(6000), logprobs=False)
    bank_bytes = sum(tensor.nbytes for name, tensor in state.tensors().items() if name.startswith("bank."))
    with PeakMemory() as memory:
        method.score(state, PROMPTS)
        method.generate(state, PROMPTS, max_new_tokens=3)
    assert memory.peak_bytes < len(PROMPTS) * bank_bytes / 2


def test_scores_are_counted_in_the_state(llama: Backbone) -> None:
    """One of every token in view, and of the tokens of the bank that fill no chunk yet, per layer and key head."""
    sizes = []
    for representatives in (None, 2):
        method = built(llama, N=32, K=8, csz=8, representatives=representatives)
        sizes.append(method.read(method.start(), text(96 + 5), logprobs=False)[0].nbytes)
    numbers = len(method.reach.layers) * llama.kv_heads
    assert sizes[1] - sizes[0] == (41 + (96 - 36) % 8) * numbers * 4


def test_all_tokens_of_a_chunk_as_representatives_are_its_mean(backbone: Backbone) -> None:
    tokens = text(150, rows=2)
    results = [read(built(backbone, N=20, K=12, csz=4, representatives=r), tokens) for r in (None, 4, 1)]
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(results[2], results[0], atol=1e-3)


@pytest.mark.parametrize("every", [1, 2, 3, 9])
def test_only_layers_that_retrieve_have_a_bank_and_learn(llama: Backbone, every: int) -> None:
    method = built(llama, N=24, K=8, first_layer=0, every=every, rank=2)
    state, _ = method.read(method.start(), text(100))
    layers = -(-llama.layers // every)
    assert len(state.bank.kv.k) == len(state.bank.mean.k) == len(method.learned) == layers


@pytest.mark.parametrize("storage", [None, "float16"])
def test_state_size_is_view_and_bank(backbone: Backbone, storage: str | None) -> None:
    method = built(backbone, N=32, K=8, storage_dtype=storage)
    state, _ = method.read(method.start(), text(96 + 5), logprobs=False)
    numbers, layers = backbone.kv_heads * backbone.head_width, len(method.reach.layers)
    view = (4 + 32 + 5) * backbone.layers * 2 * numbers * 4
    bank = (96 - 36) * layers * 2 * numbers * (2 if storage else 4) + 15 * layers * numbers * 4
    assert state.nbytes == view + bank + 5 * 8 + backbone.width * 4
    assert state.cached == 41


def test_narrow_storage_changes_little(llama: Backbone) -> None:
    tokens = text(140)
    result, narrow = (read(built(llama, N=24, K=16, storage_dtype=storage), tokens) for storage in (None, "float16"))
    assert 0 < float((result - narrow).abs().max()) < 1e-2


def test_its_cost_is_that_of_sliding_a_search_and_the_retrieved_tokens(llama: Backbone) -> None:
    N, K, csz = 32, 8, 4
    method = built(llama, N=N, K=K, csz=csz)
    _ = llama.bos_hidden_C
    tokens = text(128)

    def flops(method: ContextMethod[Any, Any]) -> int:
        return count(lambda: method.read(method.start(), tokens, logprobs=False))[1]

    pairs = sum(t + 1 if t < 2 * N else 4 + N + t % N + 1 for t in range(128))
    sliding = llama.layers * llama_block_flops(128, pairs, llama.config)
    assert flops(Sliding(llama, SlidingConfig(N=N))) == pytest.approx(sliding, rel=0.001)
    chunks = [0, 0, (N - 4) // csz, (2 * N - 4) // csz]
    per_token = llama.heads * llama.head_width
    search = sum(2 * n * N * per_token for n in chunks)
    retrieved = sum((n > 0) * 4 * K * N * per_token for n in chunks)
    layers = len(method.reach.layers)
    assert flops(method) == pytest.approx(sliding + layers * (search + retrieved), rel=0.001)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"K": 6}, "K=6 and M=65536 must be multiples of the chunk size csz=4."),
        ({"M": 2}, "K=64 and M=2 must be multiples"),
        ({"first_layer": 4}, "first_layer=4 does not exist: the backbone has layers 0 to 3."),
        ({"N": 4096}, "use N=62"),
        ({"representatives": 5}, "representatives=5 are more than the csz=4 tokens of a chunk"),
        ({"weights": "w.safetensors"}, "set rank as well"),
    ],
)
def test_settings_that_do_not_fit(llama: Backbone, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        built(llama, **settings)


def test_models_with_alibi_are_refused(llama: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(llama), "slopes_H", torch.ones(4))
    with pytest.raises(UserError, match="use longmem with an ALiBi model"):
        built(llama)


@pytest.mark.parametrize(("N", "retrieves"), [(24, True), (25, False)])
def test_layers_with_a_narrow_window_of_their_own_do_not_retrieve(N: int, retrieves: bool) -> None:
    """Where retrieved tokens stand farther away than the model's own layers look."""
    mistral = backbones.load("tiny-mistral", device="cpu")
    assert mistral.config.sliding_window == 48
    tokens = text(120)
    expected = read(Sliding(mistral, SlidingConfig(N=N)), tokens)
    assert torch.equal(read(built(mistral, K=8, N=N), tokens), expected) != retrieves
