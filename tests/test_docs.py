"""The commands in README and docs work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contextlab import registry
from contextlab.cli import main as cli
from contextlab.harness.selection import select
from contextlab.testing import laws

ROOT = Path(__file__).parents[1]


def code(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def test_the_tutorials_method_keeps_the_laws(tmp_path):
    path = tmp_path / "every_second.py"
    path.write_text("\n\n".join(code("docs/tutorial.md", "python")[:2]))
    for name in ("EverySecond", "Thin"):
        kind = registry.method_class(f"{path}:{name}")
        results = laws.check(lambda backbone, kind=kind: kind(backbone, kind.Config(N=16)), ("tiny-llama",))
        assert [(name, result) for result in results if not result.passed] == []


def test_the_tutorials_task_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/tutorial.md").read_text()
    (line,) = re.findall(r"`(\{\"story\".*?\})`\.", page)
    (tmp_path / "stories.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "stories.py").write_text(code("docs/tutorial.md", "python")[2])
    monkeypatch.chdir(tmp_path)
    command = "bench --method full,closed-book --task stories.py:Stories --backbone tiny-llama --out runs --json"
    assert cli.main(command.split()) == 0
    runs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["metrics"]["accuracy"]["n"] for run in runs] == [2, 2]
    (tmp_path / "stories.jsonl").write_text(line.replace('"answer": "red"', '"answer": "green"'))
    assert cli.main([*command.split(), "--data", "."]) == 2
    assert "The right answer of question '0/0' is not one of its options" in capsys.readouterr().err


def test_every_method_and_task_has_a_card():
    methods, tasks = ((ROOT / "docs" / page).read_text() for page in ("methods.md", "tasks.md"))
    assert all(f"\n## {name}\n" in methods for name in registry.methods())
    assert all(f"\n## {name}\n" in tasks for name in registry.tasks())


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/tutorial.md",
        "docs/tasks.md",
        "docs/settings.md",
        "docs/training.md",
        "docs/papers.md",
        "docs/commands.md",
    ],
)
def test_commands_shown_name_options_that_exist(page, capsys):
    shown = set(
        re.findall(
            r"contextlab (bench|train|ls|check|table|plot|page|cost|diff|reproduce|doctor)((?: [^\n`|]*)?)",
            (ROOT / page).read_text(),
        )
    )
    for command, rest in shown:
        assert cli.main([command, "--help"]) == 0
        known = capsys.readouterr().out
        for option in re.findall(r"(?<!\w)--[a-z]+", rest):
            assert option in known, f"{command} {option}"


def test_every_method_and_task_that_a_page_names_is_one(tmp_path):
    method, _, task = code("docs/tutorial.md", "python")
    (tmp_path / "every_second.py").write_text(method)
    (tmp_path / "stories.py").write_text(task)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = [line for page in pages for line in re.findall(r"contextlab bench ([^\n`|]*)", page.read_text())]
    named = [dict(re.findall(r"--(method|task) ('[^']*'|\S+)", command)) for command in commands]
    named = [{kind: text.strip("'") for kind, text in one.items()} for one in named]
    assert len(named) > 6
    for one in named:
        # A folder below runs/ is one that the reader has trained.
        methods = re.sub(r",runs/[\w-]+", "", one.get("method", "window"))
        methods = methods.replace("every_second.py", str(tmp_path / "every_second.py"))
        select(methods, one.get("task", "needle").replace("stories.py", str(tmp_path / "stories.py")))


def test_two_forms_of_a_method_on_two_of_a_task_are_one_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"<!-- tested -->\n\n(.*?)\n\n", (ROOT / "docs/settings.md").read_text(), re.DOTALL)
    for line in shown.splitlines():
        assert cli.main(shlex.split(line)[1:]) == 0
    out = capsys.readouterr().out
    labels = ("pg22/S1(tokens=512)", "pg22/S2(tokens=512)", "pg22/S1(tokens=256)")
    for label in labels:
        assert re.search(rf"^ *{re.escape(label)} *$", out, re.MULTILINE)
        for method in ("longmem(K=32)", "longmem"):
            assert f"| {label} | {method} (untrained) |" in out


@pytest.mark.parametrize("page", ["README.md", "docs/results.md", "docs/papers.md"])
def test_tables_are_what_their_commands_print(page, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command, shown in re.findall(
        r"<!-- run: contextlab (?!plot )(.*?) -->\n(.*?)<!-- end -->", (ROOT / page).read_text(), re.S
    ):
        assert cli.main(shlex.split(command)) == 0
        assert capsys.readouterr().out.strip() == shown.strip(), command


def test_the_statistics_page_shows_the_stored_coverage():
    command, shown = re.search(
        r"<!-- run: (benches/tables.py .*?) -->\n(.*?)<!-- end -->", (ROOT / "docs/statistics.md").read_text(), re.S
    ).groups()
    printed = subprocess.run([sys.executable, *command.split()], cwd=ROOT, check=True, capture_output=True, text=True)
    assert printed.stdout.strip() == shown.strip()


def test_a_page_is_filled_between_its_marks(tmp_path):
    runs = [{"op": "a|b", "size": {"H": 2, "W": 0}}, {"op": "c", "peak": 1.5}]
    report = {"seconds": [1.25, 2.0], "deep": {"n": 3, "no": None}, "runs": runs}
    (tmp_path / "found.json").write_text(f"progress\n{json.dumps(report)}\n")
    page = f"before\n<!-- run: benches/tables.py {tmp_path}/found.json -->\nold\n<!-- end -->\nafter\n"
    (tmp_path / "page.md").write_text(page)
    for _ in range(2):
        subprocess.run([sys.executable, ROOT / "benches" / "fill.py", tmp_path / "page.md"], check=True)
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    once = ["| found |  |", "| --- | --- |", "| seconds | 1.25, 2 |", "| deep.n | 3 |"]
    every = ["| op | size | peak |", "| --- | --- | --- |", r"| a\|b | H2 |  |", "| c |  | 1.5 |"]
    assert lines[3:-3] == [*once, "", *every]


def test_columns_of_measurements_can_be_chosen(tmp_path):
    (tmp_path / "found.json").write_text('{"threads": 2, "runs": [{"a": 1, "b": 2, "c": 3}]}')
    command = [sys.executable, ROOT / "benches" / "tables.py", tmp_path / "found.json", "--columns", "c,a"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines()[-3:] == ["| c | a |", "| --- | --- |", "| 3 | 1 |"]
