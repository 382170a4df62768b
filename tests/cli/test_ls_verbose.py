from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from contextlab import registry
from contextlab.benchmarks.task import Task
from contextlab.benchmarks.tasks.chapterbreak import ChapterBreak
from contextlab.benchmarks.tasks.fewshot import SST2
from contextlab.benchmarks.tasks.icl import ICL
from contextlab.cli import main as cli

TASKS: dict[str, Callable[[], Task]] = {"chapterbreak": ChapterBreak, "icl": ICL, "sst2": SST2}


@pytest.fixture(autouse=True)
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "tasks", lambda: dict.fromkeys(TASKS, "here"))
    monkeypatch.setattr(registry, "task", lambda name: TASKS[name]())


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["ls", "tasks", *options]) == 0
    return capsys.readouterr().out


def test_prompts_are_shown_with_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Sentiment" not in listed(capsys)
    shown = listed(capsys, "--verbose")
    assert "\n    n2, n4, n6, n8:\n        Review: {text}\n        Sentiment: {label}\n" in shown
    assert "\n    sst5(template=evalm):\n        {text} It is {label}\n        separator: '\\n'\n" in shown


def test_as_json_prompts_stand_by_their_splits(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in listed(capsys, "--verbose", "--json").splitlines()]
    chapterbreak, icl, sst2 = (line["prompts"] for line in lines)
    assert chapterbreak == {}
    assert list(sst2) == ["n2, n4, n6, n8"]
    splits = [split for key in icl for split in key.split(", ")]
    assert sorted(splits) == sorted(task.spelled(split) for split, task in ICL().worded())
    assert all("prompts" not in json.loads(line) for line in listed(capsys, "--json").splitlines())


def test_other_lists_have_no_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ls", "backbones", "--verbose"]) == 0
    assert "prompts" not in capsys.readouterr().out
