"""The classification sets with many labels of HELMET's in-context learning (Yen et al. 2024), in their own layouts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contextlab.benchmarks.data import icl_sets, proofs, tables
from contextlab.benchmarks.data.labelled import many_labelled
from contextlab.benchmarks.data.sources import field, json_file, locate
from contextlab.benchmarks.task import Source
from contextlab.benchmarks.tasks.fewshot import rows
from contextlab.errors import UserError

Row = tuple[str, str]
"""A text and the name of its label."""
Parts = tuple[list[Row], list[Row]]
"""Rows to draw demonstrations from, and rows to classify."""

CLINC_PARTS = (("train", "oos_train"), ("val", "oos_val"))
NLU_TEST = "10"
"""The fold of cross-validation that is classified."""


@dataclasses.dataclass(frozen=True)
class LabelSet:
    """A data set.

    Attributes:
        title: its name.
        labels: the number of its labels.
        dataset: its entry in the catalogue.
        folder: of its files, in the data folder.
        files: that are read.
        verified_note: the note on its verified part.
        parts: reads the files.
    """

    title: str
    labels: int
    dataset: str
    folder: str
    files: tuple[str, ...]
    verified_note: str
    parts: Callable[[Sequence[Path]], Parts]


@dataclasses.dataclass(frozen=True)
class LabelTexts:
    """A loaded set, with its source."""

    train: list[Row]
    tested: list[Row]
    source: Source
    sha256: str
    note: str


def load(name: str, data: Path | None) -> LabelTexts:
    """The texts of a set; the digest covers all files that were read.

    Raises:
        UserError: when a file is missing or broken, or a label has no demonstration.
    """
    label_set = SETS[name]
    locations = [locate(label_set.folder, file, data) for file in label_set.files]
    paths = [location.path for location in locations if location.path is not None]
    if len(paths) < len(locations):
        return _sample(label_set)
    train, tested = label_set.parts(paths)
    unknown = {label for _, label in tested} - {label for _, label in train}
    if unknown or not tested:
        what = f"no demonstration of '{min(unknown)}'" if unknown else "no text to classify"
        raise UserError(f"{paths[0]} holds {what}: replace the file with an intact copy.")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    sha256 = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return LabelTexts(train, tested, locations[0].source, sha256, _note(label_set, paths, len(train)))


def _note(label_set: LabelSet, paths: Sequence[Path], texts: int) -> str:
    if all(proofs.published(label_set.dataset, path) for path in paths):
        return f"real: {label_set.title}"
    items = [proofs.file_item(file, path) for file, path in zip(label_set.files, paths, strict=True)]
    # The files of TREC are also those of `icl`.
    if proofs.verified(label_set.folder, items):
        return label_set.verified_note
    return proofs.unverified(label_set.title, texts, "training text")


def _sample(label_set: LabelSet) -> LabelTexts:
    train, tested = many_labelled()
    digest = hashlib.sha256(repr((train, tested)).encode()).hexdigest()
    return LabelTexts(train, tested, "sample", digest, f"generated sample, not {label_set.title}")


def _trec(paths: Sequence[Path]) -> Parts:
    names = icl_sets.SETS["trec"].about.split(", ")
    train, tested = (
        [(text, names[label]) for label, text in rows(path, icl_sets.lines, len(names), "latin-1")[0]] for path in paths
    )
    return train, tested


def _banking77(paths: Sequence[Path]) -> Parts:
    train, tested = ([(row.text("text").strip(), row.text("category")) for row in tables.rows(path)] for path in paths)
    return train, tested


def _clinc150(paths: Sequence[Path]) -> Parts:
    (path,) = paths
    content, _ = json_file(path)
    train, tested = ([row for part in parts for row in _pairs(content, part, path)] for parts in CLINC_PARTS)
    return train, tested


def _pairs(content: Any, part: str, path: Path) -> Iterator[Row]:
    for number, pair in enumerate(field(content, part, list, str(path)), start=1):
        text, label = pair if isinstance(pair, list) and len(pair) == 2 else (None, None)
        where, record = f"Item {number} in '{part}' of {path}", {"text": text, "label": label}
        yield field(record, "text", str, where), field(record, "label", str, where)


def _nlu(paths: Sequence[Path]) -> Parts:
    (path,) = paths
    parts: Parts = ([], [])
    for row in tables.rows(path):
        parts[row.text("fold") == NLU_TEST].append((row.text("text").strip(), row.text("intent")))
    return parts


SETS = {
    "trec_coarse": LabelSet(
        "TREC",
        6,
        "sent-conv-torch",
        "icl",
        ("sent-conv-torch/TREC.train.all", "sent-conv-torch/TREC.test.all"),
        "real: every second line of TREC",
        _trec,
    ),
    "banking77": LabelSet(
        "BANKING77",
        77,
        "banking77",
        "banking77",
        ("train.csv", "test.csv"),
        "real: every second line of BANKING77",
        _banking77,
    ),
    "clinc150": LabelSet(
        "CLINC150",
        151,
        "clinc150",
        "clinc150",
        ("data_full.json",),
        "real: every second text of CLINC150",
        _clinc150,
    ),
    "nlu": LabelSet(
        "NLU Evaluation Data",
        64,
        "nlu_evaluation",
        "nlu_evaluation",
        ("utterances.csv",),
        "re-laid: every second text of the test sets of NLU Evaluation Data, in one table",
        _nlu,
    ),
}
