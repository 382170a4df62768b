"""Escaping of foreign text: names, notes and messages may come from any file.

A terminal executes control characters, a browser tags, and a spreadsheet cells that begin like a formula. These are
escaped and shown as text.
"""

from __future__ import annotations

import re

# Control characters, marks of writing direction, separators of lines, lone surrogates.
ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
NUMBER = r"[+-]?(?:[\d.,]+(?:e[+-]?\d+)?|inf|nan)"
NUMBERS = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?")


def text(value: object) -> str:
    """Text for a terminal: control characters are escaped, except tabs and line ends."""
    return ACTIVE.sub(lambda match: match.group().encode("unicode_escape").decode(), str(value))


def line(value: object) -> str:
    """Text for one line of a terminal: tabs and line ends are escaped too."""
    return text(value).replace("\n", r"\n").replace("\t", r"\t")


def markdown(value: object) -> str:
    """Text for a cell or paragraph of Markdown: tags, links and column separators are escaped."""
    plain = line(value).replace("|", r"\|").replace("<", "&lt;")
    return re.sub(r"\](?=[(\[])", r"]\\", plain)


def csv(value: object) -> str:
    """Text for a CSV cell that no spreadsheet reads as a formula; numbers and intervals are unchanged."""
    plain = line(value)
    formula = plain.lstrip().startswith(FORMULA) and not NUMBERS.fullmatch(plain)
    return f"'{plain}" if formula else plain
