"""Rows of tables that users bring (jsonl, json, csv, tsv, parquet), each with words that say where it stands."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from contextlab import packed
from contextlab.benchmarks.data import named_files
from contextlab.errors import UserError, listed, short

PACKED_FORMS = (".jsonl", ".json", ".csv", ".tsv")
FORMS = (*(form + packing for form in PACKED_FORMS for packing in named_files.PACKINGS), ".parquet")
"""Endings of the names of tables."""
MOST = 64 * 2**20
"""The most bytes of one line, or of one text."""
# Halves of characters, which JSON can encode, and the sign of files that are no text.
NO_TEXT = re.compile("[\0\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class OwnRow:
    """One row of a table.

    Attributes:
        where: its place, as `Line 3 of qa.csv`.
        values: by column.
        folder: of its file.
        flat: whether every value is a text, as in csv: a list is written there in JSON.
    """

    where: str
    values: Mapping[str, Any]
    folder: Path
    flat: bool = False

    def has(self, column: str) -> bool:
        """Whether there is anything in a column."""
        return not _missing(self.values.get(column))

    def text(self, column: str) -> str:
        """The text in a column; numbers and truth values as in JSON.

        Raises:
            UserError: when there is none.
        """
        return self._text(column, self.values.get(column))

    def texts(self, column: str) -> tuple[str, ...]:
        """The texts of a list in a column, or the only one.

        Raises:
            UserError: when there are none, or one of them is no text.
        """
        value = self._unpacked(column)
        if not isinstance(value, list):
            return (self._text(column, value),)
        if not value:
            raise self.fault(column, "is an empty list: write at least one text in it")
        return tuple(self._text(column, item) for item in value)

    def number(self, column: str) -> int:
        """The whole number above 0 in a column.

        Raises:
            UserError: when there is none.
        """
        text = self.text(column).removesuffix(".0")
        if not text.isdecimal() or not 0 < int(text[:20]) < 2**31:
            raise self.fault(column, f"holds '{short(text)}': write a whole number above 0")
        return int(text)

    def rows(self, column: str) -> Iterator[OwnRow]:
        """The objects of a list in a column, as rows.

        Raises:
            UserError: when it holds anything else.
        """
        value = self._unpacked(column)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.fault(column, "holds no list of objects: write at least one")
        for number, item in enumerate(value, start=1):
            yield OwnRow(f"Item {number} in '{column}' of {_inside(self.where)}", item, self.folder)

    def file(self, column: str) -> Path:
        """The file that a column names, below the folder of the table.

        Raises:
            UserError: when it is not below that folder, or there is none.
        """
        name = self.text(column)
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise self.fault(column, f"names {short(name)}: name a file below the folder of the table")
        if not (self.folder / name).is_file():
            raise self.fault(column, f"names {short(name)}, which is no file in {self.folder}: put it there")
        return self.folder / name

    def fault(self, column: str, reason: str) -> UserError:
        """The sentence for a row that cannot be used."""
        return UserError(f"{self.where}: field '{short(column)}' {reason}.")

    def _unpacked(self, column: str) -> Any:
        value = self.values.get(column)
        if not self.flat or not isinstance(value, str) or not value.lstrip().startswith("["):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise self.fault(column, 'begins with [ and is no list in JSON: write ["one", "two"]') from None

    def _text(self, column: str, value: Any) -> str:
        if _missing(value):
            empty = "is empty" if column in self.values else "is missing"
            raise self.fault(column, f"{empty}: write a text in it, or take the line out")
        if isinstance(value, list | dict):
            kind = "a list" if isinstance(value, list) else "an object"
            raise self.fault(column, f"holds {kind} where a text is needed: write a text")
        if isinstance(value, bytes):
            raise self.fault(column, "holds bytes where a text is needed: store it as a text")
        text = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
        if NO_TEXT.search(text):
            raise self.fault(column, "holds what is no text (a zero byte or half a character): correct it")
        return text


def rows(path: Path) -> Iterator[OwnRow]:
    """The rows of a table.

    Raises:
        UserError: when the file cannot be read, or is no table of the kind that its name says.
    """
    form = next(form for form in FORMS if named_files.has_ending(path, (form,))).removesuffix(".gz").removesuffix(".xz")
    if form == ".parquet":
        return _of_parquet(path)
    if form == ".json":
        return _of_json(path)
    return _of_json_lines(path) if form == ".jsonl" else _of_csv(path, "\t" if form == ".tsv" else ",")


def whole_text(path: Path) -> str:
    """The text of a file that is one text.

    Raises:
        UserError: when it cannot be read, is longer than a text may be, is not UTF-8, or is empty.
    """
    try:
        with packed.opened(path) as file:
            raw = file.read(MOST + 1)
    except (OSError, packed.BrokenPack) as error:
        raise named_files.unreadable(path, error) from error
    if len(raw) > MOST:
        raise UserError(f"{path} has more than {MOST >> 20} MiB: divide it into several texts.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"Line {line} of {path} is not UTF-8: save the file as UTF-8.") from None
    if not text.strip():
        raise UserError(f"{path} is empty: put a text in it, or take it away.")
    if NO_TEXT.search(text):
        raise UserError(f"{path} is no text (it holds a zero byte): save it as plain text in UTF-8, or take it away.")
    return text


def _missing(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    )


def _inside(where: str) -> str:
    return where[0].lower() + where[1:]


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, with their ends."""
    try:
        with packed.opened(path) as file:
            number = 0
            while line := file.readline(MOST + 1):
                number += 1
                if len(line) > MOST:
                    raise UserError(f"Line {number} of {path} has more than {MOST >> 20} MiB: divide it.")
                try:
                    yield line.decode("utf-8-sig")
                except UnicodeDecodeError:
                    raise UserError(f"Line {number} of {path} is not UTF-8: save the file as UTF-8.") from None
    except (OSError, packed.BrokenPack) as error:
        raise named_files.unreadable(path, error) from error


