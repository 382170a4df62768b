"""Resources that all threads of a process share: random generators, standard output, settings of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALONE = threading.RLock()
"""Held by a thread while it uses or changes one of these: an example of a run, a training, loading a model, code of
others. It is taken before the lock of a model (`attention.exclusive`)."""


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Every random generator in the state of a seed, and alone with them; afterwards they are what they were.

    Args:
        seed: 0 or more.
        device: whose generator is meant too; that of the CPU always is.
    """
    import random

    import numpy as np
    import torch

    with ALONE, torch.random.fork_rng([device] if device.startswith("cuda") else []):
        before = random.getstate(), np.random.get_state()
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
