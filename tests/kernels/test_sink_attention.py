from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import assert_close, gradients
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from contextlab.accounting.memory import PeakMemory
from contextlab.kernels.dispatch import forced
from contextlab.kernels.sink_attention import blocked, reference, sink_attention


def count(run: Any) -> Any:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def case(rows: int = 2, heads: int = 4, kv_heads: int = 2, queries: int = 5, keys: int = 9, width: int = 8) -> Any:
    shapes = ((rows, heads, queries, width),) * 2 + ((rows, kv_heads, keys, width),) * 2
    seen = torch.rand(rows, queries, keys) > 0.4
    seen[..., 0] = True
    return [torch.randn(shape) for shape in shapes], seen


def plain(q: Tensor, k: Tensor, v: Tensor, seen: Any, scale: float) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], scale=scale)


@pytest.mark.parametrize("sinks", [0, 1, 4, 9])
def test_with_one_query_for_all_keys_it_is_plain_attention(sinks: int) -> None:
    (q, _, k, v), seen = case()
    torch.testing.assert_close(sink_attention(q, q, k, v, seen, sinks, 0.3), plain(q, k, v, seen, 0.3))


def test_sinks_are_attended_to_by_their_own_query() -> None:
    (q, q_sink, k, v), seen = case()
    only_sinks = seen.clone()
    only_sinks[..., 3:] = False
    only_sinks[..., 0] = True
    out = sink_attention(q, q_sink, k, v, only_sinks, 3, 0.3)
    torch.testing.assert_close(out, plain(q_sink, k, v, only_sinks, 0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 1000])
def test_a_part_of_which_nothing_is_seen_has_no_weight(dtype: torch.dtype, size: int) -> None:
    """For any size of the scores, of the sinks or of later keys."""
    (q, q_sink, k, v), seen = case()
    q, q_sink, k, v = (x.to(dtype) for x in (q * size, q_sink * size, k, v))
    seen[:, 0, 3:], seen[:, 1, :3], seen[:, 1, 5] = False, False, True
    assert blocked.fits(q, v)
    out = sink_attention(q, q_sink, k, v, seen, 3, 0.3)
    changed = v.clone()
    changed[:, :, :3] = 7
    again = sink_attention(q, q_sink, k, changed, seen, 3, 0.3)
    assert torch.equal(again[:, :, 1], out[:, :, 1])
    changed = v.clone()
    changed[:, :, 3:] = 7
    assert torch.equal(sink_attention(q, q_sink, k, changed, seen, 3, 0.3)[:, :, 0], out[:, :, 0])
    with forced("reference"):
        exact = sink_attention(q.double(), q_sink.double(), k.double(), v.double(), seen, 3, 0.3)
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(out.double(), exact, atol=tolerance, rtol=tolerance)


def test_no_score_is_kept() -> None:
    (q, q_sink, k, v), seen = case(heads=12, kv_heads=12, queries=256, keys=1276, width=16)
    peaks = {}
    for form in ("reference", "torch"):
        with forced(form), PeakMemory() as peak:
            sink_attention(q, q_sink, k, v, seen[:1], 4, 0.3)
        peaks[form] = peak.peak_bytes
    assert peaks["torch"] * 4 < peaks["reference"]


def test_one_row_of_visibility_may_stand_for_all() -> None:
    (q, q_sink, k, v), seen = case()
    shared = sink_attention(q, q_sink, k, v, seen[:1], 2, 0.3)
    torch.testing.assert_close(shared, sink_attention(q, q_sink, k, v, seen[:1].expand(2, -1, -1).clone(), 2, 0.3))


