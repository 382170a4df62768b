from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import contextlab
from contextlab import backbone as backbones
from contextlab import registry, seals
from contextlab.cli import console
from contextlab.cli import doctor as doctor_module
from contextlab.cli.bench import settings_of
from contextlab.cli.main import main
from contextlab.errors import UserError
from contextlab.harness.store import read_result
from contextlab.testing import laws

TOY = Path(__file__).parents[1] / "harness" / "toy_parts.py"
COUNTER, OTHER, LETTERS = (f"{TOY}:{name}" for name in ("Counter", "Other", "Letters"))
OFFERED = "choose one of Counter, CounterConfig, Counts, Hidden, HiddenLate, LetterProtocol, Letters, Other.\n"
COMMANDS = ("bench", "train", "ls", "check", "table", "reproduce", "data", "kernels", "verify", "doctor", "new")
HEAVY = {"torch", "transformers", "pandas", "numpy", "contextlab.backbone"}


def bench(out: Path, *more: str) -> list[str]:
    return [
        *("bench", "--method", COUNTER, "--task", LETTERS, "--backbone", "tiny-llama", "--device", "cpu"),
        *("--out", str(out), *more),
    ]


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys under the names of an installed package."""
    methods = {"toy-counter": COUNTER, "toy-broken": f"{TOY}:Absent"}
    monkeypatch.setattr(registry, "_names", lambda group: dict.fromkeys(methods if "meth" in group else ["toy"], "pkg"))
    find = registry._find
    named = {**methods, "toy": LETTERS}
    monkeypatch.setattr(registry, "_find", lambda kind, group, name: find(kind, group, named.get(name, name)))


@pytest.mark.parametrize("group", ["", "data", "kernels", "new"])
def test_a_group_alone_shows_its_commands_line_by_line(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(group.split()) == 0
    out, err = capsys.readouterr()
    assert "\nCommands:\n  " in out
    assert err == ""


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_comes_before_anything_heavy(command: str) -> None:
    code = f"""
import sys
from contextlab.cli.main import main
code = main([*{command.split()!r}, "--help"])
assert not {HEAVY!r} & set(sys.modules), set(sys.modules)
sys.exit(code)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Usage: contextlab" in answer.stdout
    assert command or all(name in answer.stdout for name in (*COMMANDS, "--debug"))


