from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contextlab.methods.parts.newest import newest

rows = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4)


@given(rows, st.integers(0, 9), st.integers(0, 3))
def test_the_newest_of_a_store_and_what_is_put_behind_it_stay(
    counts: list[tuple[int, int]], most: int, free: int
) -> None:
    used, new = ([count[i] for count in counts] for i in range(2))
    slots = max(used) + free
    store = torch.full((len(counts), slots + max(new)), -1)
    for row, (old, added) in enumerate(counts):
        store[row, :old] = torch.arange(old)
        store[row, slots : slots + added] = torch.arange(old, old + added)
    slots_BJ, kept_B = newest(torch.tensor(used), slots, torch.tensor(new), most)
    for row, (old, added) in enumerate(counts):
        entries = list(range(old + added))[max(old + added - most, 0) :]
        assert store[row, slots_BJ[row, : kept_B[row]]].tolist() == entries
