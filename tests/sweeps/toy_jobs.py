"""Small jobs, in a module that workers import quickly."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from contextlab.errors import UserError


def double(number: int) -> int:
    return 2 * number


def refuse() -> None:
    raise UserError("Choose another one.")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("some reason")


def sleep(path: Path) -> None:
    path.write_text(str(os.getpid()))
    time.sleep(600)