@pytest.mark.parametrize(
    "command", ["bench --method full --task nothing", "train full --corpus . --tokens 1 --out x", "check nothing"]
)
def test_what_takes_seconds_says_so_on_a_terminal_before_it_begins(command: str, tmp_path: Path) -> None:
    code = f"""
import io, os, sys
from contextlab.cli.main import main
class Terminal(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        # What follows is not looked at.
        print((text, sorted({HEAVY!r} & set(sys.modules))), flush=True)
        os._exit(0)
sys.stderr = Terminal()
main({command.split()!r})
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout == "('loading torch and transformers', [])\n"


def test_a_method_that_fails_shows_its_traceback_and_last_where_it_failed(tmp_path: Path) -> None:
    lines = (
        "from contextlab.methods.window import Window",
        "class Raises(Window):",
        "    def read(self, *_, **__): 1 / 0",
    )
    (tmp_path / "raises.py").write_text("\n".join(lines))
    words = ["bench", "--method", "raises.py:Raises", "--task", "texts", "--backbone", "tiny-llama"]
    code = f"from contextlab.cli.main import main; raise SystemExit(main({words!r}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    shown = " ".join(answer.stderr.split())
    assert answer.returncode == 1
    assert "ZeroDivisionError: division by zero" in shown
    assert shown.endswith(
        "raises.py:Raises failed at example 1 of texts/all; finished runs are kept: correct it and run the same "
        "command again."
    )


def test_bench_prints_tables_differences_and_where_it_all_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(bench(tmp_path / "runs", "--context", "own,none,wrong")) == 0
    out = capsys.readouterr().out
    for part in ("1.000 [0.500, 1.000]", "own - none, accuracy: +0.500 [", "own - wrong, accuracy", "n = 8"):
        assert part in out
    assert "generated letters, for tests (sample)" in out
    assert f"Stored below {tmp_path / 'runs'}." in out


def test_bench_shows_the_paired_differences_to_the_first_method_as_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = bench(tmp_path / "runs")
    command[command.index("--method") + 1] = f"{COUNTER},{COUNTER}(prior=0.5)"
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "accuracy -" in " ".join(out.split())
    assert "are paired over the same examples, in brackets 95 % intervals" in " ".join(out.split())
    assert "(paired, " not in out
    assert f"`contextlab table {tmp_path / 'runs'} --notes` says how" in out


def test_bench_with_json_prints_one_object_per_run_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--json", "--limit", "2", "--context", "own,none", "--set", "prior=0.5", "--seed", "3")
    assert main(bench(tmp_path, *options)) == 0
    out, err = capfd.readouterr()
    results = [json.loads(line) for line in out.splitlines()]
    assert [result["context"] for result in results] == ["own", "none"]
    assert {result["provenance"]["seed"] for result in results} == {3}
    assert results[0]["method_config"] == {"prior": 0.5}
    assert results[-1] == read_result(tmp_path / results[-1]["run_id"]).as_json()
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bnch"], "Did you mean 'bench'?"),
        (["table"], "Missing argument 'DIR...': see contextlab table --help."),
        (["cost"], "Missing argument 'folder': see contextlab cost --help."),
        (["cost", "a", "b"], "see contextlab cost --help."),
        (["ls", "foo"], "contextlab: Invalid value for 'kind': 'foo' is not one of 'methods', 'tasks', "),
        (["data", "get"], "No such command 'get': see contextlab data --help."),
        (["bench", "--metod", "x"], "--method"),
        (["bench", "--task", "x"], "--method"),
        (["bench", "--method", "lngmem!", "--task", LETTERS], "There is no method 'lngmem!'"),
        (["bench", "--method", COUNTER, "--task", "chptr"], "There is no task 'chptr'"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--split", "lng"], "did you mean 'long'"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--context", "owm"], "did you mean 'own'"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--backbone", "tiny-lama"], "did you mean 'tiny-llama'"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--data", "/nowhere"], "/nowhere"),
        (["bench", "--method", "window", "--task", "texts", "--data", "/nowhere"], "There is no folder /nowhere: name"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--limit", "0"], "see contextlab bench --help."),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--set", "prior"], "--set key=value"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--set", "prior=much"], "prior='much' of "),
        (["ls", "method"], "methods"),
        (["check", "nothing-like-it"], "There is no method"),
        (["table", "/nowhere"], "no results below /nowhere"),
        (["table", ""], "table is empty"),
        (["table", str(TOY)], "is a file: name the folder"),
        (["table", "/nowhere", "--format", "markdwn"], "did you mean 'markdown'"),
        (["table", "/nowhere", "--seeds", "men"], "did you mean 'mean'"),
        (["table", "/nowhere", "--mean", "task"], "did you mean 'tasks'"),
        (["table", "/nowhere", "--names", "/nowhere.toml"], "/nowhere.toml cannot be read"),
        (["ls", "results", "--from", ""], "--from is empty"),
        (["ls", "results", "--from="], "--from is empty"),
        (["ls", "results", "--out", "runs/a"], "this one reads: write --from runs/a."),
        (["diff", "a", "b", "--out", "runs/a"], "this one reads: write --from runs/a."),
        (["table", "/nowhere", "--format", "terminal"], "is called text: write --format text."),
        (["cost", "/nowhere", "--format", "terminal"], "is called text: write --format text."),
        (["reproduce", "--format", "terminal"], "is called text: write --format text."),
        (["reproduce", "--format", "txt"], "did you mean 'text'"),
        (["doctor", "--out", ""], "--out is empty"),
        *(
            (["bench", "--method", COUNTER, "--task", LETTERS, option, ""], f"{option} is empty")
            for option in ("--out", "--data", "--device", "--backbone", "--split", "--dtype")
        ),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--out", str(TOY)], "toy_parts.py is a file"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--out", f"{TOY}/deep/er"], "toy_parts.py is a file"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--backbone", "tiny-llama", "--device", "meta"], "'meta'"),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--set", "prior=" + "[" * 10**5], "not valid JSON"),
        (
            ["bench", "--method", COUNTER, "--task", LETTERS, "--set", "prior=inf"],
            "Counter is not valid: give a number below",
        ),
        (["bench", "--method", COUNTER, "--task", LETTERS, "--set", "prior=1", "--set", "prior=2"], "prior twice"),
        (["bench", "--method", f"{COUNTER}(prior=1", "--task", LETTERS], "is not closed"),
        (["bench", "--method", f"{COUNTER}(pior=1)", "--task", LETTERS], "did you mean 'prior'"),
        (["bench", "--method", f"{COUNTER}(prior=1,prior=2)", "--task", LETTERS], "is given prior twice"),
        (["bench", "--method", f"{COUNTER}(prior=1)", "--task", LETTERS, "--set", "prior=2"], "in --set: keep one"),
        (["bench", "--method", f"{OTHER}(prior=1)", "--task", LETTERS], "There are no settings of"),
        (["bench", "--method", COUNTER, "--task", f"{LETTERS}/short", "--split", "long"], "in --split: keep one"),
        (["bench", "--method", COUNTER, "--task", f"{LETTERS}(tokens=1)", "--tokens", "2"], "in --tokens: keep one"),
        (["bench", "--method", COUNTER, "--task", f"{LETTERS}/", "--limit", "1"], "No split stands after"),
        (["bench", "--method", "window", "--task", "sst2", "--tokens", "9"], "is called tokens: leave --tokens out"),
        (["bench", "--method", "window", "--task", "squad", "--history", "9"], "leave --history out"),
        (["bench", "--method", "window", "--task", "pg22(tokens=0)"], "tokens='0' of pg22 is not valid"),
        (
            ["bench", "--method", "hso,generative-adapter", "--task", "sst2", "--set", "steps=2"],
            "steps means different things in hso and generative-adapter: write it at each instead of --set, "
            "as hso(steps=2).",
        ),
        (["bench", "--method", "hso", "--task", "icl", "--set", "k=2"], "k means different things in hso and icl"),
        (["ls", "methods", "longmen"], "did you mean 'longmem'"),
        (["ls", "tasks", "pg2"], "did you mean 'pg22'"),
        (["ls", "backbones", "x"], "leave x out"),
        (["check", "window(N=0)"], "N='0' of window is not valid"),
        (["check", "window,full"], "names 2 methods"),
        (["bench", "--method", f"{TOY}:TYPE_CHECKING", "--task", LETTERS], "no method in"),
        (["bench", "--method", f"{TOY}:os", "--task", LETTERS], "The module that"),
        (["bench", "--method", f"{TOY}:Countr", "--task", LETTERS], "did you mean 'Counter'"),
        (["bench", "--method", f"{TOY}:Xyz", "--task", LETTERS], OFFERED),
        (["bench", "--method", LETTERS, "--task", LETTERS], "is no method"),
        (["bench", "--method", COUNTER, "--task", COUNTER], "is no task"),
        (["bench", "--method", "\x1b]0;owned\x07\n", "--task", LETTERS], r"no method '\x1b]0;owned\x07'"),
        (["check", "\u202edecived\ud800"], r"'\u202edecived\ud800'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("contextlab: ")
    assert message in err
    assert err.count("\n") == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


EVIL = "\x1b[2J\x9b31m\u202e<script>alert(1)</script>[a](javascript:b)|=1+1"


def test_what_others_stored_is_shown_and_not_obeyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tmp_path, "--limit", "2", "--json")) == 0
    (path,) = tmp_path.glob("*/summary.json")
    stored = read_result(path.parent)
    names = {"run_id": EVIL, "method": f"={EVIL}", "task": f"@{EVIL}", "split": "s", "backbone": EVIL}
    data = stored.data.model_copy(update={"note": f"+{EVIL}\n\n# more"})
    metrics = {f"-{EVIL}": stored.metrics["accuracy"]}
    seals.write(path, stored.model_copy(update={**names, "data": data, "metrics": metrics}).as_json())
    capsys.readouterr()
    outputs = {}
    for style in ("markdown", "html", "latex", "csv", "json", "text"):
        assert main(["table", str(tmp_path), "--format", style]) == 0
        outputs[style] = capsys.readouterr().out
    assert main(["ls", "results", "--from", str(tmp_path)]) == 0
    outputs["ls"] = capsys.readouterr().out
    for out in outputs.values():
        assert not set(out) & set("\x1b\x9b\u202e\x07")
        assert "1+1" in out
    assert "<script>" not in outputs["markdown"] + outputs["html"]
    assert "](javascript" not in outputs["markdown"]
    assert outputs["ls"].count("\n") == 1
    cells = [cell for row in csv.reader(io.StringIO(outputs["csv"])) for cell in row]
    assert {cell[:2] for cell in cells if cell.startswith("'")} == {"'-", "'=", "'+", "'@"}
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+", "-"))]


def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tmp_path, "--limit", "2", "--json")) == 0
    capsys.readouterr()
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        assert main(["table", str(tmp_path), "--format", "csv"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("contextlab: ")
    assert "No space left on device" in err
    assert err.count("\n") == 1


def test_a_console_takes_text_for_text(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(f"{EVIL} :smile: [red]a[/red] [/x]")
    out = capsys.readouterr().out
    assert r"\x1b[2J\x9b31m\u202e<script>" in out
    assert ":smile: [red]a[/red] [/x]" in out


def test_debug_shows_the_traceback_in_any_position(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "table", "/nowhere"], ["table", "/nowhere", "--debug"]):
        assert main(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("Traceback")
        assert lines[-1].startswith("contextlab: There are no results")


def test_an_interrupted_bench_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TOY_INTERRUPT", "c/2")
        assert main(bench(tmp_path)) == 130
    assert capsys.readouterr().err == "contextlab: interrupted; run the same command again to resume.\n"
    assert main(bench(tmp_path, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["data"]["examples"] == 8


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == contextlab.__version__


@pytest.mark.usefixtures("entries")
def test_ls_methods_shows_origin_needs_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "methods", "--json", "--verbose"]) == 0
    counter, broken = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert counter == {
        "name": "toy-counter",
        "about": "Predicts the most frequent tokens so far.",
        "from": "pkg",
        "needs": [],
        "settings": ["prior=1.0"],
    }
    assert "There is no method in" in broken["about"]
    assert main(["ls", "methods"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_ls_methods_says_the_same_with_and_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for options in ([], ["--verbose"]):
        assert main(["ls", "methods", "--json", *options]) == 0
        lines.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    brief, verbose = lines
    assert all(line["about"] for line in brief)
    assert [{key: line[key] for key in ("name", "about", "from")} for line in verbose] == brief


@pytest.mark.usefixtures("entries")
def test_ls_tasks_and_backbones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "tasks"]) == 0
    assert capsys.readouterr().out.split("\n")[0].endswith("[from: pkg]  [splits: short, long, one]  [default: short]")
    assert main(["ls", "backbones"]) == 0
    assert "tiny-llama" in capsys.readouterr().out


def test_ls_results_and_table_read_what_bench_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(bench(tmp_path, "--json")) == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    assert main(["ls", "results", "--from", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["about"]) == (run_id, "accuracy 1.000, n = 8, context own")
    options = ("--rows", "task", "--columns", "method", "--baseline", COUNTER, "--metric", "accuracy")
    assert main(["table", str(tmp_path), *options]) == 0
    out = capsys.readouterr().out
    assert out.startswith("| task | accuracy | accuracy - ")
    assert "+0.000" in out


@pytest.mark.parametrize("passed", [True, False])
def test_check_fails_when_a_law_does(
    passed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [
        laws.LawResult("causality", "tiny-llama", True, "", 0.1),
        laws.LawResult("causality", "tiny-gpt2", passed, "" if passed else "token 3 [changed]", 0.1),
    ]
    monkeypatch.setattr(laws, "check", lambda make, _families: results if make.__name__ == "Counter" else [])
    assert main(["check", COUNTER]) == (0 if passed else 1)
    out = capsys.readouterr().out
    assert ("FAILS" in out, "token 3 [changed]" in out) == (not passed, not passed)
    assert main(["check", COUNTER, "--json"]) == (0 if passed else 1)
    answer = json.loads(capsys.readouterr().out)
    assert (answer["method"], answer["passed"]) == (COUNTER, passed)
    assert answer["laws"] == [dataclasses.asdict(result) for result in results]


def test_check_takes_a_method_with_its_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = backbones.load("tiny-llama", device="cpu")
    built: list[Any] = []
    monkeypatch.setattr(laws, "check", lambda make, _families: built.append(make(model)) or [])
    assert main(["check", f"{COUNTER}(prior=3)", "--json"]) == 0
    assert built[0].config.as_dict() == {"prior": 3.0}
    assert json.loads(capsys.readouterr().out)["method"] == f"{COUNTER}(prior=3)"


def test_doctor_shows_a_fix_for_everything_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(doctor_module, "EXTRAS", {"here": "json", "gone": "module_that_is_not_there"})
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CONTEXTLAB_DATA", str(tmp_path / "absent"))
    assert main(["doctor", "--json", "--out", str(tmp_path / "file")]) == 0
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert all(finding["ok"] == (finding["fix"] is None) for finding in findings.values())
    wrong = {what for what, finding in findings.items() if not finding["ok"]}
    assert wrong == {"extra gone", "backbone smollm2-135m", "data", "results"}
    assert findings["extra gone"]["fix"] == "pip install 'contextlab[gone]'"
    assert {"python", "torch", "transformers", "device", "memory"} <= findings.keys()
    (tmp_path / "cache" / "backbones" / "smollm2-135m-abc").mkdir(parents=True)
    assert main(["doctor", "--out", str(tmp_path / "runs")]) == 0
    assert "in the cache" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_doctor_knows_all_extras_by_a_module_of_theirs() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert doctor_module.EXTRAS.keys() == extras.keys() - {"docs", "test", "all"}
    installed = packages_distributions()
    checked = {extra: module for extra, module in doctor_module.EXTRAS.items() if module in installed}
    assert {"kernels", "plots"} <= checked.keys()
    for extra, module in checked.items():
        required = {canonical(re.split(r"[\[>=<;, ]", line)[0]) for line in extras[extra]}
        assert required & set(map(canonical, installed[module])), f"{module} does not come with {extra}"


def canonical(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def test_settings_are_text_lists_or_null() -> None:
    read = settings_of(["a=1", "b=x=y", "c=[1, 2]", "d=null", 'e={"f": 1}', "g="])
    assert read == {"a": "1", "b": "x=y", "c": [1, 2], "d": None, "e": {"f": 1}, "g": ""}
    with pytest.raises(UserError, match="not valid JSON"):
        settings_of(["a=[1"])