def test_values_may_be_wider_than_keys() -> None:
    (q, q_sink, k, _), seen = case()
    v = torch.randn(2, 2, 9, 3)
    whole = torch.cat([sink_attention(q, q_sink, k, v[..., i : i + 1], seen, 2, 0.3) for i in range(3)], -1)
    torch.testing.assert_close(sink_attention(q, q_sink, k, v, seen, 2, 0.3), whole)


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"q": torch.zeros(2, 3, 5, 8)}, ValueError, "q_sink_BHTD has H = 4 where H = 3 before: make them equal."),
        ({"k": torch.zeros(2, 3, 9, 8), "v": torch.zeros(2, 3, 9, 8)}, ValueError, "4 query heads cannot share 3 key"),
        ({"seen": torch.ones(2, 5, 8).bool()}, ValueError, "seen_BTS has S = 8 where S = 9 before: make them equal."),
        ({"seen": torch.ones(1, 4, 9).bool()}, ValueError, "seen_1TS has T = 4 where T = 5 before: make them equal."),
        ({"seen": torch.ones(2, 5, 9)}, TypeError, "seen_BTS is torch.float32: give it as torch.bool."),
        ({"v": torch.zeros(2, 2, 9, 8).half()}, TypeError, "v_BKSE is torch.float16 beside q_BHTD of torch.float32"),
        ({"sinks": -1}, ValueError, "There cannot be -1 sinks: give 0 or more."),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, Tensor | int], error: type[Any], sentence: str) -> None:
    (q, q_sink, k, v), seen = case()
    inputs = {"q": q, "q_sink": q_sink, "k": k, "v": v, "seen": seen, "sinks": 2, "scale": 0.3}
    sink_attention(*inputs.values())
    with pytest.raises(error, match=sentence):
        sink_attention(*{**inputs, **changed}.values())


def test_queries_stored_in_another_order_compile() -> None:
    """The result's strides are as registered, for any strides of the queries."""
    (q, q_sink, k, v), seen = case()
    q, q_sink = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, q_sink))

    def run(q: Tensor, q_sink: Any) -> Any:
        return sink_attention(q, q_sink, k, v, seen, 2, 0.3).view(-1) + 1

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, q_sink), run(q, q_sink))


def test_flops_are_those_of_visible_pairs_or_of_all_without_data() -> None:
    (q, q_sink, k, v), seen = case()
    assert count(lambda: sink_attention(q, q_sink, k, v, seen, 2, 0.3)) == int(seen.sum()) * 4 * 2 * 16
    assert count(lambda: sink_attention(q, q_sink, k, v, seen[:1], 2, 0.3)) == 2 * int(seen[0].sum()) * 4 * 2 * 16
    for mode in (FakeTensorMode(), torch.device("meta")):
        with mode:
            shapes = [torch.empty(x.shape) for x in (q, q_sink, k, v)]
            everything = torch.empty(seen.shape, dtype=torch.bool)
            assert count(lambda: sink_attention(*shapes, everything, 2, 0.3)) == 2 * 5 * 9 * 4 * 2 * 16  # noqa: B023


def test_shapes_are_known_without_data() -> None:
    with FakeTensorMode():
        (q, q_sink, k, v), _ = case()
        seen = torch.ones(1, 5, 9, dtype=torch.bool)
        assert sink_attention(q, q_sink, k, v, seen, 2, 0.3).shape == q.shape


@pytest.mark.parametrize("sinks", [0, 1, 4, 9])
def test_with_gradients_it_is_the_same(sinks: int) -> None:
    """And the gradients are finite differences."""
    floating, seen = case()
    floating = [x.double().requires_grad_() for x in floating]
    with torch.no_grad():
        expected = sink_attention(*floating, seen, sinks, 0.3)
    out = sink_attention(*floating, seen, sinks, 0.3)
    assert out.requires_grad
    torch.testing.assert_close(out.detach(), expected)
    assert torch.autograd.gradcheck(lambda *x: sink_attention(*x, seen, sinks, 0.3), floating)


SIZES = {
    "ragged": {"queries": 20, "keys": 70, "width": 33},
    "wide": {"queries": 9, "keys": 33, "width": 256, "heads": 2},
    "eight to a key head": {"queries": 65, "keys": 80, "heads": 8, "kv_heads": 1, "width": 64},
    "generation": {"queries": 1, "keys": 90, "width": 128, "heads": 2, "kv_heads": 1},
    "divided": {"queries": 1, "keys": 530, "width": 64, "heads": 8},
}


