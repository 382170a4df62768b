from __future__ import annotations

import pytest

from contextlab.errors import UserError
from contextlab.planning.gpus import GPUS, USABLE, gpu
from contextlab.planning.roofline import Bound


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_computes_faster_in_half_the_bits_and_gives_part_of_its_memory(name: str) -> None:
    card = gpu(name)
    assert card.flops(2) > card.flops(4)
    assert card.usable == int(USABLE * card.memory) < card.memory


def test_an_unknown_gpu_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="did you mean 'h100'"):
        gpu("h10")


@pytest.mark.parametrize(
    ("flops", "moved", "launches", "limit", "seconds"),
    [
        (989e12, 0, 0, "compute", 1.0),
        (1, 3.35e12, 3, "memory", 1.0),
        (1e9, 1e9, 200_000, "launches", 1.0),
        (0, 0, 0, "compute", 0.0),
    ],
)
def test_the_slowest_part_is_the_bound(flops: float, moved: float, launches: int, limit: str, seconds: float) -> None:
    bound = Bound.of(gpu("h100"), 2, flops=flops, moved_bytes=moved, launches=launches)
    assert (bound.limit, bound.seconds) == (limit, pytest.approx(seconds))
    assert bound.speed(100) == (pytest.approx(100) if seconds else None)
