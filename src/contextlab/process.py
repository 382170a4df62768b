"""Resources that all threads of a process share: random generators, standard output, settings of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ALONE = threading.RLock()
"""Held by a thread while it uses or changes one of these: an example of a run, a training, loading a model, code of
others. It is taken before the lock of a model (`attention.exclusive`)."""


class RandomTurns:
    """Random numbers of a task that takes turns with others: it draws what it would draw without them.

    Args:
        seed: 0 or more.
        device: whose generator is meant too; that of the CPU always is.
    """

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self._seed, self._device = seed, device
        self._left: tuple[Any, ...] | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Every random generator in the state in which the last turn left it; see `seeded`."""
        with seeded(self._seed, self._device):
            if self._left is not None:
                _set_generators(self._left, self._device)
            yield
            self._left = generators(self._device)


def generators(device: str = "cpu") -> tuple[Any, ...]:
    """The state of every random generator; equal where nothing has been drawn in between."""
    import random

    import numpy as np
    import torch

    of_numpy: Any = np.random.get_state()
    name, keys, *rest = of_numpy
    of_torch = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.startswith("cuda") else [])]
    return random.getstate(), (name, keys.tobytes(), *rest), *(state.numpy().tobytes() for state in of_torch)


def _set_generators(state: tuple[Any, ...], device: str) -> None:
    import random

    import numpy as np
    import torch

    of_python, (name, keys, *rest), *of_torch = state
    random.setstate(of_python)
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))
    of_cpu, *of_device = (torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in of_torch)
    torch.set_rng_state(of_cpu)
    for part in of_device:
        torch.cuda.set_rng_state(part, device)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for that is not there."""
    import torch

    exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return exhausted or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


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
