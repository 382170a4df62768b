"""What README and docs tell users to do works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contextlab import laws, registry
from contextlab.cli import main as cli

ROOT = Path(__file__).parents[1]


def code(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_tutorials_method_keeps_the_laws(tmp_path):
    path = tmp_path / "every_second.py"
    path.write_text(code("docs/tutorial.md", "python")[0])
    results = laws.check(registry.method_class(f"{path}:EverySecond"), ("tiny-llama",))
    assert [result for result in results if not result.passed] == []


def test_every_method_and_task_has_a_card():
    methods, tasks = ((ROOT / "docs" / page).read_text() for page in ("methods.md", "tasks.md"))
    assert all(f"\n## {name}\n" in methods for name in registry.methods())
    assert all(f"\n## {name}\n" in tasks for name in registry.tasks())


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/tasks.md"])
def test_commands_shown_name_options_that_exist(page, capsys):
    shown = set(re.findall(r"contextlab (bench|ls|check|table|doctor)((?: [^\n`|]*)?)", (ROOT / page).read_text()))
    for command, rest in shown:
        assert cli.main([command, "--help"]) == 0
        known = capsys.readouterr().out
        for option in re.findall(r"(?<!\w)--[a-z]+", rest):
            assert option in known, f"{command} {option}"
