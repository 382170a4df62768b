"""What methods cost by the ledger's count, against arithmetic by hand."""

from __future__ import annotations

import pytest
import torch

from contextlab.accounting.flops import count, gpt2_block_flops, head_flops, llama_block_flops
from contextlab.backbone import load
from contextlab.methods.dynamic_eval import DynamicEval, DynamicEvalConfig
from contextlab.methods.full import Full
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.trime import TRIME, TRIMEConfig
from contextlab.methods.window import Window, WindowConfig

BLOCK = {"tiny-llama": llama_block_flops, "tiny-gpt2": gpt2_block_flops}
LAYERS = 4


def read_flops(method, length, *, logprobs):
    tokens = torch.randint(0, 256, (1, length))
    state = method.start()
    return count(lambda: method.read(state, tokens, logprobs=logprobs))[1]


def triangle(n):
    return n * (n + 1) // 2


@pytest.fixture(params=list(BLOCK), scope="module")
def backbone(request):
    loaded = load(request.param)
    _ = loaded.bos_hidden_C
    return loaded


def by_hand(backbone, tokens, pairs):
    return LAYERS * BLOCK[backbone.name](tokens, pairs, backbone.config)


@pytest.mark.parametrize("length", [1, 17, 100, 128])
def test_full_attends_causally_and_projects_only_what_is_scored(backbone, length):
    expected = by_hand(backbone, length, triangle(length))
    assert read_flops(Full(backbone), length, logprobs=False) == pytest.approx(expected, rel=0.01)
    expected += head_flops(length, backbone.config)
    assert read_flops(Full(backbone), length, logprobs=True) == pytest.approx(expected, rel=0.01)


def test_full_costs_the_same_in_any_pieces(backbone):
    method = Full(backbone)
    text = torch.randint(0, 256, (1, 90))

    def in_pieces():
        state = method.start()
        for begin, end in ((0, 31), (31, 32), (32, 90)):
            state, _ = method.read(state, text[:, begin:end], logprobs=False)

    assert count(in_pieces)[1] == read_flops(method, 90, logprobs=False)


def test_window_pays_for_its_windows_and_skips_those_that_leave_nothing(backbone):
    method = Window(backbone, WindowConfig(N=32))
    scored = 3 * by_hand(backbone, 32, triangle(32)) + by_hand(backbone, 4, triangle(4))
    scored += head_flops(100, backbone.config)
    assert read_flops(method, 100, logprobs=True) == pytest.approx(scored, rel=0.01)
    assert read_flops(method, 100, logprobs=False) == pytest.approx(by_hand(backbone, 4, triangle(4)), rel=0.01)


def test_sliding_sees_up_to_two_windows_and_the_sinks(backbone):
    method = Sliding(backbone, SlidingConfig(N=20, sinks=3))
    pairs = triangle(40) + 20 * 23 + triangle(20)
    expected = by_hand(backbone, 60, pairs)
    assert read_flops(method, 60, logprobs=False) == pytest.approx(expected, rel=0.01)


def test_sinks_sees_a_band_and_the_sinks(backbone):
    method = Sinks(backbone, SinksConfig(sinks=2, recent=9))
    pairs = sum(min(t + 1, 11) for t in range(70))
    expected = by_hand(backbone, 70, pairs)
    assert read_flops(method, 70, logprobs=False) == pytest.approx(expected, rel=0.01)


def test_candidates_share_the_cost_of_the_context(backbone):
    method = Full(backbone)
    state, _ = method.read(method.start(), torch.randint(0, 256, (1, 80)))
    candidates = [[1] * 10] * 4
    expected = by_hand(backbone, 40, 4 * (80 * 10 + triangle(10))) + head_flops(40, backbone.config)
    assert count(lambda: method.score(state, candidates))[1] == pytest.approx(expected, rel=0.01)


