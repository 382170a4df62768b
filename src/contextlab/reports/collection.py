"""Pauses Python's garbage collector while stored runs are read and put into tables.

They are many small objects without circles: looking for circles among them takes half of the time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage inside, in any thread; afterwards the collector is as it was before.

    Of threads inside at the same time, all that found it enabled enable it, and others leave it: it ends enabled.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
