"""The site is built without a warning, asks nothing of other servers, and what it makes of pages is right."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pages import ROOT, bench

from contextlab import registry

pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def elements(site: Path) -> Iterator[tuple[str, str]]:
    """Pages, and their elements with attributes."""
    for page in site.rglob("*.html"):
        for element in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page.read_text("utf-8")):
            yield page.name, element


def test_every_method_and_task_is_found_by_the_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    places = {entry["location"] for entry in entries}
    assert {f"methods/{name}.html" for name in registry.methods()} <= places
    assert {f"benchmarks/{name}.html" for name in registry.tasks()} <= places
    assert any("StreamingLLM" in entry["title"] + entry["text"] for entry in entries)


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    loaded = [
        (page, element) for page, element in elements(site) if re.search(r'(?:src|href)="(?:https?:)?//', element)
    ]
    assert [(page, element) for page, element in loaded if 'rel="canonical"' not in element] == []
    # This part of the theme asks GitHub for the number of stars.
    assert "md-source" not in (site / "index.html").read_text("utf-8")


def test_formulas_are_shown_without_a_script(site: Path) -> None:
    pages = {name: (site / "methods" / f"{name}.html").read_text("utf-8") for name in registry.methods()}
    assert [name for name, page in pages.items() if "<math" not in page or "arithmatex" in page] == []


def test_the_reference_describes_the_functions_of_the_package(site: Path) -> None:
    page = (site / "api" / "index.html").read_text("utf-8")
    assert all(f'id="contextlab.{name}"' in page for name in ("bench", "load", "results", "train"))


@pytest.mark.parametrize(
    ("link", "link_on_page"),
    [
        ("[a](../../CONTRIBUTING.md#x)", "[a](https://forge/blob/main/CONTRIBUTING.md#x)"),
        ("[a](../../results/)", "[a](https://forge/blob/main/results)"),
        ("[a](../data.md)", "[a](../data.md)"),
        ("![a](../pictures/b.svg)", "![a](../pictures/b.svg)"),
        ("[a](https://elsewhere)", "[a](https://elsewhere)"),
    ],
)
def test_links_to_files_that_are_no_pages_lead_to_the_repository(link: str, link_on_page: str) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods/full.md"))
    config = SimpleNamespace(extra={"repository": "https://forge"})
    assert bench("mkdocs_hooks").on_page_markdown(link, page=page, config=config) == link_on_page


def test_stars_of_a_filled_table_are_no_emphasis() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    text = "*a*\n<!-- run: x -->\n| *.q_proj | *.v | `*.k` |\n* point\n**bold**\n<!-- end -->\n*b*\n"
    converted = bench("mkdocs_hooks").on_page_markdown(
        text, page=page, config=SimpleNamespace(extra={"repository": ""})
    )
    assert converted == "*a*\n<!-- run: x -->\n| \\*.q_proj | \\*.v | `*.k` |\n* point\n**bold**\n<!-- end -->\n*b*\n"


def test_formulas_and_tables_of_a_page() -> None:
    page = '<span class="arithmatex">\\(a &lt; b\\)</span><table><td><code>a\\|b</code> 1 [-.5, +2.0]</td></table>'
    converted = bench("mkdocs_hooks").on_page_content(page)
    assert converted.startswith("<math")
    assert "<mi>a</mi>" in converted
    assert "<<" not in converted
    assert "<code>a|b</code> 1 [-.5,&nbsp;+2.0]" in converted
    assert converted.endswith("</table></div>")


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), str(path), "exec"), names)
            shown = "".join(line for output in cell["outputs"] for line in output["text"])
            assert words(printed.getvalue()) == words(shown)
            assert numbers(printed.getvalue()) == pytest.approx(numbers(shown), abs=0.02)


def words(text: str) -> list[str]:
    return re.sub(r"\d+(\.\d+)?", "", text).split()


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


def test_a_notebook_becomes_a_page() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"text": ["1\n"]}]},
    ]
    page = bench("mkdocs_hooks").notebook_page(json.dumps({"cells": cells}), "name")
    assert page == (
        "# Title\ntext\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n[This page as a notebook](name.ipynb)\n"
    )
