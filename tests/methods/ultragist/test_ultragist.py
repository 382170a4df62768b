"""UltraGist against one pass over tokens and gists together, and as a state machine."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.flops import count, llama_block_flops
from contextlab.accounting.memory import storage_bytes
from contextlab.accounting.products import ProductCounter
from contextlab.attention import rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.full import Full
from contextlab.methods.ultragist import UltraGist, UltraGistConfig
from contextlab.methods.ultragist.gists import Windows, end_of_text
from contextlab.testing import laws

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt"]
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"W": 16, "ratio": 4, "rank": 2},
    "uneven": {"W": 18, "ratio": 5, "rank": 2, "sinks": 3},
    "evicting": {"W": 24, "ratio": 2, "rank": 1, "sinks": 0, "M": 20},
}


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


@pytest.fixture(scope="module")
def exact() -> dict[str, Backbone]:
    return {name: backbones.load(name, device="cpu", dtype="float64") for name in FAMILIES}


def text(length: int, rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def built(backbone: Backbone, **changed: Any) -> UltraGist:
    return UltraGist(backbone, UltraGistConfig(**{**FORMS["plain"], **changed}))


def moved(method: UltraGist) -> UltraGist:
    """The method with gists whose projections and embedding are not the backbone's."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.gists.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw).to(parameter))
    return method


def read(method: Any, tokens: Tensor, ahead: Lengths | None = None) -> tuple[Any, Tensor]:
    state, logprobs = method.read(method.start(len(tokens), ahead=ahead), tokens)
    assert logprobs is not None
    return state, logprobs


class OnePass:
    """Tokens and gists as one sequence: each group of queries sees a list of elements, at positions of its own.

    Written from the paper's description, without a cache: a group is the tokens of a window, or a gist.
    """

    def __init__(self, method: UltraGist, length: int, context: int = 0) -> None:
        config, extent = method.config, method.extent
        self.backbone = method.backbone
        self.tokens: list[int] = []  # number in the text of every element, -1 of a gist
        self.groups: list[tuple[list[int], list[int], list[list[int]]]] = []  # queries, their keys, and what each sees
        self.positions: list[tuple[list[int], list[int]]] = []  # of the queries, of the keys
        memory: list[int] = []
        begin = 0
        while begin < length:
            wanted = min(extent.window, context - begin) if begin < context else extent.window
            window = range(begin, min(begin + wanted, length))
            elements = [self._add(number) for number in window]
            front = len(memory)
            slots = list(range(front + len(elements)))
            seen = [slots[: front + i + 1] for i in range(len(elements))]
            self._group(elements, [front + i for i in range(len(elements))], [*memory, *elements], slots, seen)
            begin = window.stop
            if len(window) < wanted:
                break
            gists: list[int] = []
            for j in range(1, math.ceil(len(window) / config.ratio) + 1):
                tokens = min(j * config.ratio, len(window))
                gists.append(self._add(-1))
                before = [front + min(i * config.ratio, len(window)) + i - 1 for i in range(1, j + 1)]
                keys = [*memory, *elements[:tokens], *gists]
                places = [*range(front + tokens), *before]
                self._group(gists[-1:], before[-1:], keys, places, [list(range(len(keys)))])
            sinks = memory[: config.sinks] if memory else elements[: config.sinks]
            memory = [*sinks, *[*memory[config.sinks :], *gists][-extent.gists :]]

    def _add(self, number: int) -> int:
        self.tokens.append(number)
        return len(self.tokens) - 1

    def _group(
        self, queries: list[int], at: list[int], keys: list[int], places: list[int], seen: list[list[int]]
    ) -> None:
        self.groups.append((queries, keys, seen))
        self.positions.append((at, places))

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        out_BHTD = torch.zeros_like(q_BHTD)
        groups = q_BHTD.shape[1] // k_BKTD.shape[1]
        k_BHTD, v_BHTD = (x.repeat_interleave(groups, dim=1) for x in (k_BKTD, v_BKTD))
        for (queries, keys, seen), (at, places) in zip(self.groups, self.positions, strict=True):
            q = rotate(q_BHTD[:, :, queries], self._rotary(at))
            k = rotate(k_BHTD[:, :, keys], self._rotary(places))
            scores = q @ k.mT * scale
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool)
            for row, visible in enumerate(seen):
                hidden[row, visible] = False
            out_BHTD[:, :, queries] = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v_BHTD[:, :, keys]
        return out_BHTD

    def _rotary(self, positions: list[int]) -> Any:
        return self.backbone.rotary(torch.tensor([positions]))

    @property
    def learned_positions(self) -> Tensor:
        """`position_1T` of every element, where the model learns positions."""
        at = {query: p for (queries, _, _), (ps, _) in zip(self.groups, self.positions, strict=True)
              for query, p in zip(queries, ps, strict=True)}  # fmt: skip
        return torch.tensor([[at[element] for element in range(len(self.tokens))]])


