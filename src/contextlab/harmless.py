"""Text of others, made harmless for where it goes: names, notes and messages may come from anybody's file.

A terminal acts on control characters, a browser on tags, a spreadsheet on cells that begin like a formula. Whatever
would be acted on is shown as what it is.
"""

from __future__ import annotations

import re

# Control characters, marks that turn the direction of writing, separators of lines, halves of characters.
ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
NUMBER = r"[+-]?(?:[\d.,]+(?:e[+-]?\d+)?|inf|nan)"
NUMBERS = re.compile(rf"{NUMBER}(?: \[{NUMBER}, {NUMBER}\])?")


def text(value: object) -> str:
    """Text for a terminal: control characters as escapes, but for tabs and the ends of lines."""
    return ACTIVE.sub(lambda match: match.group().encode("unicode_escape").decode(), str(value))


def line(value: object) -> str:
    """The same on one line."""
    return text(value).replace("\n", r"\n").replace("\t", r"\t")


def markdown(value: object) -> str:
    """A cell or paragraph of Markdown without tags, links and columns of its own."""
    plain = line(value).replace("|", r"\|").replace("<", "&lt;")
    return re.sub(r"\](?=[(\[])", r"]\\", plain)


def csv(value: object) -> str:
    """A cell that no spreadsheet takes for a formula; numbers and intervals stay as they are."""
    plain = line(value)
    formula = plain.lstrip().startswith(FORMULA) and not NUMBERS.fullmatch(plain)
    return f"'{plain}" if formula else plain
