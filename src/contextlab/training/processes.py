"""One process, or several that `accelerate launch` or torchrun started, each with its own rows.

`learn` is no forward pass of a module, so that wrappers which reduce gradients in hooks do not see it: gradients of
what is learned are added up here, by hand. Nor could a pass gather weights from all processes (FSDP): how many passes a
batch takes depends on where the documents of its rows end, and a process with fewer of them would be waited for without
end. What is dealt over the processes is what is needed between passes alone: the moments of the optimiser (ZeRO,
stage 1), half of the memory of training all weights.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

BUCKET = 2**24
"""Numbers that are exchanged at one time: 128 MiB in float64."""


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
        """The sums over all processes, in few exchanges."""
        if self.count == 1:
            return list(tensors)
        from accelerate.utils import reduce

        sums: list[Tensor] = []
        for bucket in buckets(tensors):
            flat = torch.cat([tensor.detach().reshape(-1).to(self.device, torch.float64) for tensor in bucket])
            parts = reduce(flat, "sum").split([tensor.numel() for tensor in bucket])
            sums += [part.view_as(own).to(own) for part, own in zip(parts, bucket, strict=True)]
        return sums

    def owners(self, tensors: Sequence[Tensor]) -> list[int]:
        """The process that keeps the moments of each: the largest first, each to the process that has least."""
        elements = [0] * self.count
        owners = [0] * len(tensors)
        for number in sorted(range(len(tensors)), key=lambda index: -tensors[index].numel()):
            owners[number] = elements.index(min(elements))
            elements[owners[number]] += tensors[number].numel()
        return owners

    @torch.no_grad()
    def spread(self, tensors: Sequence[Tensor], owners: Sequence[int]) -> None:
        """Give all processes the values that each tensor has in the process which owns it."""
        if self.count > 1:
            for tensor, owner in zip(tensors, owners, strict=True):
                torch.distributed.broadcast(tensor, owner)


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors, together no more numbers than are exchanged at one time where one tensor is not more."""
    bucket: list[Tensor] = []
    elements = 0
    for tensor in tensors:
        if bucket and elements + tensor.numel() > BUCKET:
            yield bucket
            bucket, elements = [], 0
        bucket.append(tensor)
        elements += tensor.numel()
    if bucket:
        yield bucket
