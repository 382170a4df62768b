"""A small workshop in which every kind of file is written by the commands that write it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from contextlab import backbone as backbones
from contextlab import registry, seals
from contextlab.backbone import embedded
from contextlab.benchmarks.data import gutenberg, pg22_build
from contextlab.benchmarks.data.gutenberg import Mirror, paths
from contextlab.cli.main import main
from contextlab.harness import store
from contextlab.method import AnyMethod

TOY = Path(__file__).parent / "harness" / "toy_parts.py"
WORDS = ["the", "old", "sea", "light", "keeper", "wrote", "again", "of", "ships", "that", "never", "came", "back"]
BOOKS = {60001: 10_050, 60002: 5_100, 60003: 5_200}
METHOD = "longmem(N=32,K=8)"


def command(*words: str | Path) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in words])
    return code, out.getvalue(), errors.getvalue()


def train(root: Path, out: Path, *more: str) -> tuple[int, str, str]:
    return command(
        *("train", METHOD, "--corpus", root / "texts", "--out", out, "--backbone", "tiny-llama", "--device", "cpu"),
        *("--segment", "32", "--objective", "teacher(k=4)", "--set", "schedule=constant", "--json"),
        *(more or ("--tokens", "200")),
    )


def bench(root: Path, out: Path, method: str, backbone: str = "tiny-llama", task: str = "needle") -> str:
    """The metrics of a run, or its error."""
    where = ("--out", out, "--backbone", backbone, "--device", "cpu")
    code, text, errors = command("bench", "--method", method, "--task", task, *where, "--limit", "1", "--json")
    return json.dumps(json.loads(text)["metrics"]) if code == 0 else errors


@contextlib.contextmanager
def at(root: Path) -> Iterator[Path]:
    """With the cache of a workshop."""
    before = os.environ.get("CONTEXTLAB_CACHE")
    os.environ["CONTEXTLAB_CACHE"] = str(root / "cache")
    try:
        yield root
    finally:
        if before is None:
            del os.environ["CONTEXTLAB_CACHE"]
        else:
            os.environ["CONTEXTLAB_CACHE"] = before


def built(root: Path) -> Path:
    """Texts, a training with its caches, weights, runs, a state, a converted backbone, a data set, and a tokenizer."""
    (root / "texts").mkdir(parents=True)
    for n in range(5):
        (root / "texts" / f"{n}.txt").write_text(" ".join(WORDS[(n * i) % len(WORDS)] for i in range(60)))
    with at(root):
        assert train(root, root / "training")[0] == 0
        weights = root / "weights"
        weights.mkdir()
        for name in ("weights.safetensors", "card.json"):
            shutil.copy(root / "training" / name, weights)
        runs = ("--backbone", "tiny-llama", "--device", "cpu", "--out", root / "runs", "--limit", "4")
        methods = f"{TOY}:Counter,{TOY}:Other"
        assert command("bench", "--method", methods, "--task", f"{TOY}:Letters", *runs)[0] == 0
        store.pack(max(path for path in (root / "runs").iterdir()))
        state(root / "state.safetensors")
        _converted(root)
        _tokenizer()
    draw(root, root / "data")
    return root


def method() -> AnyMethod:
    kind = registry.method_class("sliding")
    return kind(backbones.load("tiny-llama", device="cpu"), kind.Config.parse({"N": 32}))


def state(path: Path) -> None:
    sliding = method()
    sliding.read(sliding.start(), torch.arange(50)[None])[0].save(path)


def _converted(root: Path) -> None:
    """What the conversion of the embedded backbone leaves, of a small model."""
    model = backbones.load("tiny-llama", device="cpu")
    folder = root / "cache" / "backbones" / f"{embedded.EMBEDDED}-{embedded.GGUF_SHA256[:12]}-2"
    folder.mkdir(parents=True)
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    seals.write(folder / embedded.SOURCE, {**embedded.ORIGIN, "files": embedded.digests(folder)})


def _tokenizer() -> None:
    from contextlab.integrations.lm_eval import tokenizer_folder

    tokenizer_folder("tiny-llama")


def draw(root: Path, data: Path) -> None:
    """Build PG-22 from a small mirror."""
    mirror = root / "mirror"
    if not mirror.exists():
        _mirror(mirror)
        (root / "pg19.csv").write_text("5,x\n")
    whole = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pg22_build.build(data / "pg22", Mirror(str(mirror)), root / "pg19.csv", whole)


def _mirror(root: Path) -> None:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(gutenberg.COLUMNS)
    for number, words in BOOKS.items():
        text = " ".join(WORDS[(number * i) % len(WORDS)] for i in range(words))
        path = root / paths(number)[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        start, end = "*** START OF THE PROJECT GUTENBERG EBOOK ***", "*** END OF THE PROJECT GUTENBERG EBOOK ***"
        path.write_text(f"Header\n{start}\n{text}\n{end}\n")
        writer.writerow([number, "Text", "2021-06-30", f"Book {number}", "en", "Doe, Jane", "Fiction", "PS"])
    feed = root / gutenberg.ON_MIRROR[0]
    feed.parent.mkdir(parents=True, exist_ok=True)
    feed.write_text(file.getvalue())
