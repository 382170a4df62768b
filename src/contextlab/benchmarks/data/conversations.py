"""Conversations in several sessions: the layouts of Multi-Session Chat and of LoCoMo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contextlab.benchmarks.data.sample import story
from contextlab.benchmarks.data.sources import field
from contextlab.benchmarks.examples import Session

SPEAKERS = ("Speaker 1", "Speaker 2")


def transcript(sessions: Sequence[Session]) -> str:
    """Sessions one after another, an empty line between them."""
    return "\n\n".join(session.text for session in sessions)


def msc_sessions(record: Any, where: str) -> tuple[Session, ...]:
    """All sessions of a line of MSC, the current one last.

    Raises:
        UserError: when a field is missing.
    """
    earlier = [field(session, "dialog", list, where) for session in field(record, "previous_dialogs", list, where)]
    dialogs = [*earlier, field(record, "dialog", list, where)]
    return tuple(Session(f"Session {n}", _msc_turns(dialog, where)) for n, dialog in enumerate(dialogs, start=1))


def _msc_turns(dialog: Sequence[Any], where: str) -> tuple[tuple[str, str], ...]:
    # Earlier sessions do not say who speaks; Speaker 1 begins and the two take turns.
    texts = [field(turn, "text", str, where).strip() for turn in dialog]
    named = [turn.get("id") for turn in dialog]
    return tuple((name if name in SPEAKERS else SPEAKERS[n % 2], texts[n]) for n, name in enumerate(named))


def locomo_sessions(conversation: dict[str, Any], where: str) -> tuple[Session, ...]:
    """All sessions that have turns, with their times as headings.

    Raises:
        UserError: when a field is missing.
    """
    numbers = sorted(int(key[8:]) for key in conversation if key[:8] == "session_" and key[8:].isdecimal())
    return tuple(
        Session(
            f"Session {n}, {field(conversation, f'session_{n}_date_time', str, where)}",
            tuple(_locomo_turn(turn, where) for turn in field(conversation, f"session_{n}", list, where)),
        )
        for n in numbers
    )


def _locomo_turn(turn: Any, where: str) -> tuple[str, str]:
    text = field(turn, "text", str, where).strip()
    shown = f" (shares a picture: {field(turn, 'blip_caption', str, where)})" if turn.get("blip_caption") else ""
    return field(turn, "speaker", str, where), text + shown


def sample_sessions(seed: int, index: int, sessions: int = 5) -> tuple[Session, ...]:
    """Sessions in which two speakers tell each other parts of a generated story."""
    paragraphs = [part for chapter in story(150 * sessions, seed, index).chapters for part in chapter.split("\n\n")]
    size = len(paragraphs) // sessions
    return tuple(
        Session(f"Session {n + 1}", tuple((SPEAKERS[i % 2], text) for i, text in enumerate(part)))
        for n, part in enumerate(paragraphs[size * n : size * (n + 1)] for n in range(sessions))
    )
