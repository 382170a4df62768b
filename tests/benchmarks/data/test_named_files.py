from __future__ import annotations

from pathlib import Path

import pytest

from contextlab.benchmarks.data.named_files import named_files
from contextlab.errors import UserError


def test_what_is_hidden_in_a_folder_is_no_data(tmp_path: Path) -> None:
    for name in ("a.csv", "deep/b.csv", ".checkpoints/a.csv", ".c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("question,answer\n")
    assert list(named_files(tmp_path, (".csv",), "file").files) == ["a.csv", "deep/b.csv"]


def test_a_folder_with_something_that_may_not_be_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden.csv"
    (tmp_path / "open.csv").write_text("question,answer\n")
    hidden.write_text("question,answer\n")
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    with pytest.raises(UserError, match=r"hidden\.csv cannot be read \(Permission denied\): give an intact file"):
        named_files(tmp_path, (".csv",), "file")
