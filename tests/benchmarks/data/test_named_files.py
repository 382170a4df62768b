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


def test_endings_are_compared_without_case(tmp_path: Path) -> None:
    for name in ("a.csv", "B.CSV", "c.Csv.GZ", "d.txt"):
        (tmp_path / name).write_text("question,answer\n")
    named = named_files(tmp_path, (".csv", ".csv.gz"), "file")
    assert (list(named.files), named.left_out) == (["B.CSV", "a.csv", "c.Csv.GZ"], ("d.txt",))


def test_links_that_lead_to_no_file_are_left_out_and_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.csv").write_text("question,answer\n")
    (tmp_path / "folder" / "dead.csv").symlink_to("nowhere")
    (tmp_path / "folder" / ".hidden.csv").symlink_to("nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "folder" / "other").symlink_to(tmp_path / "other")
    named = named_files(tmp_path / "folder", (".csv",), "file")
    assert (list(named.files), named.left_out) == (["a.csv"], ("dead.csv", "other"))


def test_a_file_of_another_kind_is_refused_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "noext").write_text("text")
    with pytest.raises(UserError, match=r"/noext has no known ending: save it as \.txt, \.md\.$"):
        named_files(tmp_path / "noext", (".txt", ".md"), "file")
    with pytest.raises(UserError, match=r" holds no such files: give files that end in \.txt, \.md\.$"):
        named_files(tmp_path, (".txt", ".md"), "file")


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
