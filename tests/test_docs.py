"""The commands in README and docs work."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT, bench, blocks, filled, text

from contextlab import registry
from contextlab.cli import main as cli
from contextlab.harness.selection import select
from contextlab.testing import laws


def code(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text(page), flags=re.DOTALL)


METHODS = {
    "every_fourth.py:EveryFourth": {"N": 16},
    "tova.py:TOVA": {"N": 16, "keep": 20},
}
"""The tutorial's methods, in their order, and settings with which segments end inside of short texts."""


def save_methods(folder: Path) -> None:
    for name, source in zip(METHODS, code("docs/tutorial.md", "python"), strict=False):
        (folder / name.partition(":")[0]).write_text(source)


@pytest.mark.parametrize("name", METHODS)
def test_the_tutorials_methods_keep_the_laws(name: str, tmp_path: Path) -> None:
    save_methods(tmp_path)
    kind = registry.method_class(str(tmp_path / name))
    results = laws.check(lambda backbone: kind(backbone, kind.Config(**METHODS[name])), ("tiny-llama",))
    assert [result for result in results if not result.passed] == []


def test_a_cached_method_takes_few_lines() -> None:
    texts = code("docs/tutorial.md", "python")[: len(METHODS)]
    lines = [len([line for line in text.splitlines() if line.strip()]) for text in texts]
    assert all(count <= most for count, most in zip(lines, (20, 40), strict=True))


def test_the_tutorials_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/tutorial.md").read_text()
    (line,) = re.findall(r"`(\{\"story\".*?\})`\.", page)
    (tmp_path / "stories.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "stories.py").write_text(code("docs/tutorial.md", "python")[len(METHODS)])
    monkeypatch.chdir(tmp_path)
    command = "bench --method full,closed-book --task stories.py:Stories --backbone tiny-llama --out runs --json"
    assert cli.main(command.split()) == 0
    runs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [run["metrics"]["accuracy"]["n"] for run in runs] == [2, 2]
    (tmp_path / "stories.jsonl").write_text(line.replace('"answer": "red"', '"answer": "green"'))
    assert cli.main([*command.split(), "--data", "."]) == 2
    assert "The right answer of question '0/0' is not one of its options" in capsys.readouterr().err


def headings(page: str) -> list[str]:
    return re.findall(r"^## (.*)$", text(page), re.MULTILINE)


@pytest.mark.parametrize("name", registry.methods())
def test_every_method_has_a_page_with_the_same_headings(name: str) -> None:
    page = f"docs/methods/{name}.md"
    about = ["The idea", "Equation", "Settings", "What is ours, and what is the paper's", "Weights", "Results", "Cost"]
    assert headings(page) == about
    assert text(page).startswith(f"# {name}: ")
    idea = text(page).split("## The idea\n")[1].split("\n## ")[0].replace("et al.", "")
    assert len(re.findall(r"[.?](?=\s)", idea)) == 3
    assert f"<!-- run: benches/about.py settings {name} -->" in text(page)
    comes_with = {line["about"].split("(")[0].split()[0] for line in bench("about").listed("weights")}
    assert (f"<!-- run: benches/about.py weights {name} -->" in text(page)) == (name in comes_with)


@pytest.mark.parametrize("name", registry.tasks())
def test_every_task_has_a_page_with_the_same_headings(name: str) -> None:
    page = f"docs/benchmarks/{name}.md"
    assert headings(page) == ["What it measures", "Splits", "Settings", "Reading and scoring", "Results"]
    assert text(page).startswith(f"# {name}: ")
    assert all(f"<!-- run: benches/about.py {part} {name} -->" in text(page) for part in ("splits", "settings"))


@pytest.mark.parametrize("page", PAGES)
def test_commands_shown_name_options_that_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = set(
        re.findall(
            r"contextlab (bench|train|ls|check|table|length|plot|page|cost|diff|reproduce|doctor)((?: [^\n`|]*)?)",
            text(page),
        )
    )
    for command, rest in shown:
        assert cli.main([command, "--help"]) == 0
        known = capsys.readouterr().out
        for option in re.findall(r"(?<!\w)--[a-z]+", rest):
            assert option in known, f"{command} {option}"


def test_every_method_and_task_that_a_page_names_is_one(tmp_path: Path) -> None:
    save_methods(tmp_path)
    task = code("docs/tutorial.md", "python")[len(METHODS)]
    (tmp_path / "stories.py").write_text(task)
    shown = [text(page).replace("\\\n", "") for page in PAGES]
    commands = [line for page in shown for line in re.findall(r"contextlab bench ([^\n`|]*)", page)]
    named = [dict(re.findall(r"--(method|task) ('[^']*'|\S+)", command)) for command in commands]
    named = [{kind: text.strip("'") for kind, text in entry.items()} for entry in named]
    assert len(named) > 6
    for entry in named:
        # A folder below runs/ is one that the reader has trained.
        methods = re.sub(r",runs/[\w-]+", "", entry.get("method", "window"))
        methods = methods.replace("every_fourth.py", str(tmp_path / "every_fourth.py"))
        select(methods, entry.get("task", "needle").replace("stories.py", str(tmp_path / "stories.py")))


def test_two_forms_of_a_method_on_two_of_a_task_are_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("docs/settings.md") if "runs/forms" in block.code]
    for line in block.commands:
        assert cli.main(shlex.split(line)[1:]) == 0
    out = capsys.readouterr().out
    labels = ("pg22/S1(tokens=512)", "pg22/S2(tokens=512)", "pg22/S1(tokens=256)")
    for label in labels:
        assert re.search(rf"^ *{re.escape(label)} *$", out, re.MULTILINE)
        for method in ("longmem(K=32)", "longmem"):
            assert f"| {label} | {method} (untrained) |" in out


