from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from contextlab.benchmarks.data import catalogue, generated, pg22_build
from contextlab.benchmarks.data.data_set import DataSet, Remote
from contextlab.benchmarks.tasks.ruler import Ruler, RulerConfig
from contextlab.cli.main import main

Captured = pytest.CaptureFixture[str]
ARTICLE = " = Lobster = \n \n A <unk> one . \n \n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    return tmp_path / "cache"


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def answer(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["data", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", ["", "ls", "fetch", "check", "build"])
def test_help_comes_before_anything_heavy(command: str) -> None:
    code = f"""
import sys
from contextlab.cli.main import main
code = main(["data", *{command.split()!r}, "--help"])
assert not {{"torch", "numpy", "huggingface_hub", "urllib.request"}} & set(sys.modules)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"contextlab data {command}".strip() in done.stdout


def test_ls_shows_all_fields_and_missing_digests(capsys: Captured) -> None:
    code, out, _ = answer(capsys, "ls")
    assert code == 0
    for entry in catalogue.ENTRIES:
        assert all(part in out for part in (entry.name, entry.source, entry.licence, entry.size))
    assert "sha256 not pinned" in out
    assert "e640e37cf4317cd09fc02a4cd57ef130a185f23635f4003b0cee341ffcb45e60" in out
    code, out, _ = answer(capsys, "ls", "--json")
    listed = [json.loads(line) for line in out.splitlines()]
    assert [entry["name"] for entry in listed] == list(catalogue.SETS)


def test_fetched_files_are_used_by_bench_and_checked(
    tmp_path: Path, cache: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    remotes = tuple(Remote(f"wikitext-2/{name}.txt", "https://x.invalid/") for name in ("valid", "test"))
    entry = DataSet("wikitext", "a", "b", "c", "d", tuple(r.path for r in remotes), ("wikitext", "unknown"), remotes)
    monkeypatch.setitem(catalogue.SETS, "wikitext", entry)
    mirror = put(tmp_path / "mirror", {f"wikitext/{remote.path}": ARTICLE for remote in remotes})
    code, out, err = answer(capsys, "fetch", "wikitext")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot be reached (HF_HUB_OFFLINE is set)" in err
    code, out, _ = answer(capsys, "fetch", "wikitext", "--mirror", str(mirror), "--json")
    assert [json.loads(line)["path"] for line in out.splitlines()] == [remote.path for remote in remotes]
    code, out, _ = answer(capsys, "fetch", "wikitext", "--mirror", str(mirror))
    assert f"Stored below {cache / 'data' / 'wikitext'}." in out
    code, out, _ = answer(capsys, "check", "wikitext")
    assert (code, out.split()[:2]) == (0, ["wikitext", "intact"])
    assert "2 verified; your own data in the layout of WikiText-2" in out
    placed = cache / "data/wikitext/wikitext-2/test.txt"
    placed.unlink()
    placed.write_text("changed")
    code, out, _ = answer(capsys, "check", "wikitext")
    assert (code, out.split()[1]) == (1, "broken")


def test_one_broken_set_is_enough_to_fail(tmp_path: Path, capsys: Captured) -> None:
    put(tmp_path, {"latex_papers/a.tex": "x", "wikitext/wikitext-2/test.txt": "no title"})
    code, out, _ = answer(capsys, "check", "--data", str(tmp_path), "--json")
    states = {report["name"]: report["state"] for report in map(json.loads, out.splitlines())}
    assert (code, states["wikitext"], states["pg22"]) == (1, "broken", "absent")
    shutil.rmtree(tmp_path / "wikitext")
    assert answer(capsys, "check", "--data", str(tmp_path))[0] == 0


def test_what_a_loader_refuses_is_broken(tmp_path: Path, capsys: Captured) -> None:
    put(tmp_path, {"pg22/books.jsonl": '{"id": "pg1"}\n', "pg22/texts/1.txt": "text"})
    code, out, _ = answer(capsys, "check", "pg22", "--data", str(tmp_path))
    assert (code, out.split()[:2]) == (1, ["pg22", "broken"])
    assert "Line 1 of" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch", "sqad"], "did you mean 'squad'"),
        (["fetch", "pg22"], "instead: contextlab data build pg22"),
        (["fetch", "squad", "--mirror", "/nowhere"], "There is no folder /nowhere"),
        (["check", "nothing"], "There is no data set 'nothing'"),
        (["check", "--data", "/nowhere"], "There is no folder /nowhere"),
        (["build", "pg19"], "There is no data set that can be built 'pg19': did you mean 'pg22'"),
        (["build", "pg22"], "run `contextlab data fetch pg19`, or give --pg19"),
        (["build", "pg22", "--mirror", "https://www.gutenberg.org"], "asks robots not to read"),
        (["build", "pg22", "--limit", "0"], "--limit"),
        (["bild"], "bild"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: Captured, cache: Path
) -> None:
    code, out, err = answer(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not any(path.is_file() for path in cache.rglob("*"))


def test_build_draws_a_set_that_check_verifies(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg22_build, "RANGES", {"S2": 5})
    header = "Text#,Type,Issued,Title,Language,Authors,Subjects,LoCC,Bookshelves\n"
    rows = "".join(f"{n},Text,2021-01-01,Title {n},en,,,,\n" for n in (61001, 61002, 61003))
    book = "*** START OF THE PROJECT GUTENBERG EBOOK ***\n{} a b c d e\n*** END OF THE PROJECT GUTENBERG EBOOK ***\n"
    files = {f"cache/epub/{n}/pg{n}.txt": book.format(n) for n in (61001, 61002, 61003)}
    put(tmp_path / "mirror", {"pg_catalog.csv": header + rows, **files})
    put(tmp_path, {"pg19.csv": "61003,x,1900,u\n"})
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    options = [f"--{name}={tmp_path / file}" for name, file in (("mirror", "mirror"), ("pg19", "pg19.csv"))]
    options += [f"--tokenizer={tmp_path / 'tokenizer.json'}", f"--out={tmp_path / 'data'}"]
    code, out, err = answer(capsys, "build", "pg22", *options, "--json")
    manifest: dict[str, Any] = json.loads(out)
    assert (code, err, manifest["books"], manifest["buckets"]) == (0, "", 2, {"S2": 2})
    code, out, _ = answer(capsys, "build", "pg22", *options)
    assert f"2 books below {tmp_path / 'data' / 'pg22'}: 2 S2." in out
    assert manifest["sha256"] in out
    code, out, _ = answer(capsys, "check", "pg22", "--data", str(tmp_path / "data"))
    assert (code, out.split()[1]) == (0, "intact")
    text = tmp_path / "data/pg22/texts/61001.txt.gz"
    text.write_bytes(gzip.compress(b"another"))
    code, out, _ = answer(capsys, "check", "pg22", "--data", str(tmp_path / "data"))
    assert (code, out.split()[1]) == (1, "broken")
    assert str(text) in out


def test_generated_files_are_compared_with_their_digests(cache: Path, capsys: Captured) -> None:
    Ruler(RulerConfig(tokens=512, samples=1)).load("vt", None)
    (path,) = generated.folder().iterdir()
    code, out, _ = answer(capsys, "check")
    expected = f"generated        intact      ruler/vt, tokens=512, samples=1, seed=42; {path.name}"
    assert (code, out.splitlines()[-1]) == (0, expected)
    path.write_bytes(b"damaged")
    code, out, _ = answer(capsys, "check")
    assert (code, out.splitlines()[-2]) == (1, f"generated        broken      {path.name}")
    assert "delete the file, and it is made again" in out.splitlines()[-1]
    code, out, _ = answer(capsys, "check", "--json")
    report = json.loads(out.splitlines()[-1])
    assert (code, report["name"], report["state"], report["path"]) == (1, "generated", "broken", str(path))
    assert answer(capsys, "check", "wikitext")[0] == 0
