"""Code that a page shows is run here, or the page says why not.

A comment before a block is its mark:

* `<!-- tested -->`: it is run as it stands.
* `<!-- tested: bench --backbone tiny-llama; train --tokens 512 -->`: with these options after its commands.
* `<!-- tested: smollm2-135m -> tiny-llama -->`: Python, with these words replaced.
* `<!-- not run: REASON -->`: it is not run. That its options and names exist is tested (test_docs).
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pages import PAGES, ROOT, Block, blocks, text

from contextlab.cli import main as cli

BLOCKS = [block for page in PAGES for block in blocks(page)]
TESTED = [block for block in BLOCKS if block.mark.startswith("tested")]
TUTORIAL = "docs/tutorial.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder: the tutorial's files, three texts, and what a clone has."""
    for name in ("docs", "results", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, code in saved().items():
        (tmp_path / name).write_text(code, "utf-8")
    for place in ("mytexts", "DIR"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(4):
            (tmp_path / place / f"{number}.txt").write_text(f"Book {number} says that it is number {number}. " * 160)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def saved() -> dict[str, str]:
    """The files that the tutorial tells readers to save: all Python after the name of a file belongs to it."""
    page, files, name = text(TUTORIAL), dict[str, str](), ""
    for table in re.finditer(r"`(\w+\.csv)`[^`]*```csv\n(.*?)```", page, re.DOTALL):
        files[table[1]] = table[2]
    for match in re.finditer(r'`(\w+\.(?:py|jsonl))`|`(\{".*?\})`|```python\n(.*?)```', page, re.DOTALL):
        if match[1] and match[1].endswith(".py"):
            name = match[1]
        elif match[2]:
            files["stories.jsonl"] = f"{match[2]}\n" * 2
        elif match[3]:
            files[name] = f"{files.get(name, '')}\n\n{match[3]}"
    return files


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_code_has_a_mark(page: str) -> None:
    unmarked = [f"{block.page}:{block.line}: {block.commands[0]}" for block in blocks(page) if not block.mark]
    assert unmarked == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_mark_says_what_is_run_or_why_nothing_is(block: Block) -> None:
    assert re.fullmatch(r"not run: \w.*|tested(: \S.*)?", block.mark), block.mark


@pytest.mark.parametrize(
    "block", [block for block in TESTED if block.language != "python"], ids=lambda block: f"{block.page}:{block.line}"
)
def test_commands_work(block: Block, folder: Path) -> None:
    further = dict(
        part.strip().split(" ", 1) for part in block.mark.removeprefix("tested: ").split(";") if "--" in part
    )
    for command in block.commands:
        program, *arguments = shlex.split(command, comments=True)
        assert program == "contextlab", f"mark it as not run: {command}"
        assert cli.main([*arguments, *shlex.split(further.get(arguments[0], ""))]) == 0, command


@pytest.mark.parametrize(
    "block", [block for block in TESTED if block.language == "python"], ids=lambda block: f"{block.page}:{block.line}"
)
def test_python_works(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What the tutorial adds to a file needs what is in it.
    before = [file.partition(block.code)[0] for file in saved().values() if block.code in file]
    code = "".join(before) + block.code
    for pair in block.mark.removeprefix("tested").removeprefix(": ").split("; "):
        shown, _, used = pair.partition(" -> ")
        assert shown in code
        code = code.replace(shown, used) if shown else code
    module = ModuleType("shown")
    # Dataclasses look up their module.
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, f"{block.page}:{block.line}", "exec"), vars(module))


def test_blocks_of_a_page_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (
        "# Page\n\n<!-- tested: bench --limit 1 -->\n\n    contextlab bench \\\n      --limit 2\n    contextlab ls\n\n"
        "<!-- not run: no -->\n\ntext\n\n    key=value\n\n```python\nimport a\n\n    b\n```\n\n```toml\na = 1\n```\n"
    )
    monkeypatch.setattr("pages.ROOT", tmp_path)
    (tmp_path / "page.md").write_text(page)
    first, second = blocks("page.md")
    assert first.mark == "tested: bench --limit 1"
    assert [shlex.split(command) for command in first.commands] == [
        ["contextlab", "bench", "--limit", "2"],
        ["contextlab", "ls"],
    ]
    assert (second.mark, second.language, second.line) == ("", "python", 15)
