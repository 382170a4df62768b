"""The pictures of README and docs show what is stored."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT, bench, filled

from contextlab.cli import main as cli

matplotlib = pytest.importorskip("matplotlib")

LARGEST = 96 * 2**10
SECTIONS = filled("contextlab plot")


@pytest.fixture(scope="module")
def fill() -> ModuleType:
    return bench("fill")


def description(path: Path) -> str:
    """The digest in a picture: SVG files have it in a description."""
    (digest,) = re.findall(r"[0-9a-f]{64}", path.read_text("utf-8"))
    return str(digest)


@pytest.mark.parametrize(("page", "command", "text"), SECTIONS)
def test_a_picture_shows_what_is_stored(
    fill: ModuleType,
    page: str,
    command: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    kept = fill.picture(command)
    words = shlex.split(command)
    path = tmp_path / kept.name
    words[words.index("-o") + 1] = str(path)
    assert cli.main(words[1:]) == 0
    printed = capsys.readouterr().out.strip() + "\n"
    assert fill.shown(command, printed, (ROOT / page).parent).strip() == text.strip()
    assert description(path) == description(kept)
    # Another version of matplotlib may place a letter elsewhere.
    if f"matplotlib {matplotlib.__version__}<" in kept.read_text("utf-8"):
        assert path.read_bytes() == kept.read_bytes()


def test_there_are_pictures_and_each_is_small_and_shown() -> None:
    kept = set((ROOT / "docs/pictures").iterdir())
    shown = [(ROOT / page).parent / path for page, _, text in SECTIONS for path in re.findall(r"\]\((.*?)\)\n", text)]
    assert {path.resolve() for path in shown} == kept
    assert len(kept) > 5
    assert all(path.stat().st_size <= LARGEST for path in kept)


def test_a_page_shows_the_picture_of_its_command(tmp_path: Path) -> None:
    command = f"contextlab plot reach results/needle --mixed -o {tmp_path}/pictures/reach.svg"
    (tmp_path / "page.md").write_text(f"before\n<!-- run: {command} -->\nold\n<!-- end -->\nafter\n")
    for _ in range(2):
        subprocess.run([sys.executable, ROOT / "benches/fill.py", tmp_path / "page.md"], check=True)
    lines = (tmp_path / "page.md").read_text("utf-8").splitlines()
    assert lines[3] == "![Accuracy \N{MINUS SIGN} window by tokens back to the answer](pictures/reach.svg)"
    assert lines[5].startswith(
        "Accuracy \N{MINUS SIGN} window by tokens back to the answer, n = 12 in 6 examples of needle"
    )
    assert lines[-2:] == ["<!-- end -->", "after"]
    assert (tmp_path / "pictures/reach.svg").is_file()