def _object(value: Any, where: str, folder: Path) -> OwnRow:
    if not isinstance(value, dict):
        raise UserError(f'{where} is no JSON object: write {{"name": value}} there.')
    return OwnRow(where, value, folder)


def _parsed(text: str, where: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"{where} has the field '{short(twice)}' twice: keep one of the two.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f"{where} is not valid JSON ({short(reason)}): correct it.") from None


def _of_json_lines(path: Path) -> Iterator[OwnRow]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            where = f"Line {number} of {path}"
            yield _object(_parsed(line, where), where, path.parent)


def _of_json(path: Path) -> Iterator[OwnRow]:
    value = _parsed(whole_text(path), str(path))
    if not isinstance(value, list):
        raise UserError(f"{path} is no list: write a list of objects, or one object a line into a .jsonl file.")
    for number, item in enumerate(value, start=1):
        yield _object(item, f"Item {number} of {path}", path.parent)


def _of_csv(path: Path, delimiter: str) -> Iterator[OwnRow]:
    csv.field_size_limit(max(MOST, csv.field_size_limit()))
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    start = 1
    try:
        header = next(reader, None)
        if header is None:
            return
        names = [name.strip() for name in header]
        _check_separated(path, header, delimiter)
        for name in filter(None, names):
            if names.count(name) > 1:
                raise UserError(f"{path} has two columns '{short(name)}': give every column its own name.")
        start = reader.line_num + 1
        for cells in reader:
            where, start = f"Line {start} of {path}", reader.line_num + 1
            if cells and len(cells) != len(names):
                raise UserError(
                    f"{where} has {len(cells)} fields and the header {len(names)}: put a text that holds a delimiter "
                    "or a line end in quotes."
                )
            if cells:
                yield OwnRow(where, dict(zip(names, cells, strict=True)), path.parent, flat=True)
    except csv.Error as error:
        if "new-line character" in str(error):
            raise UserError(f"Line {start} of {path} ends with \\r alone: save the file with line ends \\n.") from None
        raise UserError(f"Line {start} of {path} is not valid csv ({error}): correct its quotes.") from None


def _check_separated(path: Path, header: Sequence[str], delimiter: str) -> None:
    """Refuse a file whose columns another character separates, as spreadsheets of some languages write it."""
    if delimiter == "," and len(header) == 1 and ";" in header[0]:
        raise UserError(f"{path} separates its columns by ';': separate them by commas.")
    if delimiter == "," and len(header) == 1 and "\t" in header[0]:
        raise UserError(
            f"{path} separates its columns by tabs: separate them by commas, or let its name end with .tsv."
        )


def _of_parquet(path: Path) -> Iterator[OwnRow]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(f"{path} needs pyarrow: pip install 'contextlab[parquet]', or save it as .jsonl.") from None
    try:
        with io.BytesIO(named_files.content(path)) as file:
            values = parquet.read_table(file, use_threads=False, pre_buffer=False).to_pylist()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no parquet file ({short(str(error))}): give an intact one.") from None
    for number, row in enumerate(values, start=1):
        yield OwnRow(f"Row {number} of {path}", row, path.parent)


def without_column(column: str, row: OwnRow, setting: str) -> UserError:
    """The sentence for a table that lacks a column, which a setting may name."""
    columns = listed([short(name) for name in row.values], most=8) or "none"
    return UserError(
        f"{row.where} has no field '{short(column)}', its fields are {columns}: name yours with {setting}, or add it."
    )
