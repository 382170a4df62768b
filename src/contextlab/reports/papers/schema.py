"""The file of a paper: published numbers as they are printed, corrections, and recipes.

A row is named by its keys, joined with ", ". A cell is the printed text of a number: a standard deviation follows in
brackets, "-" is no number.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from contextlab.errors import UserError, unknown

ABSENT = "-"
TEXT = "text"
"""Unit of a column whose cells are words, as those of settings and prompts."""
PRINTED = re.compile(r"-|\d+(\.\d+)?(E[+-]\d+)?\+?( \(\d+(\.\d+)?\))?")

Positive = Annotated[int, Field(gt=0)]
PaperText = Annotated[str, Field(min_length=1)]


def _printed(cell: str) -> str:
    if not PRINTED.fullmatch(cell):
        raise ValueError(f"'{cell}' is no number as a paper prints it")
    return cell


PrintedCell = Annotated[str, pydantic.AfterValidator(_printed)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class PaperColumn(_Part):
    """A column of a published table.

    Attributes:
        name: unique in the table.
        unit: of its numbers.
    """

    name: PaperText
    unit: PaperText


class Correction(_Part):
    """A printed number that is wrong.

    Attributes:
        row: of the table.
        column: of the table.
        printed: the cell.
        corrected: what should stand there, in this project's units.
        reason: why.
    """

    row: PaperText
    column: PaperText
    printed: PrintedCell
    corrected: PaperText
    reason: PaperText


class PaperRun(_Part):
    """Methods on one task, and which of their results stand beside which published numbers.

    Attributes:
        methods: as in `contextlab bench --method`.
        rows: the row of the table that each method stands for.
        task: as in `contextlab bench --task`.
        limit: the most examples; without it all.
        tokens: that a method reads of one example, its questions included; an estimate for plans.
        read: by column, the name of a metric or of one of `readings.COSTS`.
    """

    methods: Annotated[list[PaperText], Field(min_length=1)]
    rows: list[PaperText]
    task: PaperText
    limit: Positive | None = None
    tokens: Positive
    read: Annotated[dict[str, PaperText], Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _same_length(self) -> PaperRun:
        if len(self.methods) != len(self.rows):
            raise ValueError(f"{len(self.methods)} methods stand for {len(self.rows)} rows")
        return self


class Embedded(_Part):
    """A recipe for the embedded model, in minutes on two cores.

    Attributes:
        runs: to be made.
        differs: sentences on what differs from the paper beyond model, data, size and training.
    """

    runs: Annotated[list[PaperRun], Field(min_length=1)]
    differs: list[PaperText]


class Stated(_Part):
    """What this package states itself where a paper has a setting, a size of data or a prompt.

    Attributes:
        column: of the table.
        of: by row, what is read, in the words of `stated.value`.
    """

    column: PaperText
    of: Annotated[dict[str, PaperText], Field(min_length=1)]


class PaperScale(_Part):
    """A recipe with the paper's models and data.

    Attributes:
        backbone: id on the hub; None where it was not published.
        missing: what no machine can have.
        tokens: that one method reads in the whole evaluation; an estimate.
        context: the most tokens that attention reaches in it.
        runs: those that can be made where backbone and data are there.
    """

    backbone: PaperText | None = None
    missing: PaperText | None = None
    tokens: Positive
    context: Positive
    runs: list[PaperRun] = []


class PaperEntry(_Part):
    """A table or figure.

    Attributes:
        name: as in `table7`, `figure4`.
        label: as in the paper.
        section: where it is discussed.
        about: what it shows.
        keys: names of the texts that name a row.
        columns: of numbers; none where the values of a figure are not printed.
        rows: keys and numbers of every row.
        baselines: rows that the rows below them are compared with.
        average: column that is the mean of the columns before it.
        says: what the paper says of a figure without printed values.
        corrections: of wrong numbers.
        data: of the paper.
        size: number and length of its examples, or its machine.
        remarks: on the published numbers.
        embedded: recipe for the embedded model.
        stated: what stands here without a run.
        not_here: why there is neither.
        paper: recipe with the paper's models; None where nothing is run.
    """

    name: Annotated[str, Field(pattern=r"^(table|figure)\d+$")]
    label: PaperText
    section: PaperText
    about: PaperText
    keys: list[PaperText]
    columns: list[PaperColumn]
    rows: list[list[str]]
    baselines: list[PaperText] = []
    average: PaperText | None = None
    says: list[PaperText] = []
    corrections: list[Correction] = []
    data: PaperText
    size: PaperText
    remarks: list[PaperText] = []
    embedded: Embedded | None = None
    stated: list[Stated] = []
    not_here: PaperText | None = None
    paper: PaperScale | None = None

    @property
    def runs_of_paper(self) -> list[PaperRun]:
        """The runs with the paper's models."""
        return self.paper.runs if self.paper else []

    @property
    def has_recipe(self) -> bool:
        """Whether something of it is measured or stated here."""
        return self.embedded is not None or bool(self.stated)

    def published(self) -> dict[str, dict[str, str]]:
        """Printed cells by row and column."""
        names = [column.name for column in self.columns]
        split = len(self.keys)
        return {", ".join(row[:split]): dict(zip(names, row[split:], strict=True)) for row in self.rows}

    def unit(self, column: str) -> str:
        """The unit of a column; empty for one that the paper does not have, whose name has its unit."""
        return next((printed.unit for printed in self.columns if printed.name == column), "")

    def baseline(self, row: str) -> str | None:
        """The row that a row is compared with: the last baseline above it."""
        above: str | None = None
        for name in self.published():
            above = name if name in self.baselines else above
            if name == row:
                return above if above != row else None
        return None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> PaperEntry:
        for fault in _faults(self):
            raise ValueError(fault)
        return self


