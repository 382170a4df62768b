"""Errors that a user can cause: one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

LONGEST = 120
"""The most characters of an input that a message repeats."""


class UserError(Exception):
    """A mistake that the user can correct: one sentence, which the command line prints before it exits with code 2."""


def short(text: str) -> str:
    """A text for a message, shortened when it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def listed(items: Sequence[str], most: int = 3) -> str:
    """Items for a message: the first few, and how many there are more."""
    more = [f"{len(items) - most} more"] if len(items) > most else []
    return ", ".join([*items[:most], *more])


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for an unknown name, with the most similar known name."""
    choices = sorted(valid)
    near = [choice for choice in choices if choice.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    name = short(name)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(choices) or '(none found)'}."
    return UserError(f"There is no {kind} '{name}': {hint}")


def check_known(kind: str, names: Iterable[str], valid: Collection[str]) -> None:
    """Refuse a name that is not known.

    Raises:
        UserError: which suggests the nearest known name.
    """
    for name in names:
        if name not in valid:
            raise unknown(kind, name, valid)
