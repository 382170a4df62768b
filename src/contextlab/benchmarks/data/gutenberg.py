"""Project Gutenberg: its catalogue, its mirrors, and the text of a book without header and footer.

Project Gutenberg does not want programs to download books from www.gutenberg.org, but from mirrors, slowly. The
catalogue is a single file that it publishes for programs.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import http.client
import io
import re
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from contextlab.benchmarks.data.fetch import as_url, get
from contextlab.errors import UserError

MIRROR = "https://gutenberg.pglaf.org"
CATALOGUE = "https://www.gutenberg.org/cache/epub/feeds/pg_catalog.csv"
ON_MIRROR = ("cache/epub/feeds/pg_catalog.csv", "pg_catalog.csv")
COLUMNS = ("Text#", "Type", "Issued", "Title", "Language", "Authors", "Subjects", "LoCC")
SECONDS_BETWEEN = 1.0
ATTEMPTS = 3

# With a long title the marker continues on the next lines, up to its closing asterisks.
LINE = r"^\*\*\* ?{} OF TH(?:E|IS) PROJECT GUTENBERG (?:[^*]{{0,400}}\*\*\*|.*)$"
BEGIN, END = (re.compile(LINE.format(word), re.MULTILINE | re.IGNORECASE) for word in ("START", "END"))


class Mirror:
    """A copy of Project Gutenberg: a folder, or an address that gets at most one request a second.

    Raises:
        UserError: for Project Gutenberg's own site, or when there is no such folder.
    """

    def __init__(self, where: str = MIRROR, seconds_between: float = SECONDS_BETWEEN) -> None:
        self.url = as_url(where)
        self.remote = self.url.startswith("http")
        if (urlsplit(self.url).hostname or "").removeprefix("www.") == "gutenberg.org":
            raise UserError(f"Project Gutenberg asks robots not to read {where}: give --mirror one of its mirrors.")
        self.seconds_between = seconds_between
        self._last = -seconds_between

    def read(self, path: str) -> bytes | None:
        """The file at a path; None when the mirror does not have it.

        Raises:
            UserError: when the mirror does not answer three times.
        """
        return self.read_url(f"{self.url}/{path}")

    def read_url(self, url: str) -> bytes | None:
        """As `read`, for any address, with the same limit of requests."""
        for attempt in range(ATTEMPTS):
            if self.remote:
                time.sleep(max(0.0, self._last + self.seconds_between * 2**attempt - time.monotonic()))
                self._last = time.monotonic()
            try:
                return get(url)
            except (OSError, http.client.HTTPException) as error:
                reason = error
        raise UserError(f"{url} cannot be reached ({reason}): run the same command again to resume.")

    def book(self, number: int) -> tuple[str, bytes] | None:
        """Path and content of the plain text of a book, in UTF-8 where the mirror has it."""
        return next(((path, content) for path in paths(number) if (content := self.read(path)) is not None), None)

    def catalogue(self, where: str | None = None) -> bytes:
        """The catalogue: from `where`, else the mirror, else, for a mirror on the network, Project Gutenberg.

        Raises:
            UserError: when none of them has it.
        """
        urls = [f"{self.url}/{path}" for path in ON_MIRROR] + ([CATALOGUE] if self.remote else [])
        for url in [where] if where else urls:
            if (content := self.read_url(url)) is not None:
                return content
        raise UserError(f"There is no {ON_MIRROR[0]} at {where or self.url}: give --catalogue, from {CATALOGUE}.")


@dataclasses.dataclass(frozen=True)
class CatalogueRow:
    """A text of the catalogue."""

    number: int
    issued: str
    title: str
    language: str
    authors: str
    subjects: str
    locc: str


def select(catalogue: bytes, first: str, last: str, excluded: Iterable[int]) -> list[CatalogueRow]:
    """The English texts issued from `first` to `last` (ISO dates), without the excluded numbers.

    They are ordered by the sha256 of their numbers: the first n are a random sample that is the same for everybody.

    Raises:
        UserError: when the catalogue is broken, naming the line.
    """
    reader = csv.reader(io.StringIO(catalogue.decode("utf-8-sig", errors="replace"), newline=""), strict=True)
    try:
        columns = next(reader, [])
        records = (dict(zip(columns, cells, strict=True)) for cells in reader)
        rows = [_row(record) for record in records if _wanted(record, first, last)]
    except (csv.Error, ValueError, KeyError) as error:
        raise UserError(
            f"Line {reader.line_num} of the catalogue is broken ({error}): take it from {CATALOGUE}."
        ) from None
    left_out = set(excluded)
    return sorted(
        (row for row in rows if row.number not in left_out),
        key=lambda row: hashlib.sha256(str(row.number).encode()).digest(),
    )


def paths(number: int) -> list[str]:
    """Possible paths of the plain text of a book on a mirror, the best first."""
    name = str(number)
    folder = f"{'/'.join(name[:-1]) or '0'}/{name}"
    return [f"{folder}/{name}-0.txt", f"cache/epub/{name}/pg{name}.txt", f"{folder}/{name}.txt"]


def body(content: bytes) -> str | None:
    """The text between the START and the END line, with LF line ends; None without these lines or when not UTF-8."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        return None
    begin, end = BEGIN.search(text), END.search(text)
    if begin is None or end is None or end.start() < begin.end():
        return None
    return text[begin.end() : end.start()].strip("\n") + "\n"


def _wanted(record: dict[str, str], first: str, last: str) -> bool:
    return record["Type"] == "Text" and record["Language"] == "en" and first <= record["Issued"] <= last


def _row(record: dict[str, str]) -> CatalogueRow:
    number, _, issued, title, language, authors, subjects, locc = (record[name] for name in COLUMNS)
    return CatalogueRow(int(number), issued, title, language, authors, subjects, locc)
