"""Progress on standard error or in a notebook: what is loading, which run of how many, and the time left."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from contextlab import harmless

T = TypeVar("T")
EVERY = 60.0
"""Seconds between two lines where there is no terminal."""
EVERY_IN_NOTEBOOK = 0.2
"""Seconds between two pictures of the bar of a notebook, which are messages to a browser."""


class Progress:
    """One bar over the examples of all runs, which disappears at the end; or one line a minute, for a pipe or a log.

    Time left is that of all runs, from the speed of the latest examples. Stored examples take no time and do not count.

    Args:
        show: whether to show the bar.
        lines: whether to print the lines, where there is no bar.
    """

    def __init__(self, *, show: bool, lines: bool = False) -> None:
        self._lines, self._said = lines and not show, time.monotonic()
        self._notebook = NotebookBar() if show and in_notebook() else None
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=None),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not show or self._notebook is not None,
        )
        self._runs, self._run = 0, 0
        self._task = self._bar.add_task("", total=None)

    @classmethod
    def on_stderr(cls, show: bool | None) -> Self:
        """Progress as a caller wants it: when None as a bar on a terminal or in a notebook, else as a line a minute."""
        return cls(show=sys.stderr.isatty() or in_notebook() if show is None else show, lines=show is None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if self._notebook is not None:
            self._notebook.show("")

    def loading(self, what: str) -> None:
        """Show what is loading."""
        self._bar.update(self._task, description=f"loading {escape(harmless.line(what))}", refresh=True)
        self._draw()

    def begin(self, runs: int, examples: int) -> None:
        """Set the number of runs, and that of the examples of all of them."""
        self._runs = runs
        self._bar.update(self._task, total=examples, completed=0)

    def examples(self, missing: Sequence[T], stored: int, label: str) -> Iterator[T]:
        """The examples of the next run that have to be computed, one after the other.

        Args:
            missing: examples without a stored result.
            stored: number of examples with one.
            label: of the run.
        """
        self._run += 1
        total = self._bar.tasks[0].total
        description = f"run {self._run} of {self._runs}: {harmless.line(label)}"
        examples_left = None if total is None else total - stored
        self._bar.update(self._task, description=escape(description), total=examples_left, refresh=True)
        self._draw()
        for number, example in enumerate(missing, start=1):
            yield example
            self._bar.advance(self._task)
            self._draw(at_most_every=EVERY_IN_NOTEBOOK)
            self._say(f"{description}, {number} of {len(missing)} examples")

    def _say(self, line: str) -> None:
        """Print a line on standard error, where lines are wanted and the last one is a minute old."""
        if self._lines and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            print(f"contextlab: {line}", file=sys.stderr, flush=True)

    def _draw(self, at_most_every: float = 0.0) -> None:
        """Show the bar in a notebook, if this runs in one."""
        if self._notebook is not None:
            (task,) = self._bar.tasks
            time_left = "" if task.time_remaining is None else f", {task.time_remaining:.0f} s left"
            done = "" if task.total is None else f": {task.completed:.0f} of {task.total:.0f}{time_left}"
            value = "" if task.total is None else f' value="{task.completed:.0f}" max="{task.total:.0f}"'
            words = html.escape(f"{Text.from_markup(task.description)}{done}")
            self._notebook.show(f"<progress{value}></progress> {words}", at_most_every)


class NotebookBar:
    """HTML in the output of a notebook's cell that replaces what it showed before.

    Rich's own bar needs ipywidgets there, and shows nothing without them.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = float("-inf")

    def show(self, content: str, at_most_every: float = 0.0) -> None:
        """Show this instead, unless the last change is younger than so many seconds."""
        from IPython.display import HTML, display

        if time.monotonic() - self._shown < at_most_every:
            return
        self._shown = time.monotonic()
        if self._handle is None:
            self._handle = display(HTML(content), display_id=True)
        else:
            self._handle.update(HTML(content))


def in_notebook() -> bool:
    """Whether the output goes to a notebook."""
    shell = sys.modules.get("IPython")
    kernel = shell.get_ipython() if shell is not None else None
    return kernel is not None and hasattr(kernel, "kernel")
