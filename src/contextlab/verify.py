"""Whether files are what was written: every seal, digest and schema below a folder.

What a folder holds is seen by the names in it. Whatever is read elsewhere passes the same doors.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contextlab import cards, files, seals, tensors, trained
from contextlab.backbone import embedded
from contextlab.benchmarks.data import fetch, pg22_build
from contextlab.errors import UserError
from contextlab.harness import store
from contextlab.paths import cache_dir
from contextlab.training import best, checkpoint, corpus, course, records, run, teacher

RUN_FILES = (store.MANIFEST, store.SUMMARY, store.LINES, store.PACKED)
TENSORS = ".safetensors"
HEX = set("0123456789abcdef")


@dataclasses.dataclass(frozen=True)
class Checked:
    """Something that was checked.

    Attributes:
        kind: what it is, in one or two words.
        path: its file or folder.
        wrong: a sentence that says what is wrong and what to do; None where nothing is.
    """

    kind: str
    path: Path
    wrong: str | None

    @property
    def unfinished(self) -> bool:
        """Whether it is a run that has begun and has no result yet."""
        return self.kind == "run" and self.wrong is None and not (self.path / store.SUMMARY).exists()


def own() -> list[Path]:
    """The package's weights, the folders that `CONTEXTLAB_WEIGHTS` names, and the cache, those that exist."""
    named = [Path(folder).expanduser() for folder in os.environ.get(trained.FOLDERS, "").split(os.pathsep) if folder]
    return [folder for folder in (trained.SHIPPED, *named, cache_dir()) if folder.exists()]


def below(paths: Iterable[Path]) -> Iterator[Checked]:
    """Check everything that is known at some paths, or in the folders of weights of some names.

    Raises:
        UserError: when a path does not exist and is no name of weights, or holds nothing that is known.
    """
    for named in paths:
        path = named
        if not named.exists():
            weights = trained.find(str(named))
            if weights is None:
                raise UserError(f"There is no {named}: name a file or folder that exists, or weights by their name.")
            path = weights.file.parent
        count = 0
        for checked in _walk(path) if path.is_dir() else _file(path):
            count += 1
            yield checked
        if not count and path not in own():
            raise UserError(f"{path} holds nothing that can be verified: name a folder of runs, weights or trainings.")


def _walk(top: Path) -> Iterator[Checked]:
    """Every folder below one, itself included, also through symbolic links."""
    for directory, folders, names in files.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith(files.PARTIAL))
        folder = Path(directory)
        for kind, belongs, check in KINDS:
            if belongs(folder, set(names)):
                yield _checked(kind, folder, check)
        if checkpoint.NAME.fullmatch(folder.name):
            folders.clear()
            continue
        for name in sorted(names):
            if name.endswith(TENSORS) and not _covered(folder, name):
                yield _checked("tensors", folder / name, _tensors)


def _file(path: Path) -> Iterator[Checked]:
    """The folder that a file belongs to, or its own tensors."""
    folder = path.parent
    kinds = [(kind, check) for kind, belongs, check in KINDS if belongs(folder, {path.name})]
    for kind, check in kinds:
        yield _checked(kind, folder, check)
    if not kinds:
        yield _checked("tensors", path, _tensors)


def _checked(kind: str, path: Path, check: Callable[[Path], None]) -> Checked:
    try:
        check(path)
    except UserError as error:
        return Checked(kind, path, str(error))
    except seals.Damaged as damaged:
        return Checked(kind, path, f"{path} is not what was written ({damaged}): delete it, it is made again.")
    except OSError as error:
        return Checked(kind, path, f"{path} cannot be read ({files.reason(error)}): check its permissions.")
    return Checked(kind, path, None)


def _run(folder: Path) -> None:
    """Manifest, result and lines, which must be those of one run."""
    if not (folder / store.MANIFEST).exists():
        raise UserError(f"{folder / store.MANIFEST} is missing: put it back, or delete the folder and run again.")
    manifest = store.read_manifest(folder)
    result = store.read_result(folder) if (folder / store.SUMMARY).exists() else None
    if manifest is not None and result is not None and manifest.run_id != result.run_id:
        raise UserError(f"{folder / store.SUMMARY} is that of another run: put the intact file back.")
    examples = 0 if result is None else result.data.examples
    if len(store.lines(folder, examples)) < examples:
        raise UserError(f"{folder / store.LINES} is missing: put it back, or run its benchmark again.")
    _once(folder)


def _once(folder: Path) -> None:
    """Refuse lines that are in two files, and a line that is there twice."""
    if (folder / store.LINES).exists() and (folder / store.PACKED).exists():
        raise UserError(f"{folder} has its lines twice: delete {store.PACKED}, which is older than {store.LINES}.")
    lines = (store.content(folder) or b"").split(b"\n")[:-1]
    if len(set(lines)) < len(lines):
        doubled = next(number for number, line in enumerate(lines) if line in lines[:number])
        raise UserError(f"Line {doubled + 1} of {store.lines_file(folder)} repeats an earlier one: delete it.")


def _weights(folder: Path) -> None:
    path = folder / cards.FILE
    if not path.is_file():
        raise UserError(f"{path} is missing, and {cards.CARD} is there: put the file back, or train again.")
    card = cards.beside(path)
    tensors.read(path, sealed=() if card else ("contextlab weights",))
    if card is not None and card.weights.bytes != path.stat().st_size:
        raise UserError(f"{folder / cards.CARD} names another size: put the intact file back, or train again.")


