"""How methods and tasks are named with their settings: on the command line, in Python and in tables.

    list    = [ item ] { "," [ item ] }
    item    = name [ "/" split ] [ "(" settings ")" ] [ mark ]
    settings = [ key "=" value ] { "," [ key "=" value ] }
    value   = JSON list or object | null | quoted | plain
    mark    = "(untrained)" | "(trained " tokens ")"

A name is a registered one or `path.py:Class`; only tasks have splits. A plain value ends at a comma or a closing
bracket; inside of its own brackets it may hold both. In quotes, ' or ", a name, a split or a value may hold
anything, its own quotation mark written twice. White space around the parts has no meaning, nor has the mark by which
tables say whether a method has learned something.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from contextlab.errors import UserError, short

Kind = Literal["method", "task", "objective", "engine"]

UNTRAINED = "(untrained)"
"""Mark in tables after a method that has learned nothing."""
MARK = re.compile(r"\((?:untrained|trained [^(),=]*)\)")
"""Marks that tables put after a method that has something to learn."""
FILE = ".py:"
QUOTES = ("'", '"')
SPECIAL = frozenset(",()[]{}'\"")
"""Characters that need quotes in a name, split or value; in a value, brackets could stay if they are in pairs."""


@dataclasses.dataclass(frozen=True)
class NamedItem:
    """A method or a task as it is named.

    Attributes:
        name: registered, or `path.py:Class`.
        split: of a task; None where none is named.
        settings: by key, text or what a JSON value holds.
    """

    name: str
    split: str | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def items(texts: str | Sequence[str], kind: Kind) -> list[NamedItem]:
    """The methods or tasks that a text, or each of several texts, lists.

    Raises:
        UserError: when none is named, or a text does not follow the grammar.
    """
    listed = [item for text in ([texts] if isinstance(texts, str) else texts) for item in _Reader(text).items(kind)]
    if not listed:
        raise UserError(f"No {kind} is named: give at least one with --{kind}.")
    return listed


def single(text: str, kind: Kind) -> NamedItem:
    """The only method or task of a text.

    Raises:
        UserError: when there are none or several, or the text does not follow the grammar.
    """
    listed = items(text, kind)
    if len(listed) > 1:
        raise UserError(f"'{short(text)}' names {len(listed)} {kind}s: name one of them.")
    return listed[0]


def split(text: str) -> NamedItem:
    """A split and its settings, as `512(prompt=chat)`; the name of the item is the split's.

    Raises:
        UserError: when the text does not follow the grammar.
    """
    listed = _Reader(text).items("split")
    if len(listed) != 1:
        raise UserError(f"'{short(text)}' is no split: name one, as S1 or S1(key=value).")
    return listed[0]


def settings(text: str, owner: str) -> dict[str, Any]:
    """The settings of a text `key=value,key=value`, as it could stand in the brackets of `owner`.

    Raises:
        UserError: when the text does not follow the grammar.
    """
    return _Reader(text).settings(owner, end="")


def value(text: str, owner: str) -> Any:
    """The value of a text that is a value and nothing else, as after `--set key=`; a plain one may hold anything.

    Raises:
        UserError: for a list or object that is no JSON, or a quotation without an end.
    """
    reader = _Reader(text)
    if text != "null" and not text.startswith(("[", "{", *QUOTES)):
        return text
    result = reader.value(owner, end="")
    if reader.rest():
        raise UserError(f"'{short(reader.rest())}' stands after the value of {owner}: put all of it in quotes.")
    return result


def spelled(name: str, split: str | None = None, settings: Mapping[str, Any] | None = None) -> str:
    """A text that is read back as an item of that name, split and settings."""
    slash = "/" in name.rpartition(FILE)[2] if FILE in name else "/" in name
    head = _quoted(name, slash)
    return head + ("" if split is None else f"/{_quoted(split, FILE in split)}") + _bracketed(settings or {})


def spelled_method(name: str, settings: Mapping[str, Any]) -> str:
    """A text that is read back as a method of that name with these settings; a stroke in it has no meaning."""
    return _quoted(name) + _bracketed(settings)


def spelled_split(split: str, settings: Mapping[str, Any]) -> str:
    """A text that is read back as a split with these settings."""
    return _quoted(split) + _bracketed(settings)


def spelled_value(value: Any) -> str:
    """A text that is read back as a value, or as the text that a setting of another type is made of."""
    if isinstance(value, str):
        return _quoted(value, value == "null")
    if value is None or isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, separators=(",", ":"), default=str)
    return _quoted(str(value))


def _bracketed(settings: Mapping[str, Any]) -> str:
    pairs = ",".join(f"{key}={spelled_value(of_key)}" for key, of_key in settings.items())
    return f"({pairs})" if pairs else ""


def _quoted(text: str, needed: bool = False) -> str:
    """A text as it is, or in quotes where it would be read otherwise."""
    if not needed and text and text == text.strip() and not SPECIAL & set(text):
        return text
    quote = QUOTES["'" in text and '"' not in text]
    return quote + text.replace(quote, 2 * quote) + quote


class _Reader:
    """Reads a text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def rest(self) -> str:
        """The text that has not been read, without white space before it."""
        self.position += len(self.text[self.position :]) - len(self.text[self.position :].lstrip())
        return self.text[self.position :]

    def take(self, mark: str) -> bool:
        """Whether a mark stands next; it is read if so."""
        marked = self.rest().startswith(mark)
        self.position += len(mark) * marked
        return marked

    def mark(self) -> bool:
        """Whether a mark of tables stands next; it is read if so."""
        marked = MARK.match(self.rest())
        self.position += marked.end() if marked else 0
        return marked is not None

    def items(self, kind: str) -> list[NamedItem]:
        """All items up to the end; `kind` says what they are of."""
        listed = []
        while self.rest():
            if not self.take(","):
                listed.append(self.item(kind))
        return listed

    def item(self, kind: str) -> NamedItem:
        """The next item, without the comma after it."""
        name, split = self.name(kind)
        if not name:
            raise UserError(f"'{short(self.rest())}' has no name before it: begin with the name of the {kind}.")
        settings = {}
        if not self.mark() and self.take("("):
            settings = self.settings(name, end=")")
            if not self.take(")"):
                example = "key=value" if not settings else "{}={}".format(*next(iter(settings.items())))
                raise UserError(f"The bracket after {short(name)} is not closed: write {short(name)}({example}).")
            self.mark()
        if self.rest() and not self.rest().startswith(","):
            raise UserError(f"'{short(self.rest())}' stands after {short(name)}: put a comma between two {kind}s.")
        return NamedItem(name, split, settings)

    def name(self, kind: str) -> tuple[str, str | None]:
        """A name, and for tasks a split."""
        if self.rest().startswith(QUOTES):
            name = self.quotation(f"a {kind}")
        else:
            name = self.run(",('\"")
            slash = name.find("/", max(name.rfind(FILE), 0)) if kind == "task" else -1
            if slash >= 0:
                self.position -= len(name) - slash
                name = name[:slash]
            name = name.strip()
        if kind != "task" or not self.take("/"):
            return name, None
        quoted = self.rest().startswith(QUOTES)
        split = self.quotation(f"a split of {name}") if quoted else self.run(",('\"").strip()
        if not split and not quoted:
            raise UserError(f"No split stands after '{short(name)}/': name one, or leave the stroke away.")
        return name, split

    def settings(self, owner: str, end: str) -> dict[str, Any]:
        """Keys and values up to an unread `end`, or the end of the text."""
        owner, settings = short(owner), dict[str, Any]()
        while (rest := self.rest()) and not (end and rest.startswith(end)):
            if self.take(","):
                continue
            key = self.run(f",={end}").strip()
            if not self.take("="):
                raise UserError(f"'{short(key)}' of {owner} has no value: write {owner}({short(key) or 'key'}=value).")
            if key in settings:
                raise UserError(f"{owner} is given {short(key)} twice: keep one of the two.")
            settings[key] = self.value(f"{short(key)} of {owner}", end)
            if self.rest() and not self.rest().startswith((",", end or ",")):
                raise UserError(
                    f"'{short(self.rest())}' stands after {short(key)} of {owner}: put a comma between them."
                )
        return settings

    def value(self, owner: str, end: str) -> Any:
        """A value up to an unread comma or `end`."""
        rest = self.rest()
        if rest.startswith(("[", "{")):
            return self.json(owner)
        if rest.startswith(QUOTES):
            return self.quotation(f"the value of {owner}")
        plain = self.plain(end).strip()
        if not plain:
            raise UserError(f"There is no value for {owner}: write one after the =, or '' for an empty text.")
        return None if plain == "null" else plain

    def json(self, owner: str) -> Any:
        """A JSON list or object."""
        try:
            value, self.position = json.JSONDecoder().raw_decode(self.text, self.position)
        except (ValueError, RecursionError):
            raise UserError(
                f"The value of {owner} is not valid JSON: write a list as [1,2], a text in quotes."
            ) from None
        return value

    def quotation(self, what: str) -> str:
        """A text in quotes, in which the quotation mark itself stands twice."""
        quote = self.text[self.position]
        quoted = re.compile(f"{quote}((?:[^{quote}]|{quote}{quote})*){quote}").match(self.text, self.position)
        if quoted is None:
            raise UserError(f"The quotation of {short(what)} has no end: close it with {quote}.")
        self.position = quoted.end()
        return quoted[1].replace(2 * quote, quote)

    def plain(self, end: str) -> str:
        """Text up to a comma or `end` that stands in no brackets."""
        start, depth = self.position, 0
        while self.position < len(self.text):
            mark = self.text[self.position]
            if depth == 0 and mark in (",", end):
                break
            depth += (mark in "([{") - (mark in ")]}" and depth > 0)
            self.position += 1
        return self.text[start : self.position]

    def run(self, ends: str) -> str:
        """Text up to the first of some characters."""
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in ends:
            self.position += 1
        return self.text[start : self.position]
