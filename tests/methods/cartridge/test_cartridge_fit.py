"""Chunks of a context, and the order in which a cartridge learns texts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contextlab.methods.cartridge import CartridgeConfig
from contextlab.methods.cartridge.fit import batches, bounds


@given(count=st.integers(1, 200), chunk=st.integers(1, 40))
def test_chunks_cover_a_context_in_equal_parts(count: int, chunk: int) -> None:
    cuts = bounds(count, chunk)
    lengths = [end - begin for begin, end in cuts]
    assert [token for begin, end in cuts for token in range(begin, end)] == list(range(count))
    assert max(lengths) <= chunk
    assert max(lengths) - min(lengths) <= 1
    assert len(lengths) == -(-count // chunk)


@given(count=st.integers(1, 30), batch=st.integers(1, 12), steps=st.integers(1, 40), seed=st.integers(0, 3))
def test_all_texts_are_learned_equally_often(count: int, batch: int, steps: int, seed: int) -> None:
    numbers = list(batches(count, CartridgeConfig(batch=batch, steps=steps, seed=seed)))
    assert len(numbers) == steps
    assert {len(chosen) for chosen in numbers} == {min(batch, count)}
    times = Counter(number for chosen in numbers for number in chosen)
    assert max(times.values()) - min(times[number] for number in range(count)) <= 1
    assert numbers == list(batches(count, CartridgeConfig(batch=batch, steps=steps, seed=seed)))