def _training(folder: Path) -> None:
    about = records.read(folder / run.RUN)
    if about is None:
        raise UserError(f"{folder / run.RUN} is missing: put it back, or choose another --out.")
    if (folder / run.CURVE).exists():
        records.curve(folder / run.CURVE)
    for path in checkpoint.stored(folder):
        extra = checkpoint.read(path)
        if extra.course != course.digest(about):
            raise UserError(f"{path} belongs to another run than {run.RUN}: move it away.")
        records.check_curve(folder / run.CURVE, extra.curve, extra.curve_sha256)
    card = records.read(folder / cards.CARD)
    if card is not None:
        cards.read(folder / cards.CARD)
        if best.is_lost(folder, card):
            raise UserError(
                f"{folder / best.FILE} is not that of {cards.CARD}: put the intact file back, or train again."
            )
    if card is not None and _trained(card) != _trained(about):
        raise UserError(f"{folder / cards.CARD} is the card of another run: put the intact file back, or train again.")
    if card is not None and _at_end(folder, card) and not records.ended(folder / run.CURVE, card):
        raise UserError(f"{folder / run.CURVE} lacks its last line: put it back, or run the same training again.")


def _at_end(folder: Path, card: Mapping[str, Any]) -> bool:
    """Whether the last checkpoint is that of the card: a run that goes on has cut its curve there."""
    checkpoints = checkpoint.stored(folder)
    return bool(checkpoints) and checkpoint.tokens_of(checkpoints[0]) == records.last_tokens(card)


def _trained(about: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The method and the settings that a run and its card must have in common."""
    settings = about.get("settings")
    return about.get("method"), {**settings, "weights": ""} if isinstance(settings, dict) else {}


def _checkpoint(folder: Path) -> None:
    checkpoint.read(folder)
    for path in sorted(folder.glob(f"*{TENSORS}")):
        tensors.read(path)


def _corpus(folder: Path) -> None:
    corpus.stored(folder, folder.name, {})


def _converted(folder: Path) -> None:
    if changed := embedded.changed_files(folder):
        raise seals.Damaged(f"{' and '.join(changed)} changed since")


def _objects(folder: Path) -> None:
    """Files that are named by their sha256."""
    for path in sorted(folder.iterdir()):
        if len(path.name) == 64 and HEX.issuperset(path.name) and files.sha256(path) != path.name:
            raise UserError(f"{path} is not the file that was fetched: delete it, and fetch its data set again.")


def _sums(folder: Path) -> None:
    for name, sha256 in fetch.read_sums(folder / fetch.SUMS).items():
        path = folder / name
        if not path.is_file() or files.sha256(path) != sha256:
            raise UserError(f"{path} is not the file that {fetch.SUMS} lists: fetch its data set again.")


def _built(folder: Path) -> None:
    for sentence in pg22_build.differences(folder):
        raise UserError(sentence)


def _tokenizer(folder: Path) -> None:
    text = seals.text(folder / "tokenizer.json")
    if hashlib.sha256(text.encode()).hexdigest()[:16] != folder.name:
        raise seals.Damaged("tokenizer.json has another sha256")


def _teacher(folder: Path) -> None:
    for path in sorted(folder.glob(f"*{TENSORS}")):
        if teacher.block(path) is None:
            raise seals.Damaged(f"{path.name} is not whole")


def _tensors(path: Path) -> None:
    tensors.read(path, sealed=("contextlab weights", "contextlab state"))


def _inside(name: str) -> Callable[[Path, set[str]], bool]:
    return lambda folder, _: folder.parent.name == name


KINDS: tuple[tuple[str, Callable[[Path, set[str]], bool], Callable[[Path], None]], ...] = (
    ("data set", lambda _, names: pg22_build.JOURNAL in names or "books.jsonl" in names, _built),
    ("run", lambda folder, names: bool(names & {*RUN_FILES}) and not (folder / pg22_build.JOURNAL).exists(), _run),
    ("weights", lambda _, names: bool(names & {cards.FILE, cards.CARD}), _weights),
    (
        "training",
        lambda folder, names: bool(names & {run.RUN, run.CURVE}) and not checkpoint.NAME.fullmatch(folder.name),
        _training,
    ),
    ("checkpoint", lambda folder, _: bool(checkpoint.NAME.fullmatch(folder.name)), _checkpoint),
    ("corpus", lambda _, names: bool(names & {corpus.ABOUT, corpus.TOKENS}), _corpus),
    (
        "backbone",
        lambda folder, names: embedded.SOURCE in names or folder.name.startswith(f"{embedded.EMBEDDED}-"),
        _converted,
    ),
    ("fetched files", lambda folder, _: folder.name == "objects", _objects),
    ("data set", lambda _, names: fetch.SUMS in names, _sums),
    ("tokenizer", _inside("tokenizers"), _tokenizer),
    ("teacher", _inside("teachers"), _teacher),
)
"""What is known: its name, whether a folder with files of these names is one, and its check."""


def _covered(folder: Path, name: str) -> bool:
    """Whether a file of tensors was checked with its folder."""
    return name == cards.FILE or folder.parent.name == "teachers" or (folder / embedded.SOURCE).exists()