class PaperModel(_Part):
    """A paper's model.

    Attributes:
        about: its name and size.
        trained: on how many tokens.
        missing: what of it was never published.
        parameters: of one forward pass.
        layers: of the backbone.
        width: of the backbone.
    """

    about: PaperText
    trained: PaperText
    missing: PaperText | None = None
    parameters: Positive
    layers: Positive
    width: Positive


class Paper(_Part):
    """A paper with its tables and figures."""

    name: PaperText
    title: PaperText
    authors: PaperText
    venue: PaperText
    arxiv: Annotated[str, Field(pattern=r"^\d{4}\.\d{5}$")]
    model: PaperModel
    entry: Annotated[list[PaperEntry], Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _distinct(self) -> Paper:
        names = [entry.name for entry in self.entry]
        if len(set(names)) < len(names):
            raise ValueError("two entries have one name")
        for entry in self.entry:
            scale = entry.paper
            if scale and not ((scale.runs and scale.backbone) or scale.missing or self.model.missing):
                raise ValueError(f"{entry.name}: at the paper's scale it needs a backbone and runs, or what is missing")
        return self


def number(cell: str) -> float | None:
    """The number of a printed cell, without its standard deviation."""
    first = cell.partition(" ")[0].removesuffix("+")
    return None if first == ABSENT else float(first)


def _faults(entry: PaperEntry) -> Iterator[str]:
    """Contradictions within an entry, as sentences."""
    wide = len(entry.keys) + len(entry.columns)
    for texts in entry.rows:
        if len(texts) != wide:
            yield f"{entry.name}: row {texts[:1]} has {len(texts)} cells instead of {wide}"
            return
    cells = entry.published()
    if len(cells) < len(entry.rows):
        yield f"{entry.name}: two rows have equal keys"
    words = {column.name for column in entry.columns if column.unit == TEXT}
    for row, values in cells.items():
        numbers = (text for name, text in values.items() if name not in words)
        yield from (f"{entry.name}: {row}: {text} is no number" for text in numbers if not _is_printed(text))
    yield from (f"{entry.name}: no row is called {name}" for name in entry.baselines if name not in cells)
    for correction in entry.corrections:
        if cells.get(correction.row, {}).get(correction.column) != correction.printed:
            yield f"{entry.name}: {correction.row} does not have {correction.printed} as {correction.column}"
    if entry.average is not None and entry.average not in {column.name for column in entry.columns}:
        yield f"{entry.name}: no column is called {entry.average}"
    if entry.has_recipe == (entry.not_here is not None):
        yield f"{entry.name}: it needs either a recipe or a reason why there is none"
    if entry.paper is None and entry.embedded is not None:
        yield f"{entry.name}: what is run has a recipe with the paper's models, too"
    if not entry.rows and not entry.says:
        yield f"{entry.name}: it has neither numbers nor what the paper says"
    for run in [*(entry.embedded.runs if entry.embedded else []), *entry.runs_of_paper]:
        if cells:
            yield from _strangers(entry, run.rows, run.read)
    for stated in entry.stated:
        yield from _strangers(entry, stated.of, [stated.column])


def _strangers(entry: PaperEntry, rows: Iterable[str], names: Iterable[str]) -> Iterator[str]:
    """Rows and columns that a table does not have, as sentences."""
    cells, columns = entry.published(), {column.name for column in entry.columns}
    yield from (f"{entry.name}: no row is called {row}" for row in rows if row not in cells)
    yield from (f"{entry.name}: no column is called {name}" for name in names if name not in columns)


def _is_printed(text: str) -> bool:
    return PRINTED.fullmatch(text) is not None


FOLDER = Path(__file__).parent


def read(path: Path) -> Paper:
    """The paper of a file.

    Raises:
        UserError: when the file cannot be read, is no TOML, or does not hold a paper.
    """
    try:
        return Paper.model_validate(tomllib.loads(path.read_text("utf-8")))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except (OSError, ValueError) as error:
        reason = str(error)
    raise UserError(f"{path} does not hold a paper ({reason}): correct it, or install the package again.")


@cache
def papers() -> dict[str, Paper]:
    """The papers by name, in the order of their names.

    Raises:
        UserError: when a file is broken.
    """
    read_all = [read(path) for path in sorted(FOLDER.glob("*.toml"))]
    return {paper.name: paper for paper in read_all}


def find(name: str) -> list[tuple[Paper, PaperEntry]]:
    """The entries that a name stands for: all of a paper, or one, as in `longmem/table7`.

    Raises:
        UserError: for an unknown name, with the most similar one.
    """
    entries = {f"{paper.name}/{entry.name}": (paper, entry) for paper in papers().values() for entry in paper.entry}
    if name in papers():
        return [pair for key, pair in entries.items() if key.startswith(f"{name}/")]
    if name in entries:
        return [entries[name]]
    paper, slash, entry = name.partition("/")
    if slash and paper in papers():
        # All entries of a paper are few enough to be listed.
        raise unknown(f"entry of {paper}", entry, [listed.name for listed in papers()[paper].entry])
    raise unknown("paper or entry", name, entries if slash else papers())
