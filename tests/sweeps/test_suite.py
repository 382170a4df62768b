"""Suites: what their files may hold, and those of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from contextlab.errors import UserError
from contextlab.harness.selection import select
from contextlab.sweeps.suite import Suite

ROOT = Path(__file__).parents[2]
SHOWN = sorted((ROOT / "docs" / "suites").glob("*.toml"))


@pytest.mark.parametrize("file", SHOWN, ids=lambda file: file.stem)
def test_suites_of_the_documentation_name_methods_and_tasks_that_exist_and_stored_results(file: Path) -> None:
    suite = Suite.of(file, {})
    methods, tasks = select(suite.method, suite.task, suite.split, suite.set)
    assert len(methods) >= len(suite.method)
    assert len(tasks) >= len(suite.task)
    assert (ROOT / suite.out).is_dir()


def test_options_take_the_place_of_what_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "suite.toml"
    file.write_text('method = "window"\ntask = ["pg22"]\nseed = 3\nbackbone = "a, b"\n')
    suite = Suite.of(file, {"task": "sst2/n2", "context": "own,wrong"})
    assert (suite.method, suite.task, suite.seed) == (("window",), ("sst2/n2",), (3,))
    assert (suite.backbone, suite.context) == (("a", "b"), ("own", "wrong"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "window"\n', "No task is named"),
        ('method = "window"\ntask = "pg22"\nlimit = 0\n', "--limit of the sweep is not valid"),
        ('method = "window"\ntask = "pg22"\nlimits = 1\n', "limits"),
        ("method = \n", "is not valid TOML"),
    ],
)
def test_a_wrong_suite_is_refused_with_what_to_correct(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "suite.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        Suite.of(file, {})
    with pytest.raises(UserError, match="name a suite that exists"):
        Suite.of(tmp_path / "missing.toml", {})