@torch.no_grad()
def in_one_pass(method: UltraGist, tokens: Tensor, context: int = 0) -> Tensor:
    """`logprobs_1T` of a text behind its first token."""
    one_pass = OnePass(method, tokens.shape[1], context)
    gist_T = torch.tensor(one_pass.tokens) < 0
    network = method.gists._network[0]
    embeddings = method.backbone.model.get_input_embeddings()(tokens[0, torch.tensor(one_pass.tokens).clamp(min=0)])
    embeddings = torch.where(gist_T[:, None], method.gists.embedding_C.to(embeddings.dtype), embeddings)
    hooks = []
    for name, module in network.model.named_modules():
        if name.endswith(("lora_B.default",)):
            # The difference of the projections is that of gists alone.
            hooks.append(module.register_forward_hook(lambda _m, _a, out: out * gist_T.view(-1, 1)))
    try:
        hidden = network.forward_embedded(embeddings[None], one_pass.learned_positions, one_pass)
    finally:
        for hook in hooks:
            hook.remove()
    return method.backbone.logprobs(hidden[:, ~gist_T][:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("form", FORMS)
def test_equals_one_pass_over_tokens_and_gists(exact: dict[str, Backbone], backbone: Backbone, form: str) -> None:
    method = moved(UltraGist(exact[backbone.name], UltraGistConfig(**FORMS[form])))
    for length, context in ((110, 0), (70, 41)):
        tokens = text(length)
        logprobs = read(method, tokens, Lengths(context) if context else None)[1]
        torch.testing.assert_close(logprobs[:, 1:], in_one_pass(method, tokens, context).float(), atol=1e-5, rtol=1e-5)


def test_evicted_gists_are_those_of_the_oldest_windows(exact: dict[str, Backbone]) -> None:
    """With learned positions a gist keeps the one that it was computed at; the reference above moves no key either."""
    method = moved(UltraGist(exact["tiny-llama"], UltraGistConfig(**FORMS["evicting"])))
    tokens, other = text(100), text(100)
    other[:, :24] = text(24, seed=1)
    # Twelve gists of the first window are gone when the third begins, but later gists have seen them.
    state = method.read(method.start(), tokens)[0]
    assert state.front_B.tolist() == [20]
    assert state.kv.used_B.tolist() == [20 + 100 % 24]


@settings(max_examples=12, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    form=st.sampled_from(sorted(FORMS)),
    context=st.sampled_from([0, 1, 37, 80]),
    cuts=st.lists(st.integers(0, 90), max_size=5),
)
def test_any_split_gives_the_same(
    exact: dict[str, Backbone], family: str, form: str, context: int, cuts: list[int]
) -> None:
    method = moved(UltraGist(exact[family], UltraGistConfig(**FORMS[form])))
    tokens = text(90, seed=len(cuts))
    whole, expected = read(method, tokens, Lengths(context))
    state, pieces = method.start(ahead=Lengths(context)), []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 90], strict=True):
        state, part = method.read(state, tokens[:, begin:end])
        pieces.append(part)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state.pending_BC, whole.pending_BC, atol=1e-9, rtol=1e-9)
    assert state.front_B.tolist() == whole.front_B.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_end_windows_at_different_places_equal_rows_alone(backbone: Backbone, form: str) -> None:
    method, tokens = moved(UltraGist(backbone, UltraGistConfig(**FORMS[form]))), text(100, rows=4)
    lengths = torch.tensor([100, 16, 0, 55])
    state, together = method.read(method.start(4), tokens, lengths)
    rest = torch.stack([tokens[row].roll(-int(n)) for row, n in enumerate(lengths)])
    after, later = method.read(state, rest, 100 - lengths)
    assert together is not None
    assert later is not None
    for row, n in enumerate(lengths.tolist()):
        expected = read(method, tokens[row : row + 1])[1][0]
        torch.testing.assert_close(
            torch.cat((together[row, :n], later[row, : 100 - n])), expected, atol=1e-4, rtol=1e-4
        )
    assert after.length_B.tolist() == [100] * 4


