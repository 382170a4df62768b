from __future__ import annotations

import io
import itertools
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from contextlab.harness import progress
from contextlab.harness.progress import Progress


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=file, force_terminal=True, width=100))
    return file


def test_what_is_loading_and_which_run_of_how_many_is_shown(screen: io.StringIO) -> None:
    with Progress(show=True) as bar:
        bar.loading("smollm2-135m")
        bar.begin(2, 7)
        assert list(bar.examples([4, 5], 2, "window on [red]pg22\x1b (own)")) == [4, 5]
        assert list(bar.examples([1, 2, 3], 0, "full on pg22 (own)")) == [1, 2, 3]
    out = screen.getvalue()
    steps = [
        out.index(text) for text in ("loading smollm2-135m", "run 1 of 2: window on [red]pg22", "run 2 of 2: full")
    ]
    assert steps == sorted(steps)
    assert r"pg22\x1b (own)" in out
    assert "5/5" in out


def test_without_a_terminal_nothing_is_shown(screen: io.StringIO) -> None:
    with Progress(show=False) as bar:
        bar.loading("smollm2-135m")
        bar.begin(1, 3)
        assert list(bar.examples([1, 2, 3], 0, "window")) == [1, 2, 3]
    assert screen.getvalue() == ""


def test_a_pipe_gets_one_line_a_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = itertools.count(0.0, 25.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with Progress(show=False, lines=True) as bar:
        bar.begin(1, 6)
        list(bar.examples(range(6), 0, "window on pg22\x1b (own)"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [rf"contextlab: run 1 of 1: window on pg22\x1b (own), {number} of 6 examples" for number in (3, 6)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=5))
def test_stored_examples_do_not_count(runs: list[tuple[int, int]]) -> None:
    """At the end all examples that had to be computed are done, whatever was stored."""
    bar = Progress(show=False)
    bar.begin(len(runs), sum(map(sum, runs)))
    for missing, stored in runs:
        list(itertools.islice(bar.examples(range(missing), stored, "x"), missing + 1))
    (task,) = bar._bar.tasks
    assert (task.completed, task.total) == (sum(missing for missing, _ in runs),) * 2


class Handle:
    """The place of an output in a notebook that was displayed once."""

    def __init__(self, shown: list[str]) -> None:
        self.shown = shown

    def update(self, content: str) -> None:
        self.shown.append(content)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that IPython was told to display, in an environment that looks like a kernel."""
    shown: list[str] = []
    shell, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda content, display_id: shown.append(content) or Handle(shown)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_notebook_shows_one_bar_that_disappears(
    notebook: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY_IN_NOTEBOOK", 0.0)
    with Progress.on_stderr(None) as bar:
        bar.loading("smollm2-135m")
        bar.begin(1, 2)
        assert list(bar.examples([1, 2], 0, "window on [red]<b>\x1b")) == [1, 2]
    assert notebook[0] == "<progress></progress> loading smollm2-135m"
    assert any('value="1" max="2"' in html and "[red]&lt;b&gt;\\x1b: 1 of 2" in html for html in notebook)
    assert notebook[-1] == ""
    assert capsys.readouterr() == ("", "")


def test_a_notebook_shows_no_bar_where_none_is_wanted(notebook: list[str]) -> None:
    with Progress.on_stderr(False) as bar:
        bar.loading("smollm2-135m")
    assert notebook == []


def test_a_notebooks_bar_is_drawn_at_most_a_few_times_a_second(notebook: list[str]) -> None:
    with Progress.on_stderr(None) as bar:
        bar.begin(1, 10**4)
        list(bar.examples(range(10**4), 0, "window"))
    assert len(notebook) < 1000