def test_longmem_contextualises_up_to_its_cached_layer_only(backbone):
    method = LongMem(backbone, LongMemConfig(N=32, K=8, init="paper"))
    _ = method._bos_hidden_C
    assert method.memory_layer == 2
    one = BLOCK[backbone.name](32, triangle(32), backbone.config)
    tail = BLOCK[backbone.name](4, triangle(4), backbone.config)
    chunks = 3 * 32 // 4
    width, heads = backbone.head_width, backbone.heads
    memory = heads * 4 * 2 * width * (chunks + 2 * 8)
    expected = 3 * 3 * one + (LAYERS + 2) * tail + memory
    assert read_flops(method, 100, logprobs=False) == pytest.approx(expected, rel=0.01)


def test_hso_runs_every_updated_window_backwards_through_its_activations():
    """No gradient of a weight, none below the first layer's keys and values, and none for the last window."""
    backbone = load("tiny-llama")
    _ = backbone.bos_hidden_C
    length, k, config = 125, 25, backbone.config
    method, window = HSO(backbone, HSOConfig(k=k)), Window(backbone)
    forward = read_flops(window, length, logprobs=True)
    tokens = length - k
    projections = llama_block_flops(tokens, 0, config)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    inputs = 2 * tokens * config.hidden_size * backbone.head_width * (heads + 2 * kv_heads)
    seen = sum(triangle(done + k) - triangle(done) for done in range(0, tokens, k))
    attention = 2 * 4 * seen * heads * backbone.head_width
    backward = LAYERS * (projections + attention) - inputs + head_flops(tokens, config)
    assert read_flops(method, length, logprobs=True) == pytest.approx(forward + backward, rel=0.01)


def test_dynamic_evaluation_pays_two_forward_passes_for_a_backward_one():
    backbone = load("tiny-llama")
    _ = backbone.bos_hidden_C
    method, window = DynamicEval(backbone, DynamicEvalConfig(segment=32)), Window(backbone)
    forward, both = (read_flops(each, 97, logprobs=True) for each in (window, method))
    assert 2.5 * forward < both < 3.1 * forward


def test_an_update_costs_what_its_two_thin_products_do():
    backbone = load("tiny-llama")
    plain = read_flops(Window(backbone), 100, logprobs=True)
    updated = Window(backbone, WindowConfig(rank=3))
    _ = updated.start()
    # Queries and outputs map 32 to 32, keys and values 32 to 16.
    update = LAYERS * 2 * 3 * (2 * (32 + 32) + 2 * (32 + 16))
    assert read_flops(updated, 100, logprobs=True) == plain + 100 * update


def test_memtrm_pays_for_a_look_at_the_bank_and_what_it_takes_of_it(backbone):
    method = MemTRM(backbone, MemTRMConfig(N=32, K=8, rank=0))
    window = read_flops(Window(backbone, WindowConfig(N=32)), 80, logprobs=True)
    looks = backbone.heads * 2 * backbone.head_width * (32 * 32 + 16 * 64)
    taken = backbone.heads * 4 * backbone.head_width * 8 * 48
    assert read_flops(method, 80, logprobs=True) == pytest.approx(window + looks + taken, rel=0.01)
    # What is not scored ends at the memory layer, but for the last piece, which may be followed by a question.
    one, tail = (BLOCK[backbone.name](n, triangle(n), backbone.config) for n in (32, 16))
    looks, taken = (backbone.heads * n * backbone.head_width for n in (2 * 16 * 64, 4 * 8 * 16))
    expected = 2 * 3 * one + LAYERS * tail + looks + taken
    assert read_flops(method, 80, logprobs=False) == pytest.approx(expected, rel=0.01)


def test_trime_pays_for_a_look_at_every_pair(backbone):
    method = TRIME(backbone, TRIMEConfig(N=32, M=20, rank=0))
    _ = method.start()
    window = read_flops(Window(backbone, WindowConfig(N=32)), 80, logprobs=True)
    # The pairs of the open segment are products of all its tokens with all before the block's end.
    pairs = 80 * 32 + (80 - 32) * 20 - 16 * 16
    assert read_flops(method, 80, logprobs=True) == pytest.approx(window + 2 * backbone.width * pairs, rel=0.02)
