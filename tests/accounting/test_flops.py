from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from torch.utils.flop_counter import register_flop_formula
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from contextlab.accounting.flops import (
    FlopCounter,
    causal_pairs,
    count,
    gpt2_block_flops,
    head_flops,
    llama_block_flops,
)

B, T, LAYERS = 2, 63, 2
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


def model_of(family: str, attention: str) -> tuple[PreTrainedModel, Callable[[int, int], int]]:
    """A tiny model and the hand formula of its block, by tokens and visible pairs."""
    if family == "llama":
        llama = LlamaConfig(
            vocab_size=97,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation=attention,
        )
        return LlamaForCausalLM(llama), lambda tokens, pairs: llama_block_flops(tokens, pairs, llama)
    gpt2 = GPT2Config(vocab_size=97, n_embd=64, n_layer=LAYERS, n_head=4, attn_implementation=attention)
    return GPT2LMHeadModel(gpt2).eval(), lambda tokens, pairs: gpt2_block_flops(tokens, pairs, gpt2)


def masked_pairs(lengths: list[int]) -> int:
    return sum(min(position + 1, length) for length in lengths for position in range(T))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("attention", "lengths", "pairs"),
    [
        ("sdpa", [T, T], B * causal_pairs(T, T)),
        ("sdpa", [T, 40], masked_pairs([T, 40])),
        ("eager", [T, T], B * T * T),
    ],
)
def test_counts_a_model_as_the_hand_formula_does(
    family: str, attention: str, lengths: list[int], pairs: int, mode: Any
) -> None:
    model, block = model_of(family, attention)
    tokens = torch.randint(97, (B, T))
    padding = (torch.arange(T) < torch.tensor(lengths)[:, None]).long()
    with mode():
        _, flops = count(lambda: model(tokens, attention_mask=padding, use_cache=False))
    expected = LAYERS * block(B * T, pairs) + head_flops(B * T, model.config)
    assert flops == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_backward_pass_costs_twice_the_forward_pass(family: str, attention: str) -> None:
    model, _ = model_of(family, attention)
    tokens = torch.randint(97, (B, T))
    result, forward = count(lambda: model(tokens, use_cache=False))
    _, backward = count(lambda: result.logits.sum().backward())
    assert backward == pytest.approx(2 * forward, rel=0.01)


def test_a_frozen_weight_costs_no_gradient() -> None:
    x, weight = torch.randn(5, 7, requires_grad=True), torch.randn(3, 7)
    y, forward = count(lambda: functional.linear(x, weight))
    _, backward = count(lambda: y.sum().backward())
    assert forward == backward == 2 * 5 * 7 * 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("product", "expected"),
    [
        (lambda m, v: m @ m, 2 * 6**3),
        (lambda m, v: m @ v, 2 * 6**2),
        (lambda m, v: v @ m, 2 * 6**2),
        (lambda m, v: v @ v, 2 * 6),
        (lambda m, v: torch.addmv(v, m, v), 2 * 6**2),
        (lambda m, v: torch.addmm(v, m, m), 2 * 6**3),
        (lambda m, v: functional.linear(m[None], m, v), 2 * 6**3),
        (lambda m, v: torch.einsum("ij,kj->ik", m, m), 2 * 6**3),
        (lambda m, v: m.expand(4, 6, 6) @ m.expand(4, 6, 6), 4 * 2 * 6**3),
        (lambda m, v: torch.addbmm(m, m.expand(4, 6, 6), m.expand(4, 6, 6)), 4 * 2 * 6**3),
        (lambda m, v: torch.baddbmm(m, m.expand(4, 6, 6), m.expand(4, 6, 6)), 4 * 2 * 6**3),
        (lambda m, v: functional.conv1d(v[None, None], v[None, None, :3]), 4 * 3 * 2),
        (lambda m, v: functional.gelu(m * v + 1).softmax(-1).cumsum(0).t().contiguous(), 0),
    ],
)
def test_products_count_and_elementwise_work_does_not(
    product: Callable[[Tensor, Tensor], Tensor], expected: int, mode: Any
) -> None:
    m, v = torch.randn(6, 6), torch.randn(6)
    with mode():
        result, flops = count(lambda: product(m, v))
        assert flops == expected
        assert torch.equal(result, product(m, v))


