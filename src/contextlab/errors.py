"""Errors that a user can cause: one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 120
"""Characters of somebody's input that a message repeats."""


class UserError(Exception):
    """A mistake the user can mend; its text is one sentence, the command line prints it and exits with code 2."""


def short(text: str) -> str:
    """A text as a message quotes it: its beginning, when it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest names that do."""
    choices = sorted(known)
    near = [choice for choice in choices if choice.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    name = short(name)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(choices) or '(none found)'}."
    return UserError(f"There is no {kind} '{name}': {hint}")
