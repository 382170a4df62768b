"""Names for display: those of a user, short titles of metrics and methods, and short labels of rows with notes."""

from __future__ import annotations

import dataclasses
import string
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contextlab import grammar
from contextlab.errors import UserError, unknown
from contextlab.reports.cells import Table

KINDS = ("method", "task", "metric", "cost", "context", "backbone", "device", "dtype", "seed")
BOUNDARIES = frozenset("(/ =,")
"""Characters that may follow a part of a label that is replaced."""


@dataclasses.dataclass(frozen=True)
class Names:
    """Display names by kind and label.

    Attributes:
        tables: for `method`, `task`, `metric` and so on, the display name of every label.
    """

    tables: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Names:
        """The names in a TOML file, as `method.longmem = "LongMem"`.

        Raises:
            UserError: when the file cannot be read, or holds something else.
        """
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): name a TOML file with --names.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f'{path} is not TOML ({error}): write lines as method.longmem = "LongMem".') from None
        for kind, table in content.items():
            if kind not in KINDS:
                raise unknown(f"kind of name in {path}", kind, KINDS)
            if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
                raise UserError(f'{path} names no text for {kind}: write lines as {kind}.label = "Name".')
        return cls(content)

    def of(self, kind: str, label: str) -> str:
        """The display name of a label.

        The longest label with which it begins is replaced, and the rest (settings, marks) stays: with a name for
        `longmem`, `longmem(K=32)` is `LongMem(K=32)`.
        """
        table = self.tables.get(kind, {})
        for start in sorted(table, key=len, reverse=True):
            if label == start or (label.startswith(start) and label[len(start)] in BOUNDARIES):
                return table[start] + label[len(start) :]
        return label

    def metric(self, name: str) -> str:
        """The short title of a metric."""
        chosen = self.of("metric", name)
        return chosen if chosen != name else name.replace("_per_", "/").replace("_", " ")


PLAIN = Names()
"""No display names: labels stand as they are."""


ABSENT = object()


def short_methods(labels: Iterable[str]) -> dict[str, str]:
    """Every label with those of its settings by which labels of one name differ, and whether it is trained.

    The word `trained` or `untrained` distinguishes methods of the same name.

    Args:
        labels: of methods, as in tables.
    """
    parts = {label: _parts(label) for label in labels}
    short = {label: _spelled(label, parts) for label in parts}
    texts = list(short.values())
    return {label: text if texts.count(text) == 1 else label for label, text in short.items()}


def titles(labels: Iterable[str], names: Names) -> dict[str, str]:
    """The display name of every label: that of all of it but the mark, or of the beginning of its short form."""
    return {label: _title(label, text, names) for label, text in short_methods(labels).items()}


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
    alike = [
        other[1] for other in parts.values() if other is not None and (other[0], _word(other[2])) == (name, _word(mark))
    ]
    differing = {k: v for k, v in settings.items() if any(others.get(k, ABSENT) != v for others in alike)}
    return ", ".join(word for word in (grammar.spelled(name, None, differing), _word(mark)) if word)


def _word(mark: str) -> str:
    """A mark without its tokens."""
    return mark.strip("()").partition(" ")[0]


LETTERS = string.ascii_lowercase


@dataclasses.dataclass(frozen=True)
class RowLabels:
    """The labels of a table's rows.

    Attributes:
        rows: the parts of every label, each with the letter of its note; the letter is empty without one.
        notes: the notes by letter.
    """

    rows: tuple[tuple[tuple[str, str], ...], ...]
    notes: dict[str, str]


def short_labels(table: Table, longest: int) -> RowLabels:
    """RowLabels of which no part is longer than `longest`, where its settings and marks can become a note."""
    notes: dict[str, str] = {}
    rows = tuple(tuple(_short(part, longest, notes) for part in label) for label in table.rows)
    return RowLabels(rows, {letter: note for note, letter in notes.items()})


def _short(part: str, longest: int, notes: dict[str, str]) -> tuple[str, str]:
    """The part without what stands in its brackets, and the letter of the note about that."""
    start = part.find("(")
    if len(part) <= longest or start <= 0:
        return part, ""
    note = _unbracketed(part[start:])
    notes.setdefault(note, letter(len(notes)))
    return part[:start].rstrip(), notes[note]


def _unbracketed(text: str) -> str:
    """`(K=32) (untrained)` as `K=32; untrained`, with a space after every comma."""
    inner = text.strip().removeprefix("(").removesuffix(")").replace(") (", "; ")
    return ", ".join(part.strip() for part in inner.split(","))


def letter(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    before, last = divmod(number, len(LETTERS))
    return (letter(before - 1) if before else "") + LETTERS[last]
