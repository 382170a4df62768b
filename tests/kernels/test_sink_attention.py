from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from contextlab.kernels.sink_attention import sink_attention


def case(rows=2, heads=4, kv_heads=2, queries=5, keys=9, width=8):
    shapes = ((rows, heads, queries, width),) * 2 + ((rows, kv_heads, keys, width),) * 2
    seen = torch.rand(rows, queries, keys) > 0.4
    seen[..., 0] = True
    return [torch.randn(shape) for shape in shapes], seen


def plain(q, k, v, seen, scale):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], scale=scale)


@pytest.mark.parametrize("sinks", [0, 1, 4, 9])
def test_with_one_query_for_all_keys_it_is_plain_attention(sinks):
    (q, _, k, v), seen = case()
    torch.testing.assert_close(sink_attention(q, q, k, v, seen, sinks, 0.3), plain(q, k, v, seen, 0.3))


def test_the_sinks_are_met_by_their_own_query():
    (q, q_sink, k, v), seen = case()
    only_sinks = seen.clone()
    only_sinks[..., 3:] = False
    only_sinks[..., 0] = True
    out = sink_attention(q, q_sink, k, v, only_sinks, 3, 0.3)
    torch.testing.assert_close(out, plain(q_sink, k, v, only_sinks, 0.3))


def test_one_row_of_visibility_may_stand_for_all():
    (q, q_sink, k, v), seen = case()
    shared = sink_attention(q, q_sink, k, v, seen[:1], 2, 0.3)
    torch.testing.assert_close(shared, sink_attention(q, q_sink, k, v, seen[:1].expand(2, -1, -1).clone(), 2, 0.3))


def test_shapes_are_known_without_data():
    with FakeTensorMode():
        (q, q_sink, k, v), _ = case()
        seen = torch.ones(1, 5, 9, dtype=torch.bool)
        assert sink_attention(q, q_sink, k, v, seen, 2, 0.3).shape == q.shape


def test_the_operation_follows_torchs_rules():
    (q, q_sink, k, v), seen = case()
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(sink_attention, (q, q_sink, k, v, seen, 2, 0.3), test_utils=tests)
