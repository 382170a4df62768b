from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from contextlab.benchmarks.data import generated
from contextlab.benchmarks.examples import Question, Reading
from contextlab.errors import UserError

SETTINGS = {"task": "toy", "split": "512", "seed": 0}


class Toy(generated.ReadingGenerator):
    count = 0

    def readings(self) -> Iterator[Reading]:
        type(self).count += 1
        question = Question("1/1", "Who?", ("Ann", "Bo"), ("Ann", "Cy"), {"hops": 2}, 3, "It was", 8)
        yield Reading("1", "book", "A text.\nIts end.", (question,), (Question("shown", "Where?", ("There",)),))
        yield Reading("2", "other", "…", ())


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    Toy.count = 0


def test_readings_are_made_once_and_read_back_as_they_were() -> None:
    first, second = (generated.dataset(SETTINGS, Toy(), "a note") for _ in range(2))
    assert Toy.count == 1
    assert first == second
    assert first.examples == tuple(Toy().readings())
    (stored,) = generated.examined()
    assert (stored.sha256, stored.problem) == (first.sha256, "")
    assert SETTINGS.items() <= stored.settings.items()


def test_other_settings_are_another_file() -> None:
    for seed in (0, 1):
        generated.dataset({**SETTINGS, "seed": seed}, Toy(), "")
    assert Toy.count == 2
    assert len(generated.examined()) == 2


def test_equal_readings_have_equal_bytes() -> None:
    generated.dataset(SETTINGS, Toy(), "")
    (path,) = generated.folder().iterdir()
    content = path.read_bytes()
    path.unlink()
    generated.dataset(SETTINGS, Toy(), "")
    assert path.read_bytes() == content


def test_a_changed_file_is_refused_and_named() -> None:
    generated.dataset(SETTINGS, Toy(), "")
    (path,) = generated.folder().iterdir()
    head, first, second = gzip.decompress(path.read_bytes()).decode().split("\n")
    changed = json.loads(first) | {"context": "Another text."}
    path.write_bytes(gzip.compress("\n".join([head, json.dumps(changed), second]).encode()))
    with pytest.raises(UserError, match="other contents than its digest says: delete the file, and it is made again"):
        generated.dataset(SETTINGS, Toy(), "")
    assert "other contents" in generated.examined()[0].problem


@pytest.mark.parametrize("content", ["", "no pack", "{}", "no JSON"])
def test_a_damaged_file_is_refused_and_named(content: str) -> None:
    generated.dataset(SETTINGS, Toy(), "")
    (path,) = generated.folder().iterdir()
    path.write_bytes(content.encode() if content == "no pack" else gzip.compress(content.encode()))
    with pytest.raises(UserError, match=r"cannot be read .*: delete the file, and it is made again"):
        generated.dataset(SETTINGS, Toy(), "")
    assert "cannot be read" in generated.examined()[0].problem
