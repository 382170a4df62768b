"""A method whose process dies once, when a file says so."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from contextlab.methods.window import Window

READS = 4
"""Two to warm up, one of each example: it dies when one is stored, in the next one."""


class Mortal(Window):
    """A window; in the middle of a run the first process that removes the file `TOY_DEATH` ends by signal 9."""

    reads = 0

    def read(self, *arguments: Any, **options: Any) -> Any:
        Mortal.reads += 1
        if Mortal.reads >= READS and "TOY_DEATH" in os.environ:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.environ["TOY_DEATH"])
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read(*arguments, **options)
