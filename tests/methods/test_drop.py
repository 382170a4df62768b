"""Prompt compression against a reader that is written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import PARTS, broken
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.drop import Drop, DropConfig
from contextlab.methods.full import Full


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(length: int) -> Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))


def read(method: Any, tokens: Tensor, *cuts: int, ahead: Lengths | None = None) -> Tensor:
    state, parts = method.start(ahead=ahead), []
    for part in tokens.tensor_split(cuts, dim=1):
        state, logprobs = method.read(state, part)
        parts.append(logprobs)
    return torch.cat(parts, dim=1)


def written_out(backbone: Backbone, tokens: list[int], first: int, N: int, ratio: float) -> Tensor:
    """Log-probabilities of a text: every segment after the compressed text as a text of its own."""
    full, compressed, begin, scores = Full(backbone), list[int](), 0, list[Tensor]()
    pending_BC = full.start().pending_BC
    while begin < len(tokens):
        segment = tokens[begin : begin + (first if begin == 0 else N)]
        state = full.read(full.start(), torch.tensor([compressed]).long().view(1, -1), logprobs=False)[0]
        # Its first token is predicted after the last segment as it was.
        state = dataclasses.replace(state, pending_BC=pending_BC)
        after, logprobs = full.read(state, torch.tensor([segment]))
        assert logprobs is not None
        scores.append(logprobs[0])
        pending_BC = after.pending_BC
        keep = max(1, round(ratio * len(segment)))
        best = sorted(logprobs[0].argsort(stable=True)[:keep].tolist())
        if len(compressed) + keep + N > backbone.max_positions:
            compressed = []
        compressed += [segment[place] for place in best]
        begin += len(segment)
    return torch.cat(scores)[None]


@settings(max_examples=15, deadline=None)
@given(
    N=st.integers(5, 40),
    ratio=st.floats(0.05, 1),
    context=st.integers(0, 50),
    cuts=st.lists(st.integers(0, 250), max_size=3).map(sorted),
)
def test_later_tokens_see_a_shorter_text(llama: Backbone, N: int, ratio: float, context: int, cuts: list[int]) -> None:
    method, tokens = Drop(llama, DropConfig(N=N, ratio=ratio)), text(250)
    scores = read(method, tokens, *cuts, ahead=Lengths(context))
    expected = written_out(llama, tokens[0].tolist(), context % N or N, N, ratio)
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)


def test_nothing_dropped_is_full_attention(llama: Backbone) -> None:
    method, tokens = Drop(llama, DropConfig(N=16, ratio=1.0)), text(128)
    assert method.capabilities.max_context == 128
    torch.testing.assert_close(read(method, tokens), read(Full(llama), tokens), atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(N=st.integers(2, 64), ratio=st.floats(0.02, 1))
def test_a_context_is_compressed_as_a_whole_as_far_as_is_declared(llama: Backbone, N: int, ratio: float) -> None:
    method = Drop(llama, DropConfig(N=N, ratio=ratio))
    limit, front, segments = method.capabilities.max_context, 0, 0
    assert limit is not None
    while not method.shortening.starts_empty(front, N):
        front, segments = front + method.shortening.kept(N), segments + 1
    assert limit == N * (segments + 1)


@pytest.mark.parametrize("around", PARTS)
@pytest.mark.parametrize("family", ["tiny-llama", pytest.param("tiny-gpt2", marks=pytest.mark.slow)])
def test_short_segments_keep_the_laws(family: str, around: bool) -> None:
    assert broken(lambda b: Drop(b, DropConfig(N=20, ratio=0.3)), family, around=around) == {}


def test_rows_end_their_segments_at_different_places(llama: Backbone) -> None:
    method, tokens = Drop(llama, DropConfig(N=20, ratio=0.3)), text(90).expand(3, -1)
    state, _ = method.read(method.start(3), tokens, torch.tensor([5, 47, 80]))
    after = method.read(state, tokens[:, :50])[1]
    assert after is not None
    for row, length in enumerate((5, 47, 80)):
        alone = read(method, torch.cat((tokens[:1, :length], tokens[:1, :50]), dim=1))
        torch.testing.assert_close(after[row], alone[0, length:], atol=1e-4, rtol=1e-4)


def test_a_segment_longer_than_half_of_the_positions_is_refused(llama: Backbone) -> None:
    with pytest.raises(UserError, match="use N=64"):
        Drop(llama, DropConfig(N=65))
