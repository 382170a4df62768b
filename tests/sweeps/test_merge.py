from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from toy_sweeps import COUNTER, LETTERS, TOY, place, serial, stored, suite, without_time

from contextlab.errors import UserError
from contextlab.harness import store
from contextlab.harness.runner import bench
from contextlab.sweeps.merge import merge
from contextlab.sweeps.places import SHARDS
from contextlab.sweeps.plan import SweepRun
from contextlab.sweeps.shards import Shard
from contextlab.sweeps.suite import Suite
from contextlab.sweeps.survey import survey


def planned(of: Suite) -> SweepRun:
    (run,) = survey(of, of.backbone[0]).runs
    return run


def parts(of: Suite, run: SweepRun, *bounds: int) -> list[Shard]:
    """Finished shards between these numbers of examples."""
    shards = [Shard(run, range(start, stop)) for start, stop in itertools.pairwise(bounds)]
    for shard in shards:
        examples = shard.examples
        assert examples is not None
        options: dict[str, Any] = {"backbone": run.backbone, "device": "cpu", "out": Path(of.out) / shard.store}
        bench(run.method, run.task, first=examples.start, limit=examples.stop, **options)
    return shards


@pytest.mark.parametrize("method", [COUNTER, "window(N=16)", "hso", "longmem(N=32,K=8)", f"{TOY}:HiddenLate"])
def test_merged_shards_are_the_run_at_once(method: str, tmp_path: Path) -> None:
    task = LETTERS if method == COUNTER else "sst2/n2"
    of = suite(tmp_path / "swept", method=method, task=task, limit=5)
    run = planned(of)
    assert merge(place(of), run, parts(of, run, 0, 1, 4, 5))
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "swept")[run.run_id] == stored(tmp_path / "serial")[run.run_id]


def test_a_shard_in_which_nothing_can_be_scored_is_a_part_of_its_run(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for n, words in enumerate((40, 40, 2, 2)):
        (texts / f"{n}.txt").write_text("a few words " * words)
    task = f"texts(path={texts},history=60,scored=30)"
    of = suite(tmp_path / "swept", method="window(N=16)", task=task)
    run = planned(of)
    assert merge(place(of), run, parts(of, run, 0, 2, 4))
    serial(of, tmp_path / "serial")
    result = stored(tmp_path / "swept")[run.run_id]
    assert result == stored(tmp_path / "serial")[run.run_id]
    assert store.read_result(tmp_path / "swept" / run.run_id).data.skipped == 2


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    of = suite(tmp_path, limit=6)
    run = planned(of)
    shards = parts(of, run, 0, 2, 6)
    folder = tmp_path / run.run_id
    assert merge(place(of), run, shards)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert merge(place(of), run, shards[::-1])
    assert (folder / store.LINES).read_bytes() == before[store.LINES]
    assert without_time(json.loads((folder / store.SUMMARY).read_text())) == without_time(
        json.loads(before[store.SUMMARY])
    )


def test_an_interrupted_merge_goes_on(tmp_path: Path) -> None:
    of = suite(tmp_path / "swept", limit=6)
    run = planned(of)
    shards = parts(of, run, 0, 2, 6)
    merge(place(of), run, shards)
    folder = tmp_path / "swept" / run.run_id
    (folder / store.SUMMARY).unlink()
    content = (folder / store.LINES).read_bytes()
    (folder / store.LINES).write_bytes(content[: len(content) // 2])
    assert merge(place(of), run, shards)
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "swept") == stored(tmp_path / "serial")


def test_examples_without_a_measured_peak_are_left_to_the_runner(tmp_path: Path) -> None:
    of = suite(tmp_path / "swept", method="window(N=16)", task="sst2/n2", limit=4)
    run = planned(of)
    parts(of, run, 0, 2)
    first = tmp_path / "swept" / SHARDS / "0-2" / run.run_id
    first.rename(tmp_path / "swept" / run.run_id)
    (tmp_path / "swept" / run.run_id / store.SUMMARY).unlink()
    shards = parts(of, run, 2, 4)
    assert not merge(place(of), run, shards)
    assert len(store.lines(tmp_path / "swept" / run.run_id)) == 4
    serial(of, tmp_path / "swept")
    serial(of, tmp_path / "serial")
    assert stored(tmp_path / "swept")[run.run_id] == stored(tmp_path / "serial")[run.run_id]


def test_a_broken_shard_is_named(tmp_path: Path) -> None:
    of = suite(tmp_path)
    run = planned(of)
    shards = parts(of, run, 0, 4, 8)
    path = tmp_path / shards[1].folder / store.LINES
    path.write_text(path.read_text().replace('"correct": true', '"correct": false', 1))
    with pytest.raises(UserError, match=rf"Line 1 of {path} is broken"):
        merge(place(of), run, shards)
