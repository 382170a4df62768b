from __future__ import annotations

from pathlib import Path

import pytest

from contextlab.errors import UserError
from contextlab.sweeps.places import Place


@pytest.fixture(params=["memory://places-{name}/runs", "file://{folder}/far"])
def out(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return str(request.param).format(name=tmp_path.name, folder=tmp_path)


def write(place: Place, name: str, lines: str, summary: bool = False) -> None:
    folder = place.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "examples.jsonl").write_text(lines)
    (folder / ".lock").touch()
    if summary:
        (folder / "summary.json").write_text("{}")


def test_a_folder_comes_back_as_it_was_given(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Place.of(out)
    assert here.below("run") == []
    assert not here.take("run").exists()
    write(here, "run", "a\n")
    here.give("run")
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "other"))
    there = Place.of(out)
    assert there.below("run") == ["examples.jsonl"]
    assert (there.take("run") / "examples.jsonl").read_text() == "a\n"
    write(there, "run", "a\nb\n", summary=True)
    there.give("run")
    # The cache of the first machine is behind now, and then again ahead.
    assert (here.take("run") / "examples.jsonl").read_text() == "a\nb\n"
    assert (here.take("run") / "summary.json").exists()
    write(here, "run", "a\nb\nc\n")
    assert (here.take("run") / "examples.jsonl").read_text() == "a\nb\nc\n"


def test_what_is_removed_is_gone_there_and_here(out: str) -> None:
    place = Place.of(out)
    for name in ("shards/0-2/run", "shards/2-4/run"):
        write(place, name, "a\n")
        place.give(name)
    place.remove("shards/0-2/run")
    assert place.below("shards/0-2/run") == []
    assert (place.folder / "shards/2-4/run").exists()
    assert not (place.folder / "shards/0-2").exists()
    place.remove("shards/2-4/run")
    assert not place.folder.joinpath("shards").exists()
    place.remove("nothing")


def test_a_summary_is_given_last(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place.of(out)
    write(place, "run", "a\n", summary=True)
    (place.folder / "run" / "weights.bin").write_text("")
    paths: list[str] = []
    monkeypatch.setattr(place, "_put", lambda path, target: paths.append(path.name))
    place.give("run")
    assert sorted(paths) == ["examples.jsonl", "summary.json", "weights.bin"]
    assert paths[-1] == "summary.json"
    assert ".lock" not in paths


def test_a_file_of_a_place(out: str) -> None:
    place = Place.of(out)
    assert not place.take_file("plan.json").exists()
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "plan.json").write_text("{}")
    place.give("plan.json")
    (place.folder / "plan.json").unlink()
    assert place.take_file("plan.json").read_text() == "{}"


@pytest.mark.parametrize("address", ["nowhere://x/y", "file:///proc/nothing"])
def test_an_address_that_cannot_be_used_is_one_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"{address} cannot be used") as caught:
        copied(address)
    assert "\n" not in str(caught.value)


def copied(address: str) -> None:
    place = Place.of(address)
    write(place, "run", "a\n")
    place.give("run")
