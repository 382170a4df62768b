"""One process, or several that `accelerate launch` or torchrun started, each with rows of its own.

`learn` is no forward pass of a module, so that wrappers which reduce gradients in hooks do not see it: gradients of
what is learned are added up here, by hand. The backbone is frozen and whole in every process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor


class Processes:
    """The processes of a run.

    Attributes:
        count: how many.
        rank: number of this one.
        device: of this process, where a launcher has set one.
    """

    def __init__(self) -> None:
        self.count, self.rank, self.device = 1, 0, None
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=not torch.cuda.is_available())
            self.count, self.rank = self._state.num_processes, self._state.process_index
            self.device = str(self._state.device)

    device: str | None

    @property
    def first(self) -> bool:
        """Whether this one writes what there is once."""
        return self.rank == 0

    def wait(self) -> None:
        """Until all have come here."""
        if self.count > 1:
            self._state.wait_for_everyone()

    def add(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums over all processes, in one exchange."""
        if self.count == 1:
            return list(tensors)
        from accelerate.utils import reduce

        flat = torch.cat([tensor.detach().reshape(-1).to(self.device, torch.float64) for tensor in tensors])
        total: Tensor = reduce(flat, "sum")
        parts = total.split([tensor.numel() for tensor in tensors])
        return [part.view_as(own).to(own) for part, own in zip(parts, tensors, strict=True)]
