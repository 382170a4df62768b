from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from toy_sweeps import COUNTER, LETTERS, place, suite

from contextlab.harness.runner import bench
from contextlab.sweeps.places import SHARDS
from contextlab.sweeps.plan import RunEstimate, SweepRun
from contextlab.sweeps.shards import SECONDS, Shard, divided, is_stored, most_examples, shards_of


def planned(run_id: str = "run", seconds: float | None = None) -> SweepRun:
    estimate = None if seconds is None else RunEstimate(flops=1, seconds=seconds)
    return SweepRun(
        method=COUNTER,
        task=LETTERS,
        backbone="tiny-llama",
        context="own",
        seed=0,
        run_id=run_id,
        examples=8,
        estimate=estimate,
        peak_bytes=1,
    )


@given(st.sets(st.integers(0, 60)), st.integers(1, 9))
def test_ranges_hold_every_number_once_and_no_other(numbers: set[int], most: int) -> None:
    ranges = divided(sorted(numbers), most)
    assert [number for part in ranges for number in part] == sorted(numbers)
    assert all(0 < len(part) <= most for part in ranges)


def test_a_shard_takes_about_as_long_as_it_should() -> None:
    assert most_examples(planned(seconds=8 * SECONDS), 2) == 1
    assert most_examples(planned(seconds=2 * SECONDS), 2) == 4
    assert most_examples(planned(seconds=1e-9), 2) >= 8
    assert most_examples(planned(seconds=1e9), 2) == 1
    assert most_examples(planned(), 3) == 3


def test_what_is_left_of_a_run(tmp_path: Path) -> None:
    def begin(first: int, limit: int, out: Path) -> str:
        options = {"backbone": "tiny-llama", "device": "cpu", "out": out}
        return bench(COUNTER, LETTERS, first=first, limit=limit, **options).runs[0].run_id

    where = place(suite(tmp_path))
    run = planned(begin(0, 2, tmp_path))
    assert shards_of(where, run, 6) == [Shard(run)]
    assert [shard.examples for shard in shards_of(where, run, 3)] == [range(2, 5), range(5, 8)]
    begin(3, 5, tmp_path / SHARDS / "3-5")
    begin(7, 9, tmp_path / SHARDS / "7-9")
    (tmp_path / SHARDS / "4-6" / run.run_id).mkdir(parents=True)
    # Ranges that overlap, or go beyond the examples, are left to another sweep.
    assert [shard.examples for shard in shards_of(where, run, 3)] == [range(2, 3), range(3, 5), range(5, 8)]
    assert not is_stored(where, run)
    begin(0, 8, tmp_path)
    assert is_stored(where, run)


def test_a_part_of_a_run_has_its_examples_and_their_numbers(tmp_path: Path) -> None:
    (part,) = bench(COUNTER, LETTERS, backbone="tiny-llama", device="cpu", out=tmp_path, first=3, limit=5).runs
    assert part.data.examples == 2
    assert sorted(part.parts or {}) == ["a/4", "d/3"]
