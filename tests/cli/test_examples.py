from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contextlab.cli.examples import ANYWHERE, examples
from contextlab.cli.main import main


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a machine that has nothing in its cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    return tmp_path


@pytest.mark.parametrize("data", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_three_commands_run(
    data: bool, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if data:  # a data folder that lacks what two of them read
        monkeypatch.setenv("CONTEXTLAB_DATA", str(elsewhere))
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    commands = [line.strip() for line in out.splitlines() if line.startswith("    ")]
    assert len(commands) == 3
    assert out.count(ANYWHERE) == (3 if data else 1)
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "contextlab"
        assert main(arguments) == 0, command
    assert "own - wrong" in capsys.readouterr().out


def test_the_default_backbone_is_named_where_it_is_missing(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    assert "smollm2-135m is downloaded first" in capsys.readouterr().out
    (elsewhere / "cache" / "backbones" / "smollm2-135m-abc").mkdir(parents=True)
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    assert "tiny-llama" not in out
    assert "downloaded" not in out


@pytest.mark.slow
def test_the_three_commands_run_with_the_default_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _, command in examples(True):
        assert main(shlex.split(command)[1:]) == 0, command


def test_the_commands_are_shown_before_anything_heavy_is_loaded() -> None:
    code = "import sys; from contextlab.cli.main import main; main(['bench']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
