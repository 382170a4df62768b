"""The `contextlab` command."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from contextlab import harmless
from contextlab.cli.bench import bench
from contextlab.cli.chat import chat
from contextlab.cli.check import check
from contextlab.cli.cost import cost
from contextlab.cli.data import app as data
from contextlab.cli.diff import diff
from contextlab.cli.doctor import doctor
from contextlab.cli.examples import print_examples
from contextlab.cli.kernels import app as kernels
from contextlab.cli.length import length
from contextlab.cli.lm_eval import PASSED_ON, lm_eval
from contextlab.cli.ls import ls
from contextlab.cli.new import app as new
from contextlab.cli.page import page
from contextlab.cli.plan import plan
from contextlab.cli.plot import plot
from contextlab.cli.reproduce import reproduce
from contextlab.cli.sweep import sweep
from contextlab.cli.table import table
from contextlab.cli.train import train
from contextlab.cli.verify import verify
from contextlab.errors import UserError
from contextlab.version import __version__

# Plain help takes half the time of coloured help.
app = typer.Typer(
    help="Compare methods that let a language model use more context than it was built for.",
    rich_markup_mode=None,
)
for command in (
    bench, sweep, chat, train, ls, check, table, length, plot, page, cost, plan, diff, reproduce, verify, doctor,
):  # fmt: skip
    app.command()(command)
app.command("lm_eval", context_settings=PASSED_ON)(lm_eval)
app.add_typer(data, name="data")
app.add_typer(kernels, name="kernels")
app.add_typer(new, name="new")

# Typer does not export the base class of its usage errors, which is its own or click's, depending on the version.
UsageError: Any = typer.BadParameter.__mro__[1]

GROUPS = [group.name for group in app.registered_groups]
"""Commands that do nothing without one of their own."""


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; in any position.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Compare methods that let a language model use more context than it was built for."""


def _check_empty(arguments: Sequence[str]) -> None:
    """Refuse empty values: `--out ''` would be the current folder."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        option, equals, value = argument.partition("=")
        if not argument or (option.startswith("--") and equals and not value):
            raise UserError(f"{option or before or 'An argument'} is empty: give it a value, or leave it out.")


def _usage(error: Any) -> str:
    """A wrong use in one sentence, which says where the right one is shown."""
    # Choices are listed on separate lines, and newer versions of typer name the kind of the exception.
    message = " ".join(error.format_message().split()).replace(": Value error, ", ": ")
    command = error.ctx.command_path if error.ctx else "contextlab"
    return message if message.endswith("?") else f"{message.rstrip('.')}: see {command} --help."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for a user's mistake, 130 when interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [argument for argument in words if argument != "--debug"]
    if words == ["--version"]:
        print(__version__)
        return 0
    if words == ["bench"]:
        print_examples()
        return 0
    if not words or (len(words) == 1 and words[0] in GROUPS):
        words.append("--help")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        if words[:1] != ["lm_eval"]:  # whose arguments are another program's
            _check_empty(words)
        code = app(words, prog_name="contextlab", standalone_mode=False)
        sys.stdout.flush()
    except (UserError, UsageError, OSError) as error:
        if debug:
            print(harmless.text(traceback.format_exc()), file=sys.stderr, end="")
        message = _usage(error) if isinstance(error, UsageError) else str(error)
        print(f"contextlab: {harmless.line(message)}", file=sys.stderr)
        if isinstance(error, OSError):
            _discard_output()
        return 2
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        print("contextlab: interrupted; run the same command again to resume.", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _discard_output() -> None:
    """Discard the buffered output that could not be written: the interpreter would try again when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
