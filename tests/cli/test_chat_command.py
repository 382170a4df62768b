from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contextlab.cli import chat as chat_module
from contextlab.cli.main import main
from contextlab.harness import conversation
from contextlab.harness.conversation import Conversation

TEXT = "The key is red. "
TINY = ("--backbone", "tiny-llama", "--device", "cpu", "--max-new-tokens", "4")


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`chat window` about a book, with these lines on standard input."""
    (tmp_path / "book.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)

    def run(lines: str, *options: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return main(["chat", "window(N=16)", *(options or ("--file", "book.txt")), *TINY])

    return run


def test_every_line_is_answered_until_the_end(
    says: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "ask", lambda _, question: (part for part in ("to ", question, "\x1b")))
    assert says("What?\n\n  Why? \n") == 0
    out, err = capsys.readouterr()
    assert out == "to What?\\x1b\nto Why?\\x1b\n"
    assert err.startswith("15 tokens are read, the state has ")


def test_an_answer_appears_part_by_part(says: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Screen(io.StringIO):
        def flush(self) -> None:
            seen.append(self.getvalue())

    def ask(_: Conversation, question: str) -> Iterator[str]:
        for part in ("a", "b", "c"):
            yield part
            assert seen[-1].endswith(part)

    monkeypatch.setattr(Conversation, "ask", ask)
    monkeypatch.setattr(sys, "stdout", Screen())
    assert says("What?\n") == 0
    assert "abc" in seen[-1]


def test_forgetting_saving_and_loading(
    says: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "parts", lambda _, tokens: (f"{token} " for token in tokens))
    assert says("What?\nWhy?\n/save talk\nWho?\n/forget\nWhat?\nWhy?\n/load talk\nWho?\n/forget\nWho?\n") == 0
    what, why, who, *rest = capsys.readouterr().out.splitlines()
    assert rest == [what, why, who, who]
    assert says("Who?\n", "--load", "talk") == 0
    assert capsys.readouterr().out.splitlines() == [who]


def test_mistakes_and_help_do_not_end_the_conversation(
    says: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert says("/svae x\n/save\n/save book.txt\n/load absent\n/load book.txt\n/forget\n/help\n") == 0
    out, err = capsys.readouterr()
    assert out == ""
    told = err.splitlines()[1:]
    for line, part in zip(
        told,
        (
            "did you mean '/save'",
            "/save needs a file",
            "book.txt exists",
            "absent",
            "book.txt",
            "Only the text",
            "/forget",
        ),
        strict=False,
    ):
        assert part in line
    assert len(told) == 6 + len(chat_module.COMMANDS)
    assert Path("book.txt").read_text() == TEXT


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    says: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []

    def ask(_: Conversation, question: str) -> Iterator[str]:
        try:
            yield question
            if question == "long":
                raise KeyboardInterrupt
        finally:
            closed.append(question)

    monkeypatch.setattr(Conversation, "ask", ask)
    assert says("long\nshort\n") == 0
    assert capsys.readouterr().out == "long\nshort\n"
    assert closed == ["long", "short"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "There is no file absent.txt"),
        ("empty.txt", b"", "empty.txt is empty"),
        ("blank.txt", b" \n\t\n", "blank.txt is empty"),
        ("latin.txt", "caf\xe9".encode("latin-1"), "latin.txt is not UTF-8"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\0\0", "picture.png is not UTF-8"),
        ("zeros.bin", b"\0" * 9, "zeros.bin is no text"),
        ("broken.gz", b"no gz", "broken.gz cannot be read"),
        (".", None, "cannot be read"),
        ("..", None, ".. is a folder, which cannot be read: name a file in it.\n"),
    ],
)
def test_a_file_that_is_no_text_is_one_sentence(
    name: str, content: bytes | None, message: str, says: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert says("What?\n", "--file", name) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_packed_text_is_read(says: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    Path("book.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert says("What?\n", "--file", "book.txt.gz") == 0
    packed = capsys.readouterr().out
    assert says("What?\n") == 0
    assert capsys.readouterr().out == packed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "1"), "--file TEXT, or --load STATE"),
        (("--file", "book.txt", "--load", "x"), "--file TEXT, or --load STATE"),
        (("--load", "absent"), "absent"),
        (("--load", "book.txt"), "book.txt"),
        (("--file", "book.txt", "--temperature", "-1"), "--temperature"),
        (("--file", "book.txt", "--temperature", "nan"), "temperature"),
    ],
)
def test_a_mistake_is_one_sentence(
    options: tuple[str, ...], message: str, says: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert says("What?\n", *options) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_ctrl_d_on_a_terminal_ends_with_code_0(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    (tmp_path / "book.txt").write_text(TEXT)
    controller, terminal = pty.openpty()
    command = ["chat", "window(N=16)", "--file", "book.txt", *TINY]
    code = f"import sys; from contextlab.cli.main import main; sys.exit(main({command!r}))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as chat:
        os.write(controller, b"What?\n\x04")
        out, _ = chat.communicate(timeout=120)
    assert chat.returncode == 0
    assert b"> " in out
