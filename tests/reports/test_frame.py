from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import NATS, result, store, three

import contextlab
from contextlab.cli.main import main
from contextlab.errors import UserError
from contextlab.reports.frame import COLUMNS, frame_of

TRAINED = {"flops": 9, "peak_bytes": None, "seconds": 2.0, "tokens": 61_440}


def row_of(frame: pandas.DataFrame, metric: str = "nats_per_token") -> pandas.Series[Any]:
    (_, row), *others = frame[frame.metric == metric].iterrows()
    assert not others
    return row


def test_every_metric_of_every_run_is_a_row() -> None:
    runs = three()
    frame = frame_of(runs)
    stored = [(run.run_id, name, metric.value) for run in runs for name, metric in run.metrics.items()]
    assert list(frame[["run", "metric", "value"]].itertuples(index=False, name=None)) == stored
    assert dict(zip(frame.method, frame.value, strict=True)).keys() == NATS.keys()


def test_columns_are_those_that_are_described_whatever_was_stored() -> None:
    for runs in ([], three(), [result(state=None)], [result(cost={"train": TRAINED})]):
        frame = frame_of(runs)
        assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
            name: str(pandas.Series(dtype=kind).dtype) for name, (kind, _) in COLUMNS.items()
        }


def test_what_was_not_counted_is_missing_and_not_zero() -> None:
    row = row_of(frame_of([result(state=None)]))
    assert row["query_flops"] == 2.5e12
    for name in ("train_seconds", "contextualize_flops", "state_bytes", "twin", "history"):
        assert pandas.isna(row[name])
    assert row_of(frame_of([result(cost={"train": TRAINED})]))["train_tokens"] == 61_440


def test_only_the_measure_of_a_task_has_a_direction() -> None:
    frame = frame_of([result()])
    assert row_of(frame)[["measure", "direction"]].tolist() == [True, "lower"]
    assert row_of(frame, "word_perplexity")[["measure", "direction"]].tolist() == [False, ""]
    higher = {"name": "word_perplexity", "higher_is_better": True, "bounded": False}
    assert row_of(frame_of([result(measure=higher)]), "word_perplexity")["direction"] == "higher"


def test_settings_can_be_filtered_by_their_names() -> None:
    runs = [result("longmem", method_config={"K": k}, changed=["K"]) for k in (32, 64)]
    frame = frame_of(runs)
    assert set(frame[frame.settings.str["K"] == 64].method) == {"longmem(K=64)"}


def test_of_a_run_stored_twice_the_latest_counts() -> None:
    again = result(run_id="same", nats=1.0)
    first = result(run_id="same", nats=9.0, provenance={"started": "2020"})
    assert row_of(frame_of([again, first]))["value"] == 1.0


def test_of_two_copies_of_one_start_that_with_more_examples_counts() -> None:
    few, many = (
        result(run_id="same", nats=nats, data={"examples": n}, provenance={"started": "2020"})
        for n, nats in ((2, 9.0), (3, 1.0))
    )
    assert row_of(frame_of([few, many]))["value"] == row_of(frame_of([many, few]))["value"] == 1.0


@given(st.permutations(range(4)))
def test_the_order_of_files_does_not_matter(order: list[int]) -> None:
    runs = [result(run_id=f"r{n}", provenance={"seed": n, "started": str(n)}) for n in range(4)]
    pandas.testing.assert_frame_equal(frame_of(runs), frame_of([runs[n] for n in order]))


def test_a_folder_gives_its_runs_with_their_folders(tmp_path: Path) -> None:
    run = result()
    store(tmp_path / "deep" / run.run_id, run)
    frame = contextlab.results(tmp_path)
    assert set(frame.folder) == {str(tmp_path / "deep" / run.run_id)}
    with pytest.raises(UserError, match="contextlab bench"):
        contextlab.results(tmp_path / "absent")


def test_results_of_a_command_become_the_same_frame() -> None:
    runs = three()
    assert len(frame_of(runs)) == sum(len(run.metrics) for run in runs)


def test_every_column_is_explained_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "tables.md").read_text("utf-8")
    assert [name for name in COLUMNS if f"`{name}`" not in page] == []


def test_columns_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "columns", "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == list(COLUMNS)
