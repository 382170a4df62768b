"""The regression of one layer, against solutions of its normal equations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from contextlab.methods.least_squares.regression import fit_flops, fitted, shortened, sizes, strongest

ROWS, INPUTS, OUTPUTS = 7, 12, 5


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


def inverse(draw: torch.Generator) -> Tensor:
    x = normal(draw, 40, INPUTS)
    return torch.linalg.inv(x.mT @ x / 40)


def spread(x_nI: Tensor, inverse_II: Tensor, ridge: float) -> Tensor:
    return ridge * (x_nI @ inverse_II @ x_nI.mT).diagonal().mean()


def test_the_change_is_the_ridge_regressions(draw: torch.Generator) -> None:
    x, y, C = normal(draw, ROWS, INPUTS), normal(draw, ROWS, OUTPUTS), inverse(draw)
    up, down = fitted(x, y, C, x[:0], 0.7)
    expected = torch.linalg.solve(x.mT @ x + spread(x, C, 0.7) * torch.linalg.inv(C), x.mT @ y)
    torch.testing.assert_close(up @ down, expected.mT)


def test_more_rows_than_inputs_cost_in_proportion_and_give_the_same(draw: torch.Generator) -> None:
    counts, C = (20 * INPUTS, 40 * INPUTS), inverse(draw)
    flops = []
    for rows in counts:
        x, y = normal(draw, rows, INPUTS), normal(draw, rows, OUTPUTS)
        with FlopCounterMode(display=False) as counter:
            up, down = fitted(x, y, C, x[:0], 0.7)
        flops.append(counter.get_total_flops())
        assert flops[-1] == fit_flops(rows, INPUTS, OUTPUTS, 0)
        assert down.shape == (INPUTS, INPUTS)
        scale = spread(x, C, 0.7)
        expected = torch.linalg.solve(x.mT @ x + scale * torch.linalg.inv(C), x.mT @ y)
        torch.testing.assert_close(up @ down, expected.mT)
        torch.testing.assert_close(C - down.mT @ down, torch.linalg.inv(torch.linalg.inv(C) + x.mT @ x / scale))
    assert flops[1] < 2 * flops[0]


def test_a_sum_of_changes_is_that_of_all_rows_at_one_time(draw: torch.Generator) -> None:
    C, seen, change = inverse(draw), torch.zeros(0, INPUTS, dtype=torch.float64), torch.zeros(OUTPUTS, INPUTS).double()
    precision, right = torch.linalg.inv(C), torch.zeros(INPUTS, OUTPUTS, dtype=torch.float64)
    for _ in range(3):
        x, y = normal(draw, ROWS, INPUTS), normal(draw, ROWS, OUTPUTS)
        up, down = fitted(x, y - x @ change.mT, C, seen, 0.7)
        change, seen = change + up @ down, torch.cat((seen, down))
        scale = spread(x, C, 0.7)
        precision, right = precision + x.mT @ x / scale, right + x.mT @ y / scale
        torch.testing.assert_close(change, torch.linalg.solve(precision, right).mT)
        torch.testing.assert_close(C - seen.mT @ seen, torch.linalg.inv(precision))


def test_a_large_ridge_changes_little_and_a_small_one_reaches_every_row(draw: torch.Generator) -> None:
    x, y, C = normal(draw, ROWS, INPUTS), normal(draw, ROWS, OUTPUTS), inverse(draw)
    sizes = [float(torch.linalg.norm(up @ down)) for up, down in (fitted(x, y, C, x[:0], r) for r in (1e-9, 1.0, 1e9))]
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < 1e-6
    up, down = fitted(x, y, C, x[:0], 1e-12)
    torch.testing.assert_close(x @ (up @ down).mT, y, atol=1e-6, rtol=1e-6)


def test_in_units_of_its_state_a_row_of_large_states_does_not_decide(draw: torch.Generator) -> None:
    x, wanted, computed, C = (*(normal(draw, ROWS, n) for n in (INPUTS, OUTPUTS, OUTPUTS)), inverse(draw))
    computed[3] *= 1000
    size, y, others = sizes(wanted, computed), wanted - computed, torch.arange(ROWS) != 3
    torch.testing.assert_close(size[3, 0], computed[3].norm())
    torch.testing.assert_close(
        size.T[0], torch.stack([torch.maximum(a.norm(), b.norm()) for a, b in zip(wanted, computed, strict=True)])
    )
    without = torch.linalg.multi_dot(fitted(x[others] / size[others], y[others] / size[others], C, x[:0], 0.7))
    for divisor, apart in ((size, 0.5), (torch.ones_like(size), 5.0)):
        change = torch.linalg.multi_dot(fitted(x / divisor, y / divisor, C, x[:0], 0.7))
        assert (float((change - without).norm() / without.norm()) < apart) is (divisor is size)


def test_states_of_zero_have_a_size(draw: torch.Generator) -> None:
    size = sizes(torch.zeros(2, OUTPUTS), torch.zeros(2, OUTPUTS))
    assert bool((size > 0).all())


def test_inputs_of_zero_change_nothing(draw: torch.Generator) -> None:
    x, y = torch.zeros(ROWS, INPUTS).double(), normal(draw, ROWS, OUTPUTS)
    up, down = fitted(x, y, inverse(draw), x[:0], 0.7)
    assert not bool((up @ down).any())


@pytest.mark.parametrize("terms", [3, 8])
def test_what_is_shortened_is_the_best_of_its_rank(terms: int, draw: torch.Generator) -> None:
    up, down = normal(draw, OUTPUTS, terms), normal(draw, terms, INPUTS)
    whole, values = up @ down, torch.linalg.svdvals(up @ down)
    for rank in range(1, OUTPUTS + 1):
        short_up, short_down = shortened(up, down, rank)
        assert short_up.shape == (OUTPUTS, rank)
        error = torch.linalg.norm(whole - short_up @ short_down)
        torch.testing.assert_close(error, values[rank:].square().sum().sqrt(), atol=1e-9, rtol=1e-9)


def test_the_strongest_directions_stay(draw: torch.Generator) -> None:
    seen = normal(draw, 6, INPUTS)
    whole, values = seen.mT @ seen, torch.linalg.svdvals(seen).square()
    for count in (2, 6):
        kept = strongest(seen, count)
        assert kept.shape == (count, INPUTS)
        error = torch.linalg.norm(whole - kept.mT @ kept)
        torch.testing.assert_close(error, values[count:].square().sum().sqrt(), atol=1e-9, rtol=1e-9)
