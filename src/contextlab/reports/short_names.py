"""Short names of methods for legends and cards: no more settings than tell them apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contextlab import grammar
from contextlab.errors import UserError
from contextlab.reports.names import Names

ABSENT = object()


def shortened(labels: Iterable[str]) -> dict[str, str]:
    """Every label with those of its settings by which labels of one name differ, and whether it is trained.

    Methods that are trained and those that are not are told apart by that word.

    Args:
        labels: of methods, as in tables.
    """
    parts = {label: _parts(label) for label in labels}
    short = {label: _spelled(label, parts) for label in parts}
    texts = list(short.values())
    return {label: text if texts.count(text) == 1 else label for label, text in short.items()}


def titles(labels: Iterable[str], names: Names) -> dict[str, str]:
    """The display name of every label: that of all of it but the mark, or of the beginning of its short form."""
    return {label: _title(label, text, names) for label, text in shortened(labels).items()}


def _title(label: str, short: str, names: Names) -> str:
    parts = _parts(label)
    mark = parts[2] if parts is not None else ""
    whole = names.tables.get("method", {}).get(label.removesuffix(mark).rstrip())
    return names.of("method", short) if whole is None else ", ".join(word for word in (whole, _word(mark)) if word)


def _parts(label: str) -> tuple[str, dict[str, Any], str] | None:
    """Name, settings and mark; None for a label that tables have extended by a version."""
    try:
        item = grammar.single(label, "method")
    except UserError:
        return None
    marks = grammar.MARK.findall(label)
    return item.name, dict(item.settings), marks[-1] if marks and label.endswith(marks[-1]) else ""


def _spelled(label: str, parts: dict[str, tuple[str, dict[str, Any], str] | None]) -> str:
    own = parts[label]
    if own is None:
        return label
    name, settings, mark = own
    alike = [one[1] for one in parts.values() if one is not None and (one[0], _word(one[2])) == (name, _word(mark))]
    kept = {k: v for k, v in settings.items() if any(others.get(k, ABSENT) != v for others in alike)}
    return ", ".join(word for word in (grammar.spelled(name, None, kept), _word(mark)) if word)


def _word(mark: str) -> str:
    """A mark without its tokens."""
    return mark.strip("()").partition(" ")[0]