TABLES = [section for section in filled("contextlab") if not section[1].startswith("contextlab plot ")]


@pytest.mark.parametrize("command", dict.fromkeys(command for _, command, _ in TABLES))
def test_tables_are_what_their_commands_print(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out.strip()
    pages = [page for page, of, shown in TABLES if of == command and shown.strip() != printed]
    assert pages == [], f"python benches/fill.py {' '.join(pages)}"


@pytest.mark.parametrize(("page", "command", "shown"), filled("benches/tables.py"))
def test_pages_show_the_stored_measurements(
    page: str, command: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, *arguments = shlex.split(command)
    files, _, columns = (" ".join(arguments)).partition(" --columns ")
    printed = [
        bench("tables").page(Path(file), [name for name in columns.split(",") if name]) for file in files.split()
    ]
    assert "\n\n".join(printed) == shown.strip(), f"python benches/fill.py {page}"


@pytest.mark.parametrize(("page", "command", "shown"), filled("benches/about.py"))
def test_pages_show_the_settings_splits_and_weights_of_the_code(page: str, command: str, shown: str) -> None:
    _, part, name = command.split()
    assert bench("about").page(part, name) == shown.strip(), f"python benches/fill.py {page} --only about.py"


def test_every_advice_has_stored_runs_behind_it() -> None:
    sentences = re.findall(r"^\d+\. .*?(?=^\d+\. |^## )", text("docs/which_method.md"), re.MULTILINE | re.DOTALL)
    assert len(sentences) == 10
    for sentence in sentences:
        folders = re.findall(r"`(results/[\w-]+)`", sentence)
        assert folders, sentence
        assert all(list((ROOT / folder).glob("*/summary.json")) for folder in folders), sentence


def test_every_section_of_a_page_is_tested() -> None:
    programs = ("contextlab", "benches/tables.py", "benches/about.py")
    marks = sum(text(page).count("<!-- run: ") for page in PAGES)
    assert marks == sum(len(filled(program)) for program in programs) > 100


def test_only_the_chosen_sections_are_filled(tmp_path: Path) -> None:
    commands = ("contextlab ls nothing", "benches/about.py settings window")
    page = "".join(f"<!-- run: {command} -->\nold\n<!-- end -->\n" for command in commands)
    (tmp_path / "page.md").write_text(page)
    command = [sys.executable, ROOT / "benches" / "fill.py", tmp_path / "page.md", "--only", "about.py"]
    subprocess.run(command, check=True)
    page = (tmp_path / "page.md").read_text()
    assert page.count("\nold\n") == 1
    assert "| `N` |" in page


def test_a_page_is_filled_between_its_marks(tmp_path: Path) -> None:
    runs = [{"op": r"a|b\|c", "size": {"H": 2, "W": 0}}, {"op": "c", "peak": 1.5}]
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
    every = ["| op | size | peak |", "| --- | --- | --- |", r"| a\|b\|c | H2 |  |", "| c |  | 1.5 |"]
    assert lines[3:-3] == [*once, "", *every]


def test_columns_of_measurements_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "found.json").write_text('{"threads": 2, "runs": [{"a": 1, "b": 2, "c": 3}]}')
    command = [sys.executable, ROOT / "benches" / "tables.py", tmp_path / "found.json", "--columns", "c,a"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines()[-3:] == ["| c | a |", "| --- | --- |", "| 3 | 1 |"]
