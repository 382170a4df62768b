from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from toy_sweeps import COUNTER, IDS, LETTERS, OTHER, Here, assert_once, place, serial, stored, suite, swept

from contextlab import locks
from contextlab.errors import UserError
from contextlab.harness.runner import bench
from contextlab.reports.layout import TableLayout
from contextlab.reports.stored import load_results
from contextlab.reports.tables import comparison
from contextlab.sweeps import sweep
from contextlab.sweeps.places import HIDDEN, SHARDS
from contextlab.sweeps.shards import Shard
from contextlab.sweeps.status import read_plan, statuses


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PAUSE", 0.0)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.write_text("")
    monkeypatch.setenv("TOY_LOG", str(path))
    return path


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder in which nobody can write, the system's administrator included."""
    command = ["chattr", "+i", str(folder)] if os.geteuid() == 0 else ["chmod", "a-w", str(folder)]
    if not shutil.which("chattr") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot make a folder read-only here")
    try:
        yield
    finally:
        subprocess.run([command[0], {"+i": "-i", "a-w": "u+w"}[command[1]], str(folder)], check=True)


def test_a_sweep_reads_the_files_that_are_named_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not files of the same name in the folder that the command is given in."""
    for folder, text in (("texts", "a b c d e f g h " * 8), ("elsewhere/texts", "z " * 64)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.txt").write_text(text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    named = {"method": "window(N=16)", "task": f"texts(path={tmp_path / 'texts'},tokens=32)"}
    plan = swept(suite(tmp_path / "swept", **named))
    serial(suite(tmp_path / "serial", **named), tmp_path / "serial")
    assert stored(tmp_path / "swept") == stored(tmp_path / "serial")
    assert [run.run_id for run in plan.runs] == list(stored(tmp_path / "swept"))


def test_a_run_that_is_not_the_planned_one_has_failed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a b c d e f g h " * 8)
    of = suite(tmp_path / "swept", method="window(N=16)", task=f"texts(path={tmp_path / 'a.txt'},tokens=32)")
    with sweep.opened(of, lambda _: Here(), 3) as running:
        plan = running.plan()
        (tmp_path / "a.txt").write_text("h g f e d c b a " * 8)
        with pytest.raises(UserError, match="became another run than the planned one"):
            running.run(plan)


def test_a_sweep_stores_what_one_run_after_the_other_stores(tmp_path: Path) -> None:
    several = {"method": f"{COUNTER}(prior=0.5),{OTHER}", "seed": "0,1", "context": "own,none", "limit": 7}
    swept(suite(tmp_path / "swept", **several))
    serial(suite(tmp_path / "serial", **several), tmp_path / "serial")
    assert len(stored(tmp_path / "swept")) == 8
    assert stored(tmp_path / "swept") == stored(tmp_path / "serial")
    assert_once(tmp_path / "swept")
    frames = [
        comparison(load_results(tmp_path / name), TableLayout()).to_frame().sort_index() for name in ("swept", "serial")
    ]
    costs = [column for column in frames[0].columns if "second" not in str(column)]
    assert frames[0][costs].equals(frames[1][costs])


def test_what_is_stored_is_not_run_again(tmp_path: Path, log: Path) -> None:
    swept(suite(tmp_path / "runs", limit=4))
    assert sorted(log.read_text().split()) == sorted(IDS[:4])
    swept(suite(tmp_path / "runs", limit=4))
    swept(suite(tmp_path / "runs"))
    assert sorted(log.read_text().split()) == sorted(IDS)
    assert not (tmp_path / "runs" / SHARDS).exists()
    bench(COUNTER, LETTERS, backbone="tiny-llama", device="cpu", out=tmp_path / "runs")
    assert sorted(log.read_text().split()) == sorted(IDS)


def test_an_interrupted_sweep_goes_on(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = suite(tmp_path / "runs")
    with monkeypatch.context() as patch:
        patch.setenv("TOY_INTERRUPT", IDS[4])
        with pytest.raises(KeyboardInterrupt):
            swept(of)
    plan = read_plan(place(of))
    (only_status,) = statuses(place(of), plan)
    assert (only_status.state, only_status.finished) == ("begun", 4)
    swept(of)
    assert sorted(log.read_text().split()) == sorted([*IDS, IDS[4]])
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "runs") == stored(tmp_path / "serial")
    assert [status.state for status in statuses(place(of), plan)] == ["stored"]


def test_a_dead_workers_shard_is_taken_up(tmp_path: Path, log: Path) -> None:
    deaths = iter([True, False, True])
    engine = Here(dies=lambda _: next(deaths, False))
    swept(suite(tmp_path / "runs"), engine)
    assert {shard.examples for shard in engine.done} == {range(3), range(3, 6), range(6, 8)}
    assert len(engine.done) == 3
    assert sorted(log.read_text().split()) == sorted(IDS)
    assert_once(tmp_path / "runs")


def test_workers_that_always_die_end_one_run_and_not_the_others(tmp_path: Path) -> None:
    def dies(shard: Shard) -> bool:
        return shard.run.method == COUNTER

    with pytest.raises(UserError, match=r"1 of 2 runs are not stored, the others are: 3 workers ended with .*Counter"):
        swept(suite(tmp_path / "runs", method=f"{COUNTER},{OTHER}"), Here(dies=dies))
    assert [words[0]["method"] for words in stored(tmp_path / "runs").values()] == [OTHER]


@pytest.mark.parametrize("most", [3, 8])
def test_a_folder_that_cannot_be_written_loses_nothing(most: int, tmp_path: Path, log: Path) -> None:
    of = suite(tmp_path / "runs", method=f"{COUNTER},{OTHER}")
    with sweep.opened(of, lambda _: Here()) as running:
        first = running.plan().runs[0]
    log.write_text("")
    folder = tmp_path / "runs" / first.run_id
    folder.mkdir(parents=True)
    with read_only(folder), pytest.raises(UserError, match=rf"1 of 2 runs .*{first.run_id} cannot be written"):
        swept(of, most=most)
    assert len(stored(tmp_path / "runs")) == 1
    swept(of, most=most)
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "runs") == stored(tmp_path / "serial")
    # No shard runs again because its run could not be merged; `serial` ran all.
    assert len(log.read_text().split()) == 2 * 2 * len(IDS)


def test_examples_of_an_interrupted_bench_are_not_run_again(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = suite(tmp_path / "runs")
    with monkeypatch.context() as patch:
        patch.setenv("TOY_INTERRUPT", IDS[2])
        with pytest.raises(KeyboardInterrupt):
            serial(of, tmp_path / "runs")
    engine = Here()
    swept(of, engine, most=2)
    # What they owe, the measurement of their peak, is made by the ordinary runner at last.
    assert [shard.examples for shard in engine.done] == [range(2, 4), range(4, 6), range(6, 8), None]
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "runs") == stored(tmp_path / "serial")
    assert_once(tmp_path / "runs")


def test_tables_do_not_see_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = suite(tmp_path / "runs", method=f"{OTHER},{COUNTER}")
    monkeypatch.setenv("TOY_INTERRUPT", IDS[7])
    with pytest.raises(KeyboardInterrupt):
        swept(of, Here(1))
    monkeypatch.delenv("TOY_INTERRUPT")
    assert list((tmp_path / "runs" / SHARDS).glob("*/*/summary.json"))
    with pytest.raises(UserError, match="There are no results below"):
        load_results(tmp_path / "runs")


def test_two_sweeps_do_not_share_a_folder(tmp_path: Path) -> None:
    of = suite(tmp_path / "runs")
    with locks.alone(tmp_path / "runs" / HIDDEN, ""), pytest.raises(UserError, match="Another sweep runs into"):
        swept(of)


def test_runs_at_an_address_are_copied_there_and_back(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    of = suite(f"file://{tmp_path}/far", method=f"{COUNTER},{OTHER}")
    with pytest.raises(UserError, match="1 of 2 runs"):
        swept(of, Here(dies=lambda shard: shard.run.method == OTHER and shard.examples == range(6, 8)))
    shutil.rmtree(tmp_path / "cache")
    assert [status.state for status in statuses(place(of), read_plan(place(of)))] == ["stored", "waiting"]
    swept(of)
    assert len(log.read_text().split()) == 2 * len(IDS)
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "far") == stored(tmp_path / "serial")
    assert not list((tmp_path / "far").rglob("*.partial"))
    assert not (tmp_path / "far" / SHARDS).exists() or not list((tmp_path / "far" / SHARDS).rglob("*.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "windw"}, "There is no method 'windw'"),
        ({"task": ()}, "No task is named"),
        ({"seed": "one"}, "--seed of the sweep is not valid"),
        ({"out": "nowhere://x"}, "nowhere://x cannot be used"),
        ({"context": "onw"}, "did you mean 'own'"),
    ],
)
def test_a_mistake_is_one_sentence(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        swept(suite(tmp_path / "runs", **options))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()
