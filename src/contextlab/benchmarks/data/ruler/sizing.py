"""The number of units with which a text is just short enough."""

from __future__ import annotations

from collections.abc import Callable

NEAR = 0.998
"""Share of the limit from which on a text is long enough."""
MOST_GROWTH = 16
"""How many times as many units are tried next, at most, while no text was too long."""


def most_units(tokens: Callable[[int], int], limit: int, least: int, most: int | None = None) -> int | None:
    """A number of units whose text fills a limit: to `NEAR` of it, or so that one more unit is too much.

    As in upstream's search, the range of the answer is halved; every second step guesses it from the lengths at both
    ends of the range, since the length is nearly linear in the number of units.

    Args:
        tokens: of the text with so many units.
        limit: the most tokens.
        least: the smallest number of units.
        most: the largest number of units.

    Returns:
        The number, or None when the text with the fewest units is too long.
    """
    low, shortest = least, tokens(least)
    if shortest > limit:
        return None
    short, trial, halve = shortest, 2 * least + 8, False
    high, long = None, limit + 1  # the fewest units that are known to be too many
    while short < NEAR * limit and low != most and high != low + 1:
        end = most if high is None else high - 1
        trial = max(trial, low + 1)
        trial = trial if end is None else min(trial, end)
        length = tokens(trial)
        if length <= limit:
            low, short = trial, length
        else:
            high, long = trial, length
        if high is None:
            steps = int(1.01 * (limit - short) * (low - least) / max(short - shortest, 1))
            trial = low + 1 + min(steps, MOST_GROWTH * low)
        else:
            halve = not halve
            trial = (low + high) // 2 if halve else low + (limit - short) * (high - low) // (long - short)
    return low
