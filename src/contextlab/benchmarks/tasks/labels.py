"""In-context classification with two columns of a table of the user's."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import pydantic

from contextlab.benchmarks.data import named_files, tables
from contextlab.benchmarks.data.labelled import labelled
from contextlab.benchmarks.data.named_files import NamedFiles
from contextlab.benchmarks.examples import Block, Labelled, Scoring, Template
from contextlab.benchmarks.prompts import PLACES, formatted
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.own import OwnFiles, count_of, own_dataset, sample_of, text_or_file
from contextlab.config import Config
from contextlab.errors import UserError, check_known

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.demonstrations import IclProtocol

Row = tuple[str, str]
"""A text and its label."""

PROMPT = r"{text}\nLabel: {label}"
SAMPLE, SAMPLE_LABELS = "sst2", ("negative", "positive")
TOGETHER = 25
PARTS = 5
"""A file is divided into so many blocks or more."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LabelsConfig(Config):
    """What is classified, after which demonstrations.

    Attributes:
        path: table of texts with labels (jsonl, json, csv, tsv, parquet, also packed as .gz or .xz), folder of such
            tables, or hub:NAME; without it the generated sample.
        train: table that demonstrations are drawn from; when "", they are other rows of the same table.
        text: column of the texts.
        label: column of the labels.
        k: number of demonstrations.
        n: number of texts that are classified after the same demonstrations; 25, or a fifth of a small file, when null.
        prompt: text or file with {text} and {label}, in which `\\n` is a line end.
        scoring: by the likelihood of the `label` alone, of the whole filled `template`, or by writing one token
            (`greedy`).
        choose: demonstrations are drawn at `random`, or are the `topk` most similar texts of every text.
    """

    path: str = ""
    train: str = ""
    text: str = "text"
    label: str = "label"
    k: Annotated[int, pydantic.Field(ge=0)] = 20
    n: pydantic.PositiveInt | None = None
    prompt: str = PROMPT
    scoring: Scoring = "label"
    choose: Literal["random", "topk"] = "random"


class Labels(OwnFiles):
    """What is the label of a text, after demonstrations from a file of yours?"""

    name: ClassVar[str] = "labels"
    Config = LabelsConfig
    config: LabelsConfig
    forms = tables.FORMS
    named: ClassVar[tuple[str, ...]] = ("path", "train", "prompt")

    def load(self, split: str, data: Path | None) -> Dataset:
        """Blocks of n texts in a fixed order; every text is in one block.

        Raises:
            UserError: when there is no file, a row of it cannot be used, or too few are left as demonstrations.
        """
        self.check_split(split)
        blocks = tuple(self._blocks())
        if not self.config.path:
            return sample_of(blocks)
        digests = [named_files.digest(path) for files in self._files() for path in files.files.values()]
        sha256 = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
        about = f"{count_of(sum(len(block.items) for block in blocks), 'text')} with {len(self.labels)} labels"
        left_out = [name for files in self._files() for name in files.left_out]
        return own_dataset(blocks, self.config.path, sha256, about, left_out)

    def protocol(self, split: str, context: Control = "own") -> IclProtocol:
        """The protocol with the labels of the file.

        Raises:
            UserError: for a prompt without text or label.
        """
        from contextlab.benchmarks.protocols.demonstrations import Draws, IclProtocol

        self.check_split(split)
        settings = self.config
        form = text_or_file(settings.prompt, "prompt")
        places = PLACES.findall(form)
        check_known("placeholder of a prompt", places, ("text", "label"))
        if sorted(places) != ["label", "text"]:
            raise UserError("A prompt of labels has {text} and {label} once each: write it so.")
        if settings.scoring != "template" and not form.endswith("{label}"):
            raise UserError("The prompt does not end with the label: move it there, or choose scoring=template.")
        form = formatted(form, {"text": "text", "label": "label"})
        template = Template(form, tuple((label,) for label in self.labels), "\n\n", settings.scoring)
        return IclProtocol(template, Draws(settings.k, 0, settings.choose), self.options(context))

    @functools.cached_property
    def labels(self) -> list[str]:
        """All labels, sorted."""
        return sorted({label for rows in self.rows for _, label in rows})

    @functools.cached_property
    def rows(self) -> list[list[Row]]:
        """The rows to classify, and where another table is named, those of the demonstrations.

        Raises:
            UserError: when a row lacks a text or a label, or there is only one label.
        """
        if not self.config.path:
            return [[(text, SAMPLE_LABELS[label]) for part in labelled(SAMPLE) for label, text in part]]
        files = [named.files.values() for named in self._files()]
        of_tables = [[self._row(row) for path in paths for row in tables.rows(path)] for paths in files]
        labels = {label for rows in of_tables for _, label in rows}
        if len(labels) < 2:
            raise UserError(f"{self.config.path} holds {count_of(len(labels), 'label')}: classes need two or more.")
        return of_tables

    def _files(self) -> list[NamedFiles]:
        return [self.files(place) for place in (self.config.path, self.config.train) if place]

    def _row(self, row: tables.OwnRow) -> Row:
        for column, setting in ((self.config.text, "text"), (self.config.label, "label")):
            if column not in row.values:
                raise tables.without_column(column, row, f"{setting}=NAME")
        return row.text(self.config.text).strip(), row.text(self.config.label).strip()

    def _blocks(self) -> Iterator[Block]:
        settings, number = self.config, {label: place for place, label in enumerate(self.labels)}
        texts = [
            [Labelled(f"{part}/{n}", text, number[label]) for n, (text, label) in enumerate(rows, start=1)]
            for part, rows in zip(("line", "train"), self.rows, strict=False)
        ]
        tested, others = texts[0], texts[1:]
        size = settings.n or (TOGETHER if others else min(TOGETHER, max(1, len(tested) // PARTS)))
        draw = random.Random(0).random
        mixed = sorted(tested, key=lambda _: draw())
        for start in range(0, len(mixed), size):
            items = tuple(mixed[start : start + size])
            own = {item.text for item in items}
            train = tuple(others[0]) if others else tuple(item for item in tested if item.text not in own)
            texts_left = sum(item.text not in own for item in train)
            if texts_left < settings.k:
                raise UserError(
                    f"{texts_left} texts are left as demonstrations beside {len(items)} that are classified together: "
                    f"lower k={settings.k}{' or n' if len(items) > 1 else ''}."
                )
            yield Block(f"block {start // size + 1}", items, train)
