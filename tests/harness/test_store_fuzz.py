"""Commands on damaged stores succeed, or name the broken file in one sentence; see `damage` for longer runs."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import damaged, rounds

from contextlab.cli.main import main
from contextlab.harness.store import pack

TOY = Path(__file__).with_name("toy_parts.py")
Command = Callable[[Path], list[str]]


def bench(out: Path, *more: str) -> list[str]:
    return [
        *("bench", "--method", f"{TOY}:Counter", "--task", f"{TOY}:Letters", "--backbone", "tiny-llama"),
        *("--device", "cpu", "--out", str(out), *more),
    ]


COMMANDS: dict[str, Command] = {
    "table": lambda out: ["table", str(out)],
    "baseline": lambda out: ["table", str(out), "--legacy", "--format", "markdown", "--baseline", f"{TOY}:Counter"],
    "html": lambda out: ["table", str(out), "--format", "html", "--columns", "context"],
    "latex": lambda out: ["table", str(out), "--format", "latex", "--rows", "seed"],
    "ls": lambda out: ["ls", "results", "--from", str(out)],
    "resume": lambda out: bench(out, "--limit", "4"),
    "lower": lambda out: bench(out, "--limit", "2"),
    "higher": lambda out: bench(out, "--limit", "5"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("store") / "runs"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(bench(out, "--limit", "4")) == 0
        assert main(bench(out, "--limit", "4", "--context", "none")) == 0
    pack(max(out.iterdir()))
    return out


def spoil(out: Path, draw: random.Random) -> Path:
    """Damage, remove or replace one file of one run."""
    path = draw.choice(sorted(draw.choice(sorted(out.iterdir())).iterdir()))
    content = path.read_bytes()
    kind = draw.random()
    if kind < 0.03:
        path.unlink()
    elif kind < 0.06:
        path.unlink()
        path.mkdir()
    elif kind < 0.08:
        path.unlink()
        path.symlink_to(path.name)
    else:
        path.write_bytes(damaged(content, draw))
    return path


def halve(out: Path) -> None:
    """Cut every file of every run in half: no command can do without all of them."""
    for path in out.glob("*/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_store_gives_a_table_or_one_sentence(name: str, store: Path, tmp_path: Path) -> None:
    tried = refused = 0
    for draw in rounds(12, 1 / len(COMMANDS), name):
        out = tmp_path / "runs"
        shutil.copytree(store, out)
        spoil(out, draw) if tried else halve(out)
        screen, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(errors):
            code = main(COMMANDS[name](out))
        message = errors.getvalue()
        tried += 1
        refused += bool(code)
        assert code in (0, 2), (tried, message)
        assert "\x1b" not in screen.getvalue() + message
        if code:
            assert message.count("\n") == 1, (tried, message)
            assert str(out) in message, (tried, message)
        else:
            assert message == ""
        screen.getvalue().encode()
        shutil.rmtree(out)
        assert refused, "a store whose files were cut in half is refused"
    print(f"{name}: {tried} tried, {refused} refused")
