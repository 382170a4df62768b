"""Escaping of foreign text: names, notes and messages may come from any file.

A terminal executes control characters, a browser tags, and a spreadsheet cells that begin like a formula; a character
without width makes two names look like one. These are escaped and shown as text.
"""

from __future__ import annotations

import re

# Control characters, marks of writing direction, separators of lines, lone surrogates.
ACTIVE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
# Soft hyphens, joiners, characters without width, fillers, tags: two names that look alike must be the same.
UNSEEN = (
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
ESCAPED = re.compile(f"[{ACTIVE}{UNSEEN}]")
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
NUMBER = r"[+-]?(?:[\d.,]+(?:e[+-]?\d+)?|inf|nan)"
NUMBERS = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?")


def text(value: object) -> str:
    """Text for a terminal: control and unseen characters are escaped, except tabs and line ends."""
    return ESCAPED.sub(lambda match: match.group().encode("unicode_escape").decode(), str(value))


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
