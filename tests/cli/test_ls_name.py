from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from contextlab import registry
from contextlab.cli.main import main
from contextlab.config import described

TOY = Path(__file__).parents[1] / "harness" / "toy_parts.py"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ls", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", ["methods", "tasks"])
def test_every_setting_is_shown_with_type_default_and_meaning(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in getattr(registry, kind)():
        config = registry.method_class(name).Config if kind == "methods" else registry.task_class(name).Config
        text = shown(capsys, kind, name)
        for setting in described(config):
            assert f"  {setting.name:<14} {setting.type}, default {setting.default}\n" in text
            assert setting.about.split(",")[0][:60] in text


def test_a_task_shows_its_splits(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "tasks", "pg22")
    assert "  /S1            5K to 10K tokens\n" in text
    assert "[default: S1]" in text
    assert "separator" in shown(capsys, "tasks", "icl", "--verbose")


def test_as_json_it_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    task: dict[str, Any] = json.loads(shown(capsys, "tasks", "squad", "--json"))
    assert task["splits"]["1k"] == "paragraphs joined to 1,024 tokens on average"
    assert [setting["name"] for setting in task["settings"]] == ["tokens", "turns", "prompt", "answer"]
    method = json.loads(shown(capsys, "methods", "hso", "--verbose", "--json"))
    assert method["needs"] == ["gradients while reading"]
    assert method["settings"][0]["default"] == "25"
    assert "splits" not in method


def test_a_file_of_ones_own_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "methods", f"{TOY}:Counter")
    assert "Predicts the most frequent tokens so far." in text
    assert "number > 0, default 1.0" in text
    assert "initial count of every token." in text
    assert "/short" in shown(capsys, "tasks", f"{TOY}:Letters")


def test_tasks_are_shown_without_torch() -> None:
    code = "import sys; from contextlab.cli.main import main; code = main(['ls', 'tasks', 'pg22'])"
    code += "; sys.exit(code or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