@settings(max_examples=25, deadline=None)
@given(
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    d_qk=st.sampled_from([8, 16]),
    d_v=st.sampled_from([8, 16]),
    groups=st.sampled_from([1, 2]),
    mode=st.sampled_from(MODES),
    data=st.data(),
)
def test_attention_counts_visible_pairs_by_mask_or_causality(
    queries: int, keys: int, d_qk: int, d_v: int, groups: int, mode: Any, data: st.DataObject
) -> None:
    q = torch.randn(B, 4, queries, d_qk, requires_grad=True)
    k, v = torch.randn(B, 4 // groups, keys, d_qk), torch.randn(B, 4 // groups, keys, d_v)

    def flops_of(**options: Any) -> int:
        with mode():
            return count(lambda: functional.scaled_dot_product_attention(q, k, v, enable_gqa=groups > 1, **options))[1]

    def by_hand(mask: Tensor) -> int:
        return int(mask.expand(B, 4, queries, keys).sum()) * 2 * (d_qk + d_v)

    triangle = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert flops_of(is_causal=True) == flops_of(attn_mask=triangle) == by_hand(triangle)
    assert flops_of() == by_hand(torch.ones(queries, keys, dtype=torch.bool))
    rows, heads = data.draw(st.sampled_from([1, B])), data.draw(st.sampled_from([1, 4]))
    mask = torch.rand(rows, heads, queries, keys) < 0.5
    hidden = data.draw(st.sampled_from([-torch.inf, torch.finfo(torch.float32).min]))
    assert flops_of(attn_mask=mask) == by_hand(mask)
    assert flops_of(attn_mask=torch.randn(mask.shape).masked_fill(~mask, hidden)) == by_hand(mask)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kernel", ["flash_attention_for_cpu", "flash_attention", "efficient_attention"])
def test_fused_kernels_of_every_device_count_the_same(kernel: str, is_causal: bool) -> None:
    device = "cpu" if kernel.endswith("cpu") else "meta"
    q = torch.empty(2, 4, 32, 8, device=device, dtype=torch.float32 if device == "cpu" else torch.float16)
    aten = torch.ops.aten
    forward, backward = (getattr(aten, f"_scaled_dot_product_{kernel}{end}") for end in ("", "_backward"))
    bias = (None, True) if kernel == "efficient_attention" else ()
    (out, lse, *rest), flops = count(lambda: forward(q, q, q, *bias, 0.0, is_causal))
    if kernel == "efficient_attention":
        args = (q, q, q, q, None, out, lse, *rest, 0.0, [True, True, True, False], is_causal)
    else:
        args = (q, q, q, q, out, lse, *rest[:4], 0.0, is_causal, *rest[4:6])
    _, backward_flops = count(lambda: backward(*args))
    pairs = causal_pairs(32, 32) if is_causal else 32 * 32
    assert flops == 2 * 4 * pairs * 2 * (8 + 8)
    assert backward_flops == 2 * flops


def test_the_bias_of_a_fused_kernel_is_its_mask() -> None:
    q = torch.empty(2, 4, 32, 8, device="meta", dtype=torch.float16)
    bias = torch.full((32, 32), -torch.inf, dtype=torch.float16).triu(1)
    _, flops = count(lambda: torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, bias, True))
    assert flops == 2 * 4 * causal_pairs(32, 32) * 2 * (8 + 8)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (0, 4), (4, 0)])
def test_causal_pairs_are_those_of_the_triangle(queries: int, keys: int) -> None:
    assert causal_pairs(queries, keys) == int(torch.ones(queries, keys).tril().sum())


@torch.library.custom_op("contextlab_test::masked_product", mutates_args=())
def masked_product(a: Tensor, mask: Tensor) -> Tensor:
    return (a @ a) * mask


@torch.library.custom_op("contextlab_test::by_shape", mutates_args=())
def by_shape(a: Tensor) -> Tensor:
    return a @ a


@torch.library.custom_op("contextlab_test::unknown", mutates_args=())
def unknown(a: Tensor) -> Tensor:
    return a @ a


@register_flop_formula(torch.ops.contextlab_test.masked_product, get_raw=True)
def _masked_product_flops(a: Tensor, mask: Tensor, *, out_val: Tensor, **_: Any) -> int:
    return 2 * a.shape[1] * int(mask.sum())


@register_flop_formula(torch.ops.contextlab_test.by_shape)
def _by_shape_flops(a_shape: tuple[int, ...], *, out_shape: tuple[int, ...], **_: Any) -> int:
    return a_shape[0] * out_shape[1]


@pytest.mark.parametrize("mode", MODES)
def test_custom_operations_count_by_their_registered_formula(mode: Any) -> None:
    a, mask = torch.randn(3, 3), torch.tensor([1, 0, 1])
    with mode():
        assert count(lambda: masked_product(a, mask))[1] == 2 * 3 * 2
        assert count(lambda: by_shape(a))[1] == 9


def test_a_custom_operation_without_formula_warns() -> None:
    with pytest.warns(UserWarning, match=r"contextlab_test\.unknown has no FLOP formula"):
        assert count(lambda: unknown(torch.randn(3, 3)))[1] == 0


def test_an_exception_leaves_no_counter_behind() -> None:
    counter, q = FlopCounter(), torch.randn(1, 1, 3, 8)
    with pytest.raises(RuntimeError), counter:
        functional.scaled_dot_product_attention(q, q[..., :5], q)
    before = counter.flops
    torch.randn(3, 3) @ torch.randn(3, 3)
    assert counter.flops == before
    with counter:
        torch.randn(3, 3) @ torch.randn(3, 3)
    assert counter.flops == before + 2 * 3**3


def test_counting_a_model_warns_of_nothing() -> None:
    model, _ = model_of("llama", "sdpa")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flops = count(lambda: model(torch.randint(97, (1, 5))))[1]
    assert flops > 0
    assert [str(warning.message) for warning in caught] == []
