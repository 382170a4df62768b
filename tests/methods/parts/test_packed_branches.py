"""Continuations of packed caches: beside each other they are what they are alone, and share one restored cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packed_cache import FORMS, model, text

from contextlab.methods.full import Full, FullConfig
from contextlab.methods.parts.packed_cache import PackedKV


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=6, deadline=None)
@given(
    read=st.integers(1, 230),
    lengths=st.lists(st.integers(0, 90), min_size=2, max_size=4),
    most=st.sampled_from([1, 5, 70]),
)
def test_continuations_pack_their_own_tokens_as_they_would_alone(
    name: str, read: int, lengths: list[int], most: int
) -> None:
    """Beside each other, continuations begin groups with the newest tokens of the state, and end them at any time."""
    method = FORMS[name](model())
    state, _ = method.read(method.start(), text(read))
    texts = [text(length, seed=number)[0].tolist() for number, length in enumerate(lengths)]
    written = method.generate(state, texts, max_new_tokens=most)
    scores = method.score(state, texts)
    for number, tokens in enumerate(texts):
        assert method.generate(state, [tokens], max_new_tokens=most) == [written[number]]
        if tokens:
            _, logprobs = method.read(state, torch.tensor([tokens]))
            torch.testing.assert_close(scores[0, number, : len(tokens)], logprobs[0], atol=1e-6, rtol=0)


@torch.no_grad()
def test_continuations_share_one_opened_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    method, opened = Full(model(), FullConfig(cache="int4")), []
    state, _ = method.read(method.start(), text(20))
    restore = PackedKV.opened
    monkeypatch.setattr(PackedKV, "opened", lambda kv: (opened.append(len(kv.used_B)), restore(kv))[1])
    method.generate(state, [[1] * 40, [2] * 50], max_new_tokens=40)
    assert opened == [1]