@pytest.mark.parametrize("sinks", [0, 4, 1000])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("named", ["torch", "triton"])
def test_forward_and_every_gradient_equal_float64(named: str, size: str, sinks: int, device: str) -> None:
    """Also where a query sees no sink, or nothing but sinks."""
    if named == "triton":
        pytest.importorskip("triton")
    dtype = torch.float16 if size in ("ragged", "generation") else torch.float32
    floating, seen = case(**SIZES[size])
    seen[0, 0, :4], seen[0, 0, 5] = False, True
    seen[1, -1, 4:], seen[1, -1, 1] = False, True
    floating, seen = [x.to(device, dtype).requires_grad_() for x in floating], seen.to(device)
    exact = [x.detach().double().requires_grad_() for x in floating]
    scale = floating[0].shape[3] ** -0.5
    with forced(named):
        out = sink_attention(*floating, seen, sinks, scale)
        grads = gradients(out, floating)
    expected = reference.with_graph(*exact, seen, sinks, scale)
    assert out.dtype == dtype
    assert_close(out, expected, dtype, "out")
    # At most one of both queries has a gradient where all keys belong to the other.
    wanted = torch.autograd.grad(expected, exact, _weights(expected), allow_unused=True, materialize_grads=True)
    for gradient, want, name in zip(grads, wanted, ("q", "q_sink", "k", "v"), strict=True):
        assert gradient.dtype == dtype
        assert_close(gradient, want, dtype, name)


def _weights(out: Any) -> Any:
    return torch.sin(torch.arange(out.numel(), device=out.device, dtype=torch.float64)).view_as(out)


@pytest.mark.parametrize("named", ["torch", "triton"])
def test_logits_beyond_float16_do_not_meet_what_hides_a_key(named: str) -> None:
    """The seen keys have lower logits than the lowest number of float16."""
    if named == "triton":
        pytest.importorskip("triton")
    q = torch.full((1, 1, 3, 16), 100.0).half()
    k, v = torch.randn(1, 1, 9, 16).half() - 100, torch.randn(1, 1, 9, 16).half()
    seen = torch.rand(1, 3, 9) > 0.5
    seen[..., 0] = True
    seen[:, 1, :2], seen[:, 1, 4] = False, True
    with forced(named):
        out = sink_attention(q, q, k, v, seen, 2, 1.0)
    assert_close(out, plain(q.double(), k.double(), v.double(), seen, 1.0), torch.float16, "out")


def test_training_keeps_no_score() -> None:
    floating, seen = case(heads=12, kv_heads=12, queries=256, keys=1276, width=16)
    peaks = {}
    for form in ("reference", "torch"):
        leaves = [x.clone().requires_grad_() for x in floating]
        with forced(form), PeakMemory() as peak:
            sink_attention(*leaves, seen[:1], 4, 0.3).sum().backward()
        peaks[form] = peak.peak_bytes
    assert peaks["torch"] * 4 < peaks["reference"]


def test_flops_of_gradients_are_those_of_visible_pairs() -> None:
    floating, seen = case()
    floating = [x.requires_grad_() for x in floating]
    pairs = int(seen.sum()) * 4 * 2 * 16
    out = sink_attention(*floating, seen, 2, 0.3)
    assert count(lambda: out.sum().backward()) == 2 * pairs


def test_wider_values_and_the_reference_have_gradients_too() -> None:
    floating, seen = case()
    floating = [x.double().requires_grad_() for x in floating]
    wider = [*floating[:3], torch.randn(2, 2, 9, 3).double().requires_grad_()]
    assert torch.autograd.gradcheck(lambda *x: sink_attention(*x, seen, 2, 0.3), wider)
    with forced("reference"):
        assert torch.autograd.gradcheck(lambda *x: sink_attention(*x, seen, 2, 0.3), floating)


def test_it_compiles_with_its_gradients() -> None:
    floating, seen = case()
    leaves = [x.requires_grad_() for x in floating]
    compiled = torch.compile(lambda *x: sink_attention(*x, seen, 2, 0.3), fullgraph=True, backend="aot_eager")
    out, eager = compiled(*leaves), sink_attention(*leaves, seen, 2, 0.3)
    torch.testing.assert_close(out, eager)
    for gradient, other in zip(gradients(out, leaves), gradients(eager, leaves), strict=True):
        torch.testing.assert_close(gradient, other)
