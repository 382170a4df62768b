"""Code of others: files of a user that are imported by path, and a guard around whatever they do."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from contextlab import process
from contextlab.errors import UserError, unknown


@contextlib.contextmanager
def foreign(what: str, advice: str) -> Iterator[None]:
    """Run code of others: whatever it raises is one sentence, and what it prints is no output of ours.

    Args:
        what: has failed, as the sentence begins.
        advice: how it ends.

    Raises:
        UserError: when the code raises anything, the end of the process included, but for an interrupt.
    """
    try:
        # Standard output is that of all threads.
        with process.ALONE, contextlib.redirect_stdout(sys.stderr):
            yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        message = str(error).strip().partition("\n")[0]
        reason = message if isinstance(error, UserError) else f"{type(error).__name__}: {message}".removesuffix(": ")
        raise UserError(f"{what} ({reason}): {advice}.") from error


def attribute(kind: str, name: str, what: str = "Class") -> Any:
    """What a user's file calls a name.

    Args:
        kind: of thing it stands for, in errors.
        name: `path.py:NAME`.
        what: NAME is the name of, in errors.

    Raises:
        UserError: when there is no such file or name, or the file cannot be imported.
    """
    path, separator, member = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise UserError(f"'{name}' names no {what.lower()}: write path.py:{what} for a {kind} in a file of your own.")
    if not Path(path).is_file():
        raise UserError(f"There is no file {path}: give the path of the file that holds the {kind} {member}.")
    module = _module(Path(path).resolve())
    if not hasattr(module, member):
        raise unknown(f"{kind} in {path}", member, _defined(module, classes=what == "Class"))
    return getattr(module, member)


def _defined(module: ModuleType, *, classes: bool) -> list[str]:
    """The classes or functions that a module defines, without those that it imports."""
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return [name for name, value in own.items() if callable(value) and isinstance(value, type) == classes]


def _module(path: Path) -> ModuleType:
    # The folder is part of the name, so that two files of one name stay apart.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with foreign(f"{path} cannot be imported", "mend it, or set PYTHONPATH to the folder that it imports from"):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
