from __future__ import annotations

from collections.abc import Sequence

import pytest

from contextlab.formula import FORK_BYTES, FORKS, Formula, Row, steps, total


class Padded(Formula):
    """One FLOP per token of the padded call, a hundred per prediction, and ten bytes per token."""

    def __init__(self, size: int | None = 10) -> None:
        self.size = size
        self.calls: list[list[Row]] = []

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        self.calls.append(list(rows))
        return len(rows) * max(row.tokens for row in rows)

    def predict(self, befores: Sequence[int]) -> int | None:
        return 100 * len(befores)

    def state_bytes(self, length: int) -> int | None:
        return None if self.size is None else self.size * length


class Reading(Formula):
    """Knows of reading alone."""

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        return 1


@pytest.mark.parametrize(
    ("written", "most", "expected"),
    [([3, 1], 3, 3), ([2, 1], 3, 3), ([1, 0], 3, 2), ([0], 3, 1), ([0], 0, 0), ([], 3, 0)],
)
def test_an_answer_that_was_ended_took_one_prediction_more(written: list[int], most: int, expected: int) -> None:
    assert steps(written, most) == expected


def test_a_sum_with_something_unknown_is_unknown() -> None:
    assert total([1, 2, 3]) == 6
    assert total([]) == 0
    assert total([1, None]) is None


def test_candidates_are_read_from_forks_padded_to_the_longest() -> None:
    formula = Padded()
    assert formula.score(7, [2, 5, 1]) == 15
    assert formula.calls == [[Row(7, 2), Row(7, 5), Row(7, 1)]]


def test_only_so_many_bytes_of_forks_read_candidates_at_once() -> None:
    large = Padded(FORK_BYTES // 2)
    assert large.score(1, [1, 2, 3]) == 4 + 3
    assert [len(rows) for rows in large.calls] == [2, 1]
    assert Padded(None).score(1, [1, 2]) is None
    assert Padded(None).score(1, [2]) == 2


def test_an_answer_is_its_prompt_and_single_tokens() -> None:
    formula = Padded()
    # Three predictions: two tokens, and the one that ended it; the last token is not read.
    assert formula.generate(7, [4], [2], 5) == 4 + 1 + 1 + 300
    assert formula.calls == [[Row(7, 4)], [Row(11, 1)], [Row(12, 1)]]


def test_prompts_are_forks_side_by_side_each_at_its_own_end() -> None:
    formula = Padded()
    assert formula.generate(7, [4, 1], [1, 2], 2) == 8 + 2 + 400
    assert formula.calls == [[Row(7, 4), Row(7, 1)], [Row(11, 1), Row(8, 1)]]


def test_only_so_many_forks_answer_at_once() -> None:
    formula = Padded()
    assert formula.generate(1, [1] * (FORKS + 1), [1] * (FORKS + 1), 1) == 101 * (FORKS + 1)
    assert [len(rows) for rows in formula.calls] == [FORKS, 1]
    large = Padded(FORK_BYTES // 2)
    large.generate(1, [1] * 3, [1] * 3, 1)
    assert [len(rows) for rows in large.calls] == [2, 1]


def test_without_a_size_or_a_prediction_there_is_no_answer_about_writing() -> None:
    assert Padded(None).generate(1, [1], [1], 1) == 101
    assert Padded(None).generate(1, [1, 1], [1, 1], 1) is None
    assert Reading().generate(1, [1], [1], 1) is None
    assert Reading().state_bytes(3) is None
    assert not Reading.least
