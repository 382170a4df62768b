from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab import attention
from contextlab.attention import KV, CacheReader, Layout, rotate
from contextlab.attention.seam import SEAM
from contextlab.backbone import load
from contextlab.errors import UserError


class NoPositions:
    slopes_H: torch.Tensor | None = None

    def rotary(self, positions: Any) -> Any:
        return None


class Slopes(NoPositions):
    slopes_H = torch.tensor([0.5, 0.25])


def kv(rows: int, slots: Any, used: Any, heads: int = 2, width: int = 4) -> Any:
    k, v = torch.randn(rows, heads, slots, width), torch.randn(rows, heads, slots, width)
    return KV((k,), (v,), torch.tensor(used))


def attend(reader: Any, rows: int, length: int, heads: int = 4) -> Any:
    q = torch.randn(rows, heads, length, 4)
    k, v = torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)
    return reader(0, q, k, v, 0.5), (q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor, seen: Any, bias: Any = None) -> Any:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * 0.5
    if bias is not None:
        logits = logits + bias
    return logits.masked_fill(~seen[:, None], float("-inf")).softmax(-1) @ v


def test_new_tokens_see_the_used_cache_and_themselves_causally() -> None:
    cached = kv(2, 5, [5, 3])
    position = cached.used_B[:, None] + torch.arange(3)
    reader = CacheReader(NoPositions(), cached, Layout(position))
    out, (q, k, v) = attend(reader, 2, 3)
    seen = torch.zeros(2, 3, 8, dtype=torch.bool)
    for row, used in enumerate((5, 3)):
        seen[row, :, :used] = True
        seen[row, :, 5:] = torch.ones(3, 3).tril().bool()
    keys, values = torch.cat((cached.k[0], k), 2), torch.cat((cached.v[0], v), 2)
    torch.testing.assert_close(out, by_hand(q, keys, values, seen))


def test_without_a_cache_attention_is_plain_causal() -> None:
    reader = CacheReader(NoPositions(), kv(2, 0, [0, 0]), Layout(torch.arange(4).expand(2, -1)))
    assert reader.causal(None)
    out, (q, k, v) = attend(reader, 2, 4)
    torch.testing.assert_close(out, by_hand(q, k, v, torch.ones(2, 4, 4).tril().bool()))


def test_candidates_see_the_cache_and_themselves_only() -> None:
    cached = kv(1, 3, [3])
    layout = Layout(torch.tensor([[3, 4, 3, 4]]), torch.tensor([0, 0, 1, 1]))
    seen = CacheReader(NoPositions(), cached, layout).visible()[0]
    assert seen[:, :3].all()
    assert seen[:, 3:].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(1, 6), st.integers(1, 8), st.integers(0, 3))
def test_a_band_counts_the_query_itself_and_spares_the_first_slots(slots: Any, new: Any, band: Any, first: Any) -> None:
    layout = Layout(torch.arange(slots, slots + new)[None], None, band, first)
    seen = CacheReader(NoPositions(), kv(1, slots, [slots]), layout).visible()[0]
    for t in range(new):
        query = slots + t
        expected = [key <= query and (key > query - band or key < first) for key in range(slots + new)]
        assert seen[t].tolist() == expected


@pytest.mark.parametrize(("name", "window"), [("tiny-mistral", 48), ("tiny-qwen2", None), ("tiny-gpt2", None)])
def test_a_models_own_sliding_window_is_declared(name: str, window: int | None) -> None:
    """With it, what full attention sees is what the model sees: nothing farther away in one layer."""
    backbone = load(name)
    assert backbone.own_window == window
    backbone.config.sliding_window = backbone.max_positions
    assert backbone.own_window is None


def test_a_models_own_sliding_window_is_respected() -> None:
    reader = CacheReader(NoPositions(), kv(1, 0, [0]), Layout(torch.arange(5)[None]))
    mask = reader.mask(2, torch.float32)
    assert mask is not None
    assert (mask[0, 0] == 0).sum(-1).tolist() == [1, 2, 2, 2, 2]
    assert mask[0, 0].isneginf().sum(-1).tolist() == [4, 3, 3, 3, 3]


def test_alibi_falls_with_distance() -> None:
    reader = CacheReader(Slopes(), kv(1, 2, [2]), Layout(torch.arange(2, 4)[None]))
    out, (q, k, v) = attend(reader, 1, 2, heads=2)
    distance = torch.arange(4)[None] - torch.arange(2, 4)[:, None]
    bias = Slopes.slopes_H[:, None, None] * distance
    seen = (distance <= 0)[None]
    keys, values = torch.cat((reader.kv.k[0], k), 2), torch.cat((reader.kv.v[0], v), 2)
    torch.testing.assert_close(out, by_hand(q, keys, values, seen, bias))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3), st.integers(0, 2))
def test_growing_appends_each_rows_tokens_behind_its_own_and_no_padding(rows: Any, padding: Any) -> None:
    used, lengths = (torch.tensor(column) for column in zip(*rows, strict=True))
    slots, new = int(used.max()), int(lengths.max()) + padding
    old = torch.arange(slots).float().expand(len(rows), -1)
    fresh = 100 + torch.arange(new).float().expand(len(rows), -1)
    cached = KV((old[:, None, :, None],), (old[:, None, :, None],), used)
    reader = CacheReader(NoPositions(), cached, Layout(used[:, None] + torch.arange(new)))
    reader.append(fresh[:, None, :, None], fresh[:, None, :, None])
    grown = reader.grown(lengths)
    assert grown.used_B.tolist() == (used + lengths).tolist()
    assert grown.k[0].shape[2] == int((used + lengths).max())
    for row, (before, added) in enumerate(rows):
        kept = grown.k[0][row, 0, : before + added, 0].tolist()
        assert kept == [*range(before), *(100 + i for i in range(added))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 8), st.integers(0, 3), st.integers(0, 4))