def test_the_first_window_is_full_attention(backbone: Backbone) -> None:
    method, tokens = moved(built(backbone, W=64)), text(64)
    torch.testing.assert_close(read(method, tokens)[1], read(Full(backbone), tokens)[1], atol=1e-5, rtol=1e-5)


def test_gists_bring_what_has_left_the_window(backbone: Backbone) -> None:
    method, tokens, other = moved(built(backbone, sinks=0)), text(60), text(60)
    other[:, 2:14] = text(12, seed=1)
    gap = (read(method, tokens)[1] - read(method, other)[1])[:, 17:].abs().max()
    assert gap > 1e-3


def test_later_gists_see_more_of_their_window(llama: Backbone) -> None:
    """Step expansion: a token in the last quarter of a window changes the last of four gists alone."""
    method, tokens, other = moved(built(llama)), text(16), text(16)
    other[0, 13] = (other[0, 13] + 1) % 256
    first, second = (read(method, tokens_BT)[0].kv for tokens_BT in (tokens, other))
    same = [torch.equal(first.k[-1][:, :, slot], second.k[-1][:, :, slot]) for slot in range(5)]
    assert same == [True, True, True, True, False]


def test_positions_of_gists_are_those_of_the_paper() -> None:
    windows = Windows(torch.tensor([7, 0]), torch.tensor([16, 5]), torch.tensor([4, 4]))
    assert windows.gists_B.tolist() == [4, 2]
    # Memory size + j a + (j - 1), for j from 1.
    assert windows.position_BG[0].tolist() == [7 + 4 * j + j - 1 for j in (1, 2, 3, 4)]
    assert windows.seen_BG.tolist() == [[4, 8, 12, 16], [4, 5, 5, 5]]
    assert windows.position_BG[1, :2].tolist() == [4, 6]


def test_the_end_of_an_announced_context_is_compressed(llama: Backbone) -> None:
    method = built(llama)
    state = method.read(method.start(ahead=Lengths(41, 9)), text(41), logprobs=False)[0]
    # One sink, four gists for each whole window, and three for the nine tokens behind them.
    assert state.front_B.tolist() == state.kv.used_B.tolist() == [1 + 4 + 4 + 3]
    assert state.left_B.tolist() == [16]
    plain = method.read(method.start(), text(41), logprobs=False)[0]
    assert plain.front_B.tolist() == [1 + 8]
    assert plain.kv.used_B.tolist() == [1 + 8 + 9]


def test_state_holds_what_the_formula_says(backbone: Backbone) -> None:
    state = built(backbone).read(built(backbone).start(), text(53), logprobs=False)[0]
    slots = 1 + 3 * 4 + 5
    numbers = backbone.layers * slots * 2 * backbone.kv_heads * backbone.head_width + backbone.width
    assert state.nbytes == 4 * numbers + 5 * 8
    assert state.cached == slots
    assert storage_bytes(state.tensors().values()) <= 1.2 * state.nbytes


def test_flops_are_those_of_tokens_and_gists_and_of_what_they_see(llama: Backbone) -> None:
    _ = llama.bos_hidden_C
    method = built(llama)
    state, window, gists = method.start(), 16, 4
    triangle = window * (window + 1) // 2
    fronts = [0, 5, 9]
    pairs = sum(window * front + triangle for front in fronts)
    pairs += sum(sum(front + 4 * j + j for j in (1, 2, 3, 4)) for front in fronts)
    # Queries and outputs map 32 to 32, keys and values 32 to 16.
    update = llama.layers * 2 * 2 * (2 * (32 + 32) + 2 * (32 + 16))
    expected = llama.layers * llama_block_flops(3 * (window + gists), pairs, llama.config) + 3 * gists * update
    counted = count(lambda: method.read(state, text(48), logprobs=False))[1]
    assert counted == expected


