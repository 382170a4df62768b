"""Builds PG-22: draws books from Project Gutenberg's catalogue by the rule of LongMem (section 3.1).

The set holds the English texts released in 2020-2022 that PG-19 does not have, without Project Gutenberg's header and
footer, in the paper's ranges of length by GPT-2 tokens. A journal records every finished book, so that an interrupted
build can be resumed.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextlab import files, locks, seals
from contextlab.benchmarks.data.fetch import SUMS, read_sums, write_sums
from contextlab.benchmarks.data.sources import json_file, json_lines, read
from contextlab.errors import UserError
from contextlab.files import Journal

if TYPE_CHECKING:
    from contextlab.benchmarks.data.gutenberg import CatalogueRow, Mirror

FIRST, LAST = "2020-01-01", "2022-12-31"
# The least tokens of every range; books shorter than the first are left out.
RANGES = {"S1": 5_000, "S2": 10_000, "S3": 100_000, "S4": 500_000, "S5": 1_000_000}
MANIFEST, JOURNAL, CATALOGUE = "manifest.json", "build.jsonl", "pg_catalog.csv"
GPT2, GPT2_REVISION = "openai-community/gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The sources that decide which books a build draws.

    Attributes:
        catalogue_sha256: of Project Gutenberg's catalogue.
        excluded_sha256: of the list of PG-19's books.
        tokenizer_sha256: of the tokenizer that measures length.
    """

    catalogue_sha256: str
    excluded_sha256: str
    tokenizer_sha256: str


def build(
    folder: Path,
    mirror: Mirror,
    metadata: Path,
    tokenizer: Any,
    *,
    limit: int | None = None,
    catalogue: str | None = None,
    progress: Callable[[list[CatalogueRow]], Iterator[CatalogueRow]] = iter,
) -> dict[str, Any]:
    """Draw the set into `folder` and return its manifest.

    Args:
        folder: for `books.jsonl`, `texts/`, the catalogue, the journal and `manifest.json`.
        mirror: source of the texts.
        metadata: PG-19's `metadata.csv`, or any CSV whose first column are the numbers of books to leave out.
        tokenizer: of the package `tokenizers`.
        limit: the most books; every build draws the same first n.
        catalogue: path or address of the catalogue; the mirror's when None.
        progress: wraps the iteration over the rows, as `tqdm` does.

    Raises:
        UserError: when a source is missing or broken, the folder holds a build from other sources or that of another
            process, or cannot be written.
    """
    refusal = f"Another process builds {folder}: wait for it, or give another --out."
    with files.writing(folder, "give another --out"), locks.alone(folder, refusal):
        return _build(folder, mirror, metadata, tokenizer, limit, catalogue, progress)


