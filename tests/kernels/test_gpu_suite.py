from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUITE = Path(__file__).parents[2] / "benches" / "gpu_suite.py"


@pytest.fixture(scope="module")
def suite() -> Iterator[Any]:
    sys.path.insert(0, str(SUITE.parent))
    spec = importlib.util.spec_from_file_location("gpu_suite", SUITE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SUITE.parent))


def test_every_section_runs_at_toy_sizes_and_only_once(
    suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py", "--out", str(tmp_path), "--toy"])
    suite.main()
    stored = {path.stem: path.read_text() for path in tmp_path.glob("*.json")}
    assert set(stored) == set(suite.SECTIONS)
    assert all(json.loads(text)["toy"] for text in stored.values())
    (tmp_path / "hso.json").unlink()
    suite.main()
    for name, text in stored.items():
        assert name == "hso" or (tmp_path / f"{name}.json").read_text() == text
    page = (tmp_path / "summary.md").read_text()
    assert page.count("Toy sizes: no measurement.") == len(suite.SECTIONS)
    assert all(f"## {name}" in page for name in suite.SECTIONS)
    assert "tokens_per_second" in page


def test_a_section_that_fails_leaves_nothing(suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(toy: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setitem(suite.SECTIONS, "hso", broken)
    with pytest.raises(RuntimeError, match="no"):
        suite.run(tmp_path, ["hso"], toy=True)
    assert not list(tmp_path.iterdir())


def test_mistakes_are_one_sentence(
    suite: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, sentence in (
        (["--section", "kernel"], "there is no section 'kernel': choose from tests, kernels, longmem, evalm, hso"),
        ([], "there is no GPU that torch can use here: add --toy"),
    ):
        if not arguments and suite.DEVICE.type == "cuda":
            continue
        monkeypatch.setattr(sys, "argv", ["gpu_suite.py", "--out", str(tmp_path), *arguments])
        with pytest.raises(SystemExit):
            suite.main()
        assert sentence in capsys.readouterr().err