def test_products_and_watch_count_the_same(backbone: Backbone) -> None:
    method, tokens = moved(built(backbone)), text(60)
    state = method.start()
    with ProductCounter() as products:
        method.read(state, tokens)
    assert count(lambda: method.read(state, tokens))[1] == products.flops


def test_ratios_are_drawn_in_training_alone(llama: Backbone) -> None:
    method, tokens = moved(built(llama, W=32, ratios="2|8")), text(32, rows=16)
    fixed = {int(front) for front in method.read(method.start(16), tokens)[0].front_B}
    assert fixed == {1 + 8}
    method.gists.train()
    drawn = {int(front) for front in method.learn(method.start(16), tokens)[0].front_B}
    assert drawn == {1 + 16, 1 + 4}
    single = built(llama, W=32, ratios="none")
    single.gists.train()
    assert {int(front) for front in single.learn(single.start(16), tokens)[0].front_B} == {1 + 8}


def test_a_few_steps_put_the_window_before_into_gists(llama: Backbone) -> None:
    """A text of two equal windows, of random tokens: only gists can tell the second."""
    method = built(llama, W=24, ratio=2, ratios="none", rank=8, sinks=0)
    window = text(24, rows=6)
    tokens = torch.cat((window, window), dim=1)
    optimiser = torch.optim.Adam(method.gists.parameters(), lr=1e-2)
    losses = []
    for _ in range(25):
        loss = -method.learn(method.start(6), tokens)[1].logprobs_BT[:, 25:].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
    assert not method.untrained


def test_untrained_gists_are_the_end_of_a_text_with_the_backbones_projections(backbone: Backbone) -> None:
    method = built(backbone)
    assert method.untrained
    assert method.baseline() is None
    embedding = backbone.model.get_input_embeddings().weight[end_of_text(backbone)]
    assert torch.equal(method.gists.embedding_C.detach(), embedding)
    assert method.twin == "window(N=16,rank=2)"


def test_weights_go_through_a_file_and_are_small(llama: Backbone, tmp_path: Any) -> None:
    method = moved(built(llama))
    method.save_weights(tmp_path / "weights.safetensors", torch.float16)
    again = built(llama, weights=tmp_path / "weights.safetensors", ratio=8, W=32)
    assert not again.untrained
    numbers = 32 + 4 * 2 * (2 * (32 + 32) + 2 * (32 + 16))
    assert method.added_parameters == method.trained_parameters == numbers
    assert (tmp_path / "weights.safetensors").stat().st_size < 2 * numbers + 6000


def test_candidates_in_one_pass_equal_forks(backbone: Backbone) -> None:
    method = moved(built(backbone))
    for length in (10, 30, 33):
        state = method.read(method.start(2), text(length, rows=2), torch.tensor([length, length // 2]))[0]
        for candidates in ([[1, 2, 3], [9]], [[1] * 9, [2] * 3]):
            expected = ContextMethod.score(method, state, candidates)
            torch.testing.assert_close(method.score(state, candidates), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "form"), [("tiny-opt", "uneven"), ("tiny-gpt2", "evicting"), ("tiny-llama", "plain")]
)
@pytest.mark.parametrize("law", ["causality", "streaming", "rows", "forks", "restart", "saving", "counting"])
def test_laws(family: str, form: str, law: str) -> None:
    laws.LAWS[law](moved(UltraGist(backbones.load(family, device="cpu"), UltraGistConfig(**FORMS[form]))))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"W": 120}, "use a smaller W"),
        ({"M": 200}, "use a smaller W or M"),
        ({"sinks": 120}, "do not fit the model's 128 positions"),
    ],
)
def test_what_does_not_fit_is_one_sentence(llama: Backbone, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        UltraGist(llama, UltraGistConfig.parse({**FORMS["plain"], **changed}))


def test_defaults_leave_room_for_windows_and_gists() -> None:
    large = UltraGistConfig().extent(8192)
    assert (large.window, large.gists) == (1024, 8192 - 1 - 1024 - 512)
    assert UltraGistConfig().extent(128).window == 64
