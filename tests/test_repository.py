"""What describes the project to others agrees with the project: metadata, citation, changelog, templates, checks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from contextlab.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"


def yaml_of(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def steps(job: str) -> list[str]:
    """The commands of a job on GitHub."""
    return [step["run"] for step in yaml_of(".github/workflows/checks.yml")["jobs"][job]["steps"] if "run" in step]


def test_one_version_is_everywhere() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1] == PROJECT["version"] == __version__ == yaml_of("CITATION.cff")["version"]


def test_the_citation_is_that_of_the_package() -> None:
    citation = yaml_of("CITATION.cff")
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]
    assert (citation["license"], citation["keywords"]) == (PROJECT["license"], PROJECT["keywords"])
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert {"cff-version", "message", "title"} <= citation.keys()


def test_every_address_of_the_project_is_below_its_repository() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / ".github").rglob("*.*"),
        ROOT / "pyproject.toml",
        ROOT / "CITATION.cff",
        ROOT / "mkdocs.yml",
    ]
    addresses = [url for page in pages for url in re.findall(r"https://github\.com/[\w./-]+", page.read_text("utf-8"))]
    assert len(addresses) > 4
    assert all(url.startswith(PROJECT["urls"]["Repository"]) for url in addresses)


def test_every_extra_installs_something() -> None:
    assert {"test", "lm-eval", "faiss", "plots", "docs", "all"} <= EXTRAS.keys()
    assert all(EXTRAS.values())


def test_the_extra_all_is_every_extra() -> None:
    (everything,) = EXTRAS["all"]
    assert set(re.findall(r"[\w-]+", everything)) - {"contextlab"} == EXTRAS.keys() - {"all"}


def test_what_the_extras_install_has_a_fixed_version() -> None:
    fixed = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().split()}
    wanted = [*PROJECT["dependencies"], *(line for name in ("docs", "test", "plots") for line in EXTRAS[name])]
    names = {re.split(r"[\[<>=;]", line)[0].lower() for line in wanted} - {"contextlab"}
    assert names <= fixed


def test_the_pythons_that_are_tested_are_those_that_are_promised() -> None:
    tested = yaml_of(".github/workflows/checks.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    promised = [match[1] for line in PROJECT["classifiers"] if (match := re.fullmatch(pattern, line))]
    assert tested == promised
    assert len(tested) >= 3
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_github_runs_what_the_script_of_the_checks_runs() -> None:
    script = (ROOT / ".ci" / "check").read_text()
    commands = [
        f"{program}{rest}"
        for program, rest in re.findall(r'^(?:\w+=\S+ )?"\$bin/([\w-]+)"(.*?)(?: & \w+=\$!)?$', script, re.MULTILINE)
    ]
    on_github = [command for job in ("lint", "types", "docs") for command in steps(job)]
    assert len(commands) >= 5
    assert [command for command in commands if not any(run.startswith(command) for run in on_github)] == []


def test_the_hooks_before_a_commit_are_those_of_the_checks() -> None:
    (local,) = yaml_of(".pre-commit-config.yaml")["repos"]
    hooks = {hook["entry"].replace(" --force-exclude", "") for hook in local["hooks"]}
    assert hooks == {"ruff check", "ruff format", "mypy", "mypy --config-file tests/mypy.ini tests"}
    runs = steps("lint") + steps("types")
    assert all(any(run.startswith(hook) for run in runs) for hook in hooks)


def test_templates_of_issues_ask_something() -> None:
    forms = sorted(TEMPLATES.glob("*.yml"))
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        if path.stem == "config":
            assert all(link.keys() == {"name", "url", "about"} for link in form["contact_links"])
            continue
        assert {"name", "description", "body"} <= form.keys()
        ids = [part["id"] for part in form["body"]]
        assert len(set(ids)) == len(ids) > 0
        assert all(part["attributes"]["label"] for part in form["body"])
