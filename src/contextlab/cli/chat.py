"""`contextlab chat`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab import harmless
from contextlab.cli import announce, warn
from contextlab.cli.complete import method_names
from contextlab.cli.options import BackboneName, Device
from contextlab.errors import UserError, unknown

if TYPE_CHECKING:
    from contextlab.harness.conversation import Conversation

COMMANDS = {
    "/forget": "go back to the text alone",
    "/save FILE": "save the state: the text with the conversation",
    "/load FILE": "go on from a saved state, to which /forget then goes back",
    "/help": "show these commands",
}


def chat(
    method: Annotated[
        str, typer.Argument(help="Such as longmem or 'window(N=512)', as in bench.", autocompletion=method_names)
    ],
    file: Annotated[Path | None, typer.Option(help="Text that questions are about (UTF-8, also .gz).")] = None,
    load: Annotated[Path | None, typer.Option(help="State that /save wrote, instead of a text.")] = None,
    backbone: BackboneName = "smollm2-135m",
    tokens: Annotated[int | None, typer.Option(min=1, help="The most tokens read of the text, its last ones.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the most probable token, otherwise samples.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
) -> None:
    """Read a text once and answer questions about it, a line each, until Ctrl-D; Ctrl-C stops an answer."""
    if (file is None) == (load is None):
        raise UserError("chat is about one text: give --file TEXT, or --load STATE that /save wrote.")
    text = "" if file is None else _text(file)
    announce()

    from contextlab import naming
    from contextlab.harness.conversation import Conversation

    model = naming.load(method, backbone, device, dtype)
    conversation = Conversation(model, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    if load is not None:
        conversation.load(load)
    else:
        conversation.read(text, tokens=tokens, progress=sys.stderr.isatty())
    state = conversation.state
    size = f"{state.nbytes / 2**20:.3g} MiB"
    warn(f"{int(state.length_B):,} tokens are read, the state has {size}. Ask; /help shows commands, Ctrl-D ends.")
    while (line := _line()) is not None:
        with _without_ending():
            _obey(conversation, line)


def _text(path: Path) -> str:
    from contextlab.benchmarks.data.sources import read

    if not path.exists():
        raise UserError(f"There is no file {path}: check the path.")
    if path.is_dir():
        raise UserError(f"{path} is a folder, which cannot be read: name a file in it.")
    text, _ = read(path)
    if "\0" in text:
        raise UserError(f"{path} is no text: give a file of plain text.")
    if not text.strip():
        raise UserError(f"{path} is empty: give a file with a text.")
    return text


def _line() -> str | None:
    """The next line that is no white space; None at the end."""
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  lets `input` edit lines
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            if not terminal:
                raise
            line = ""
            print()
        except UnicodeDecodeError:
            warn("contextlab: That line is not UTF-8: type it again.")
            line = ""
        if line:
            return line


@contextlib.contextmanager
def _without_ending() -> Iterator[None]:
    """A mistake or Ctrl-C ends an answer and not the conversation."""
    try:
        yield
    except UserError as error:
        warn(f"contextlab: {error}")
    except KeyboardInterrupt:
        print()


def _obey(conversation: Conversation, line: str) -> None:
    """Do what a line says: a command, or a question."""
    if not line.startswith("/"):
        _answer(conversation, line)
        return
    name, _, argument = line.partition(" ")
    actions: dict[str, Callable[[Path], None]] = {"/save": conversation.save, "/load": conversation.load}
    if name in actions:
        if not argument.strip():
            raise UserError(f"{name} needs a file: write {name} FILE.")
        actions[name](Path(argument.strip()).expanduser())
        warn(f"{'Saved to' if name == '/save' else 'Loaded'} {argument.strip()}.")
    elif line == "/forget":
        conversation.forget()
        warn("Only the text is left.")
    elif line == "/help":
        for command, about in COMMANDS.items():
            warn(f"{command:<12} {about}")
    else:
        raise unknown("command", name, [command.partition(" ")[0] for command in COMMANDS])


def _answer(conversation: Conversation, question: str) -> None:
    # An answer that Ctrl-C stops must be closed before the next question.
    with contextlib.closing(conversation.ask(question)) as answer:
        for part in answer:
            print(harmless.text(part), end="", flush=True)
    print()
