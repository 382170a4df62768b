from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contextlab.cli.main import main

RESULTS = Path(__file__).parents[2] / "results/chapterbreak-ctx-4k"
RUNS = ("window-*-4bba15993e85", "full-*-e019564b8e39", "sliding-*-56c3d0123351", "longmem-*-6cd7e775543a")


@pytest.fixture
def results(tmp_path: Path) -> str:
    """Four stored runs that know neither seconds nor training, whatever else is stored beside them."""
    for name in RUNS:
        (run,) = RESULTS.glob(name)
        shutil.copytree(run, tmp_path / run.name)
    return str(tmp_path)


def test_costs_per_question_and_break_even_points_are_printed(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", results, "--questions", "1,50"]) == 0
    out = capsys.readouterr().out
    assert "| full | 1.36 | 0.418 | 172 | 1.78 | 0.445 |" in out
    assert "from which the method of the row needs less computation" in out
    # Sliding reads more than an untrained LongMem, and saves that from the sixth question on.
    assert "| sliding |  | 0 |  | 5.25 |" in out


def test_limits_leave_rows_out(results: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", results, "--under", "state=60MB"]) == 0
    out = capsys.readouterr().out
    assert "| window |" in out
    assert "| full |" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "flop"], "did you mean 'flops'"),
        (["--by", "seconds"], "No result here has seconds"),
        (["--questions", "0"], "write whole numbers above 0"),
        (["--questions", "x"], "write whole numbers above 0"),
        (["--under", "state=1B"], "No result is under state=1B"),
        (["--format", "csv"], "There is no format"),
        (["--where", "task=pg22"], "No result fits"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str], message: str, results: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", results, *options]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)
