from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from contextlab import process


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_gives_the_same_numbers_and_leaves_others_as_they_were() -> None:
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = [drawn(), drawn()]
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    first = drawn()
    inside = []
    for _ in range(2):
        with process.seeded(3):
            inside.append(drawn())
    with pytest.raises(ZeroDivisionError):
        _fails_after_drawing()
    assert inside[0] == inside[1]
    assert [first, drawn()] == expected


def _fails_after_drawing() -> None:
    with process.seeded(4):
        drawn()
        raise ZeroDivisionError


def test_threads_draw_one_after_the_other() -> None:
    def numbers(seed: int) -> list[tuple[float, float, float]]:
        with process.seeded(seed):
            return [drawn() for _ in range(200)]

    alone = [numbers(seed) for seed in range(4)]
    barrier = threading.Barrier(4)

    def together(seed: int) -> list[tuple[float, float, float]]:
        barrier.wait()
        return numbers(seed)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(together, range(4))) == alone


def test_a_seed_within_another_is_its_own() -> None:
    with process.seeded(1):
        expected = [drawn(), drawn()]
    with process.seeded(1):
        first = drawn()
        with process.seeded(2):
            drawn()
        assert [first, drawn()] == expected