def test_keep_cuts_to_the_first_and_last_slots_of_the_rows_asked_for(used: Any, first: Any, last: Any) -> None:
    x = torch.arange(8).float().expand(2, -1)[:, None, :, None]
    kept = KV((x,), (x,), torch.tensor([used, used])).keep(first, last, torch.tensor([True, False]), NoPositions())
    whole = list(range(used))
    expected = whole if used <= first + last else whole[:first] + whole[used - last :]
    assert kept.k[0][0, 0, : int(kept.used_B[0]), 0].tolist() == expected
    assert kept.k[0][1, 0, : int(kept.used_B[1]), 0].tolist() == whole


def test_rotation_depends_on_differences_only_and_leaves_the_rest_of_a_head_alone() -> None:
    backbone = load("tiny-llama")
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def product(a: Any, b: Any) -> Any:
        turned = [rotate(x, backbone.rotary(torch.tensor([[p]]))) for x, p in ((q, a), (k, b))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(9, 4), product(25, 20))
    wide = torch.cat((q, torch.ones(1, 1, 1, 3)), -1)
    turned = rotate(wide, backbone.rotary(torch.tensor([[5]])))
    assert torch.equal(turned[..., 8:], wide[..., 8:])


def test_the_seam_is_left_as_it_was_found() -> None:
    backbone = load("tiny-llama")
    before = backbone.model.config._attn_implementation
    with attention.seam(backbone.config, 1.0):
        assert backbone.model.config._attn_implementation == SEAM
    assert backbone.model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2"])
def test_hidden_states_equal_the_models_own_with_padding(name: str) -> None:
    backbone = load(name)
    tokens = torch.randint(0, 257, (2, 60))
    mask = torch.ones_like(tokens)
    mask[1, 40:] = 0
    with torch.no_grad():
        own = backbone.model.base_model(input_ids=tokens, attention_mask=mask).last_hidden_state
        position = torch.arange(60).expand(2, -1)
        ours = backbone.forward(tokens, position, backbone.reader(2, Layout(position)))
    torch.testing.assert_close(ours[0], own[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours[1, :40], own[1, :40], atol=1e-5, rtol=1e-5)


def test_running_layer_by_layer_equals_running_the_model() -> None:
    for name in ("tiny-llama", "tiny-gpt2"):
        backbone = load(name)
        parts = attention.anatomy(backbone.model)
        tokens = torch.randint(0, 257, (1, 20))
        position = torch.arange(20)[None]
        with torch.no_grad(), attention.seam(backbone.config, 1.0):
            hidden = parts.embed(tokens, position)
            reader = backbone.reader(1, Layout(position))
            for layer in parts.layers:
                hidden = attention.run_layer(layer, hidden, reader, backbone.rotary_scale)
            whole = backbone.forward(tokens, position, backbone.reader(1, Layout(position)))
        torch.testing.assert_close(parts.norm(hidden), whole)


def test_a_model_built_otherwise_is_refused() -> None:
    config = transformers.OPTConfig(
        vocab_size=64, hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(UserError, match="not built like Llama, GPT-2 or GPT-NeoX"):
        attention.anatomy(transformers.OPTForCausalLM(config))


def test_the_seam_without_attend_says_what_to_do() -> None:
    backbone = load("tiny-llama")
    with attention.seam(backbone.config, 1.0), pytest.raises(UserError, match="OPT-style"):
        backbone.model(torch.zeros(1, 2, dtype=torch.int64))


def test_an_unmodified_model_attends_through_what_it_is_lent() -> None:
    model = load("tiny-gpt2").model
    tokens = torch.arange(6)[None]
    seen: list[tuple[int, ...]] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: Any = None) -> Any:
        seen.append((layer, *q.shape))
        return torch.zeros_like(q)

    own = model(tokens).logits
    with attention.attending(model, attend, lambda length: torch.full((length,), 3)):
        lent = model(tokens).logits
        embedded = model(inputs_embeds=model.get_input_embeddings()(tokens), attention_mask=torch.ones(1, 6)).logits
    assert seen == [(layer, 1, 4, 6, 8) for layer in range(4)] * 2
    torch.testing.assert_close(embedded, lent)
    # Without attention, and at equal positions, a token's output is its own alone.
    with attention.attending(model, attend, lambda length: torch.full((length,), 3)):
        torch.testing.assert_close(model(tokens.flip(1)).logits.flip(1), lent)
    assert torch.equal(model(tokens).logits, own)


def test_candidates_see_what_they_wrote_before_and_not_what_others_did() -> None:
    """Three slots are shared, two candidates have one and two slots behind them, and each adds a token."""
    shared, tail_group, tail_position = 3, torch.tensor([0, 1, 1]), torch.tensor([[3, 3, 4]])
    cached = KV(*(kv(1, 6, [3]).k, kv(1, 6, [3]).v), torch.tensor([shared]))
    group = torch.tensor([0, 1])
    layout = Layout(torch.tensor([[4, 5]]), group, None, 0, tail_position, tail_group)
    reader = CacheReader(NoPositions(), cached, layout)
    of_key = torch.cat((torch.full((shared,), -1), tail_group, group))
    expected = (of_key == -1) | (of_key == group[:, None])
    assert torch.equal(reader.visible()[0], expected)
    assert reader.key_position_BS.tolist() == [[0, 1, 2, 3, 3, 4, 4, 5]]
