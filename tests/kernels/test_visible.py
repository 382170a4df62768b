"""Attention in blocks of queries is attention: the keys that are left out have no weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contextlab.accounting.products import ProductCounter
from contextlab.attention.reader import sdpa
from contextlab.kernels import part
from contextlab.kernels.visible import HIDDEN, QUERIES_AT_ONCE, blocks

NEVER = float("-inf")


def causal(queries: int, keys: int, *, band: int | None = None, first: int = 0) -> Tensor:
    """`seen_TS` of the last queries of a sequence of keys."""
    query_T1 = torch.arange(keys - queries, keys)[:, None]
    key_S = torch.arange(keys)
    seen_TS = key_S <= query_T1
    return seen_TS if band is None else seen_TS & ((key_S > query_T1 - band) | (key_S < first))


def added(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, NEVER)


def alibi(seen_TS: Tensor, heads: int) -> Tensor:
    """A mask `(1, H, T, S)` with another bias in every head."""
    slopes_H11 = torch.arange(1, heads + 1, dtype=torch.float64)[:, None, None]
    return (slopes_H11 * torch.arange(seen_TS.shape[1]) / 100).masked_fill(~seen_TS, NEVER)[None]


MASKS = {
    "causal": added(causal(600, 900))[None, None],
    "bool": causal(600, 900)[None, None],
    "band": added(causal(600, 900, band=40))[None, None],
    "band and sinks": added(causal(600, 900, band=40, first=3))[None, None],
    "rows of two lengths": torch.stack([added(causal(600, 900)), added(causal(600, 900, band=200))])[:, None],
    "alibi": alibi(causal(600, 900), 4),
    "one row": added(torch.arange(900) < 700)[None, None, None],
    "few queries": added(causal(8, 900))[None, None],
}


def inputs(mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    queries = mask.shape[2] if mask.shape[2] > 1 else 600
    shapes = (2, 4, queries, 16), (2, 2, 900, 16), (2, 2, 900, 16)
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return q, k, v


def plain(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor) -> Tensor:
    k_BHSD, v_BHSD = (x.repeat_interleave(2, dim=1) for x in (k_BKSD, v_BKSD))
    added_to = added(mask) if mask.dtype == torch.bool else mask
    return ((q_BHTD @ k_BHSD.mT) * 0.3 + added_to).softmax(-1) @ v_BHSD


@pytest.mark.parametrize("name", MASKS)
def test_attention_and_its_gradients_are_those_of_all_keys(name: str) -> None:
    mask = MASKS[name]
    tensors = inputs(mask)
    out = sdpa(*tensors, mask, 0.3)
    expected = plain(*tensors, mask)
    dout = torch.randn_like(expected)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)
    gradients, wanted = (torch.autograd.grad(x, tensors, dout) for x in (out, expected))
    torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", [name for name in MASKS if name != "bool"])
def test_a_part_of_a_softmax_is_that_of_all_keys(name: str) -> None:
    mask = MASKS[name]
    tensors = inputs(mask)
    out, lse = part.forward(*(x.detach() for x in tensors), mask, 0.3, causal=False)
    expected = plain(*tensors, mask)
    logits = (tensors[0] @ tensors[1].repeat_interleave(2, dim=1).mT) * 0.3 + mask
    torch.testing.assert_close((out, lse), (expected, logits.logsumexp(-1)), rtol=1e-10, atol=1e-12)
    dout = torch.randn_like(expected)
    saved = (dout, out, lse, *(x.detach() for x in tensors), mask, 0.3, False)
    gradients = part.backward(*saved, into_bias=False)[:3]
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, tensors, dout), rtol=1e-9, atol=1e-11)


def test_a_block_has_no_key_outside_of_what_it_attends_to() -> None:
    keys = [block.keys for block in blocks(MASKS["band"])]
    assert keys == [slice(300 - 39, 556), slice(556 - 39, 812), slice(812 - 39, 900)]
    finite = MASKS["band"].float().clamp(min=HIDDEN)
    assert [block.keys for block in blocks(finite)] == keys
    keys = [block.keys for block in blocks(MASKS["causal"])]
    assert keys == [slice(0, 556), slice(0, 812), slice(0, 900)]


def test_queries_that_attend_to_nothing_get_a_block() -> None:
    hidden = torch.full((QUERIES_AT_ONCE + 1, 5), NEVER)
    assert [block.keys for block in blocks(hidden)] == [slice(0, 1)] * 2


def test_blocks_count_as_many_products_as_the_whole() -> None:
    mask = MASKS["band"]
    tensors = inputs(mask)
    with ProductCounter() as counter:
        sdpa(*tensors, mask, 0.3)
    assert counter.flops == 4 * 16 * 2 * 4 * int((mask > NEVER).sum())