def _build(
    folder: Path,
    mirror: Mirror,
    metadata: Path,
    tokenizer: Any,
    limit: int | None,
    catalogue: str | None,
    progress: Callable[[list[CatalogueRow]], Iterator[CatalogueRow]],
) -> dict[str, Any]:
    from contextlab.benchmarks.data.gutenberg import select

    excluded, excluded_sha256 = _numbers(metadata)
    list_file = folder / CATALOGUE
    listed = list_file.read_bytes() if list_file.exists() and catalogue is None else mirror.catalogue(catalogue)
    plan = Plan(_sha256(listed), excluded_sha256, _sha256(tokenizer.to_str().encode()))
    rows = select(listed, FIRST, LAST, excluded)
    (folder / "texts").mkdir(parents=True, exist_ok=True)
    journal = _journal(folder / JOURNAL, plan)
    files.write(list_file, listed)
    books: list[dict[str, Any]] = []
    skipped: Counter[str] = Counter()
    with Journal(folder / JOURNAL) as finished:
        for row in progress(rows):
            entry = journal.get(row.number)
            if entry is None:
                entry = _draw(row, folder, mirror, tokenizer)
                finished.append(_line(entry))
            if "skipped" in entry:
                skipped[entry["skipped"]] += 1
                continue
            books.append(entry)
            if len(books) == limit:
                break
    manifest = {
        "schema": 1,
        "rule": f"English texts issued {FIRST} to {LAST}, not in PG-19, 5,000 GPT-2 tokens or more",
        **dataclasses.asdict(plan),
        "limit": limit,
        "books": len(books),
        "buckets": dict(sorted(Counter(book["bucket"] for book in books).items())),
        "skipped": dict(sorted(skipped.items())),
        "sha256": _digest_of(books),
    }
    files.write(folder / "books.jsonl", "".join(json.dumps(book) + "\n" for book in books).encode())
    files.write(folder / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    write_sums(folder / SUMS, {name: files.sha256(folder / name) for name in _listed(books)})
    return manifest


def _listed(books: Iterable[Mapping[str, Any]]) -> list[str]:
    """The files of a set whose digests are listed."""
    return [CATALOGUE, "books.jsonl", MANIFEST, *(book["file"] for book in books)]


def _line(entry: Mapping[str, Any]) -> bytes:
    """A line of the journal."""
    return seals.sealed(entry, line=True).encode() + b"\n"


def _skipped(fields: dict[str, Any]) -> int:
    """Books that a build has left out; a TypeError where the manifest does not hold their counts."""
    counts = fields["skipped"]
    if not isinstance(counts, dict):
        raise TypeError("skipped holds no counts")
    return sum(counts.values())


def differences(folder: Path) -> list[str]:
    """Differences between a built set and its manifest, one sentence each."""
    manifest = folder / MANIFEST
    try:
        fields = json_file(manifest)[0]
        books = [book for _, book in json_lines(folder / "books.jsonl")[0]]
        if fields["sha256"] != _digest_of(books):
            return [f"{folder}/books.jsonl does not list the books of {MANIFEST}: build the set again."]
        if (folder / SUMS).exists() and read_sums(folder / SUMS).keys() != set(_listed(books)):
            return [f"{folder / SUMS} does not list the files of the set: build the set again."]
        journal = folder / JOURNAL
        if journal.exists():
            plan = Plan(**{field.name: fields[field.name] for field in dataclasses.fields(Plan)})
            entries = _entries(journal, journal.read_bytes(), plan)
            if len(entries) < len(books) + _skipped(fields):
                return [f"{journal} does not record all of the build: build the set again."]
        wrong = [
            book["file"] for book in books if _sha256(read(folder / book["file"])[0].encode()) != book["sha256_txt"]
        ]
    except UserError as error:
        return [str(error)]
    except (KeyError, TypeError):
        return [f"{manifest} or books.jsonl lacks a field: build the set again."]
    return [f"{folder / file} is not the text that books.jsonl lists: build the set again." for file in wrong]


def lists(folder: Path, books: list[dict[str, Any]]) -> bool:
    """Whether the manifest in `folder` lists these books; False without a manifest."""
    manifest = folder / MANIFEST
    try:
        fields = json_file(manifest)[0]
    except UserError:
        return False
    return isinstance(fields, dict) and fields.get("sha256") == _digest_of(books)


def load_tokenizer(where: Path | None = None) -> Any:
    """GPT-2's tokenizer, from a `tokenizer.json` or from the hub at a fixed revision.

    Raises:
        UserError: when it cannot be loaded.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(where)) if where else Tokenizer.from_pretrained(GPT2, revision=GPT2_REVISION)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"GPT-2's tokenizer cannot be had ({reason}): give --tokenizer the tokenizer.json of {GPT2}."
        ) from None


def bucket(tokens: int) -> str | None:
    """The range of a length in tokens; None below the first range."""
    return next((name for name, least in reversed(RANGES.items()) if tokens >= least), None)


def _draw(row: CatalogueRow, folder: Path, mirror: Mirror, tokenizer: Any) -> dict[str, Any]:
    from contextlab.benchmarks.data.gutenberg import body

    book = mirror.book(row.number)
    if book is None:
        return {"gutenberg_id": row.number, "skipped": "no plain text at the mirror"}
    path, content = book
    text = body(content)
    if text is None:
        return {"gutenberg_id": row.number, "skipped": "not UTF-8 between START and END lines"}
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    range_ = bucket(tokens)
    if range_ is None:
        return {"gutenberg_id": row.number, "skipped": "shorter than 5,000 tokens"}
    file = f"texts/{row.number}.txt.gz"
    files.write(folder / file, gzip.compress(text.encode(), mtime=0))
    return {
        "id": f"pg{row.number}",
        "gutenberg_id": row.number,
        "title": row.title.partition("\n")[0].strip(),
        "full_title": row.title,
        "authors": row.authors,
        "language": row.language,
        "release_date": row.issued,
        "subjects": row.subjects,
        "locc": row.locc,
        "bucket": range_,
        "words": len(text.split()),
        "chars": len(text),
        "gpt2_tokens": tokens,
        "file": file,
        "sha256_txt": _sha256(text.encode()),
        "mirror": mirror.url,
        "mirror_file": path,
    }


def _journal(path: Path, plan: Plan) -> dict[int, dict[str, Any]]:
    """The journal's entries by number, without an incomplete last line and without books whose text is missing."""
    if not path.exists():
        files.write(path, _line(dataclasses.asdict(plan)))
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    entries = _entries(path, whole, plan)
    kept_entries = [entry for entry in entries if "skipped" in entry or (path.parent / entry["file"]).is_file()]
    if whole != raw or kept_entries != entries:
        files.write(path, b"".join(_line(entry) for entry in (dataclasses.asdict(plan), *kept_entries)))
    return {entry["gutenberg_id"]: entry for entry in kept_entries}


def _entries(path: Path, whole: bytes, plan: Plan) -> list[dict[str, Any]]:
    """The entries in the whole lines of a journal, which must be that of a plan."""
    try:
        stored_plan, *entries = seals.lines(whole.decode(), required=True)
        if stored_plan != dataclasses.asdict(plan):
            raise UserError(
                f"{path.parent} holds a build from another catalogue, PG-19 list or tokenizer: give another --out, or "
                f"delete {path} to start again."
            )
        return entries
    except (ValueError, KeyError, TypeError, seals.Damaged) as error:
        raise UserError(f"{path} is no journal of a build ({error}): delete it to start again.") from None


def _numbers(path: Path) -> tuple[set[int], str]:
    """The first column of a CSV without header, and its sha256."""
    text, sha256 = read(path)
    numbers = set()
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for row in reader:
            numbers.add(int(row[0]))
    except (csv.Error, ValueError, IndexError):
        raise UserError(f"Line {reader.line_num} of {path} begins with no number of a book: give PG-19's.") from None
    if not numbers:
        raise UserError(f"{path} lists no books: give PG-19's metadata.csv.")
    return numbers, sha256


def _digest_of(books: list[dict[str, Any]]) -> str:
    return _sha256("\n".join(sorted(f"{book['id']} {book['sha256_txt']}" for book in books)).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
