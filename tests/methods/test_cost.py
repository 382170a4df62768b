"""What methods cost by the ledger's count, against arithmetic by hand; `test_method_formulas` has the other methods.

The formulas say the same about these, but share parts with each other that could be wrong together.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab.accounting.flops import count, gpt2_block_flops, head_flops, llama_block_flops
from contextlab.backbone import load
from contextlab.backbone.wrapper import Backbone
from contextlab.formula import Row
from contextlab.methods.full import Full
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.window import Window, WindowConfig

BLOCK = {"tiny-llama": llama_block_flops, "tiny-gpt2": gpt2_block_flops}
LAYERS = 4


def read_flops(method: Any, length: int, *, logprobs: bool) -> int:
    tokens = torch.randint(0, 256, (1, length))
    state = method.start()
    return count(lambda: method.read(state, tokens, logprobs=logprobs))[1]


def triangle(n: Any) -> Any:
    return n * (n + 1) // 2


@pytest.fixture(params=list(BLOCK), scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    loaded = load(request.param)
    _ = loaded.bos_hidden_C
    return loaded


def by_hand(backbone: Backbone, tokens: int, pairs: int) -> Any:
    return LAYERS * BLOCK[backbone.name](tokens, pairs, backbone.config)


@pytest.mark.parametrize("length", [1, 17, 100, 128])
def test_full_attends_causally_and_projects_only_what_is_scored(backbone: Backbone, length: int) -> None:
    expected = by_hand(backbone, length, triangle(length))
    assert read_flops(Full(backbone), length, logprobs=False) == pytest.approx(expected, rel=0.01)
    expected += head_flops(length, backbone.config)
    assert read_flops(Full(backbone), length, logprobs=True) == pytest.approx(expected, rel=0.01)
    assert Full(backbone).formula().read([Row(0, length)], logprobs=True) == expected


def test_full_costs_the_same_in_any_pieces(backbone: Backbone) -> None:
    method = Full(backbone)
    text = torch.randint(0, 256, (1, 90))

    def in_pieces() -> None:
        state = method.start()
        for begin, end in ((0, 31), (31, 32), (32, 90)):
            state, _ = method.read(state, text[:, begin:end], logprobs=False)

    assert count(in_pieces)[1] == read_flops(method, 90, logprobs=False)


def test_window_pays_for_its_windows_and_skips_those_that_leave_nothing(backbone: Backbone) -> None:
    method = Window(backbone, WindowConfig(N=32))
    scored = 3 * by_hand(backbone, 32, triangle(32)) + by_hand(backbone, 4, triangle(4))
    scored += head_flops(100, backbone.config)
    assert read_flops(method, 100, logprobs=True) == pytest.approx(scored, rel=0.01)
    assert read_flops(method, 100, logprobs=False) == pytest.approx(by_hand(backbone, 4, triangle(4)), rel=0.01)
    assert method.formula().read([Row(0, 100)], logprobs=True) == scored


def test_sliding_sees_up_to_two_windows_and_the_sinks(backbone: Backbone) -> None:
    method = Sliding(backbone, SlidingConfig(N=20, sinks=3))
    pairs = triangle(40) + 20 * 23 + triangle(20)
    expected = by_hand(backbone, 60, pairs)
    assert read_flops(method, 60, logprobs=False) == pytest.approx(expected, rel=0.01)
    assert method.formula().read([Row(0, 60)], logprobs=False) == expected


def test_candidates_share_the_cost_of_the_context(backbone: Backbone) -> None:
    method = Full(backbone)
    state, _ = method.read(method.start(), torch.randint(0, 256, (1, 80)))
    candidates = [[1] * 10] * 4
    expected = by_hand(backbone, 40, 4 * (80 * 10 + triangle(10))) + head_flops(40, backbone.config)
    assert count(lambda: method.score(state, candidates))[1] == pytest.approx(expected, rel=0.01)


def test_an_update_costs_what_its_two_thin_products_do() -> None:
    backbone = load("tiny-llama")
    plain = read_flops(Window(backbone), 100, logprobs=True)
    updated = Window(backbone, WindowConfig(rank=3))
    _ = updated.start()
    # Queries and outputs map 32 to 32, keys and values 32 to 16.
    update = LAYERS * 2 * 3 * (2 * (32 + 32) + 2 * (32 + 16))
    assert read_flops(updated, 100, logprobs=True) == plain + 100 * update
