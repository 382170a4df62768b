"""The door for files that are read back: size, seal and form are checked before anything is believed.

A sealed text of JSON ends with the field `seal`, the sha256 of the text without it. Files whose `schema` is 2 or more
are sealed; a seal is checked wherever there is one. Files of tensors have theirs in their metadata (`tensors`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from contextlab import files

M = TypeVar("M", bound=pydantic.BaseModel)

SEALED = 2
"""The first schema whose files are sealed."""
LARGEST = 2**28
"""The most bytes of a file of JSON."""
_END = re.compile(r',(?P<gap>\s*)"seal": "(?P<seal>[0-9a-f]*)"(?P<end>\s*)\}\n?\Z')


class Damaged(Exception):
    """A file that is not what was written; the text says what is wrong with it."""


def sealed(value: Mapping[str, Any], *, salt: str = "", line: bool = False) -> str:
    """The text of a JSON object with its seal as the last field.

    Args:
        value: the object; an earlier seal is replaced.
        salt: what the object belongs to; it is opened only with the same one.
        line: everything on one line, with a seal of 16 digits.
    """
    plain = {name: part for name, part in value.items() if name != "seal"}
    return _sealed(json.dumps(plain, indent=None if line else 1, default=str), salt)


def write(path: Path, value: Mapping[str, Any], *, salt: str = "") -> None:
    """Write a sealed JSON object in place of an earlier file.

    Args:
        path: of the file.
        value: the object.
        salt: as for `sealed`.

    Raises:
        OSError: when it cannot be written.
    """
    files.write(path, sealed(value, salt=salt) + "\n")


def opened(text: str, *, salt: str = "", required: bool = False) -> dict[str, Any]:
    """The JSON object of a text, without its seal.

    Args:
        text: what `sealed` gave, perhaps with a line break after it.
        salt: as when it was sealed.
        required: whether a text without a seal is damaged whatever its schema.

    Raises:
        Damaged: when it is no object, or not what was sealed.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise Damaged("no JSON") from None
    if not isinstance(value, dict):
        raise Damaged("no JSON object")
    schema = value.get("schema")
    if "seal" in value:
        end = _END.search(text)
        body = text[: end.start()] + end["end"] + "}" if end else ""
        if not end or _sealed(body, salt) != text.removesuffix("\n"):
            raise Damaged("its seal is broken: it changed since it was written")
        del value["seal"]
    elif required or (isinstance(schema, int) and schema >= SEALED):
        raise Damaged("its seal is missing")
    return value


def lines(text: str, *, salt: str = "", required: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a text with one on every line; where one line is sealed, all must be.

    Args:
        text: whole lines.
        salt: as when they were sealed.
        required: whether all must be sealed in any case.

    Raises:
        Damaged: naming the line that is not what was written, or is there twice.
    """
    numbers: dict[str, int] = {}
    opened_lines = []
    required = required or '"seal": "' in text
    for number, line in enumerate(text.split("\n")[: text.count("\n")], start=1):
        try:
            opened_lines.append(opened(line, salt=salt, required=required))
        except Damaged as damaged:
            raise Damaged(f"line {number}: {damaged}") from None
        if required and line in numbers:
            raise Damaged(f"line {number} repeats line {numbers[line]}")
        numbers[line] = number
    return opened_lines


def read(path: Path, model: type[M], *, most: int = LARGEST) -> M:
    """What a file of JSON holds, as a model.

    Args:
        path: of the file.
        model: that it must fit.
        most: bytes that it may have.

    Raises:
        FileNotFoundError: when there is no such file.
        Damaged: when it cannot be read, is too large, not what was sealed, or of another form.
    """
    try:
        return model.model_validate(opened(text(path, most=most)))
    except pydantic.ValidationError as error:
        raise Damaged(first_fault(error)) from None


def text(path: Path, *, most: int = LARGEST) -> str:
    """A text file.

    Raises:
        FileNotFoundError: when there is no such file.
        Damaged: when it cannot be read, is too large, or not UTF-8.
    """
    try:
        if os.path.getsize(path) > most:
            raise Damaged(f"it has more than {most / 2**20:,.0f} MiB")
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(files.reason(error)) from None
    except ValueError:
        raise Damaged("no UTF-8") from None


def first_fault(error: pydantic.ValidationError) -> str:
    """The first error of a value, as `field: reason`."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    why = first["msg"].removeprefix("Value error, ").partition("\n")[0]
    why = why[:1].lower() + why[1:]
    return f"{where}: {why}" if where else why


def _sealed(body: str, salt: str) -> str:
    line = not body.endswith("\n}")
    digest = hashlib.sha256((salt + body).encode()).hexdigest()[: 16 if line else 64]
    gap, end = (" ", "") if line else ("\n ", "\n")
    return f'{body.removesuffix("}").removesuffix(end)},{gap}"seal": "{digest}"{end}}}'
