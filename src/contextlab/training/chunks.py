"""The objectives of GenerativeAdapter's paper: reconstruction of what was read, and completion of it (section 3.3).

A row of a batch is a separate context: n chunks, which are read one after the other into an empty memory. Completion
probe i is chunk i after the memory of the chunks before it. Reconstruction probe i holds tokens of chunks 0 to i, which
are predicted from their memory with an empty local context. The first token of a probe is predicted from nothing and
counts nowhere, as in the released code; the first chunk, in front of which there is no memory, is no completion probe.

Legend: B rows, T tokens of a batch, c tokens of a chunk.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
import torch
from torch import Tensor

from contextlab.config import Config
from contextlab.errors import UserError
from contextlab.method import State
from contextlab.training.objectives import Outcome
from contextlab.training.probes import Loss, Probe, ProbeConfig, ProbeObjective, segment_of
from contextlab.training.streams import Batch


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ReconstructionConfig(ProbeConfig):
    """Settings of reconstruction; `reconstruction(completion=1,targets=random)` is the released code's mixture.

    Attributes:
        reconstruction: weight of a token in a reconstruction probe.
        completion: weight of a token in a completion probe.
        targets: of reconstruction probe i: `chunk`, one of the chunks 0 to i; `random`, at most a chunk's tokens from
            anywhere in them to their end at most, as in the released code.
    """

    reconstruction: pydantic.NonNegativeFloat = 1.0
    completion: pydantic.NonNegativeFloat = 0.0
    targets: Literal["chunk", "random"] = "chunk"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class CompletionConfig(ReconstructionConfig):
    """Settings of completion, those of reconstruction with other weights."""

    reconstruction: pydantic.NonNegativeFloat = 0.0
    completion: pydantic.NonNegativeFloat = 1.0


class Reconstruction(ProbeObjective):
    """- log P of chunks, each predicted from the memory alone of chunks that it is one of, or that end before it."""

    Config: ClassVar[type[Config]] = ReconstructionConfig

    def check(self, segment: int) -> None:
        """Refuse segments in which no probe counts.

        Raises:
            UserError: saying how long they must be.
        """
        if not self.config.reconstruction and not self.config.completion:
            raise UserError("Neither reconstruction nor completion has a weight: give one of them a weight above 0.")
        chunks = 1 if self.config.reconstruction else 2
        least = chunks * segment_of(self.method)
        if segment < least:
            raise UserError(
                f"A segment of {segment} tokens holds fewer than {chunks} of the method's chunks: use --segment "
                f"{least} or more."
            )

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from the rows that have as many whole chunks as the longest."""
        length = segment_of(self.method)
        chunks = int(batch.lengths_B.max()) // length
        tokens_BT = batch.tokens_BT[batch.lengths_B >= chunks * length, : chunks * length]
        losses = list[tuple[float, Loss]]()
        memory = self.method.start(len(tokens_BT))
        for end in range(length, chunks * length + 1, length):
            chunk_Bc, before_BT = tokens_BT[:, end - length : end], tokens_BT[:, : end - length]
            if self.config.completion and before_BT.numel():
                memory, loss = self.probe(memory, _probe(chunk_Bc, before_BT))
                losses.append((self.config.completion, loss))
            else:
                memory = self.method.learn_context(memory, chunk_Bc)
            if self.config.reconstruction:
                _, loss = self.probe(self.method.memory_alone(memory), self._again(tokens_BT[:, :end], length))
                losses.append((self.config.reconstruction, loss))
        return self.outcome(losses, batch)

    def _again(self, read_BT: Tensor, length: int) -> Probe:
        """A probe with tokens of what was read, drawn for every row."""
        rows, read = read_BT.shape
        if self.config.targets == "random":
            begin_B = torch.randint(max(read - 1, 1), (rows,))
        else:
            begin_B = length * torch.randint(read // length, (rows,))
        index_Bc = (begin_B[:, None] + torch.arange(length)).clamp(max=read - 1)
        tokens_Bc = read_BT.gather(1, index_Bc.to(read_BT.device))
        return _probe(tokens_Bc, read_BT, (read - begin_B).clamp(max=length))


class Completion(Reconstruction):
    """- log P of every chunk, given the memory of the chunks before it."""

    Config: ClassVar[type[Config]] = CompletionConfig


def _probe(tokens_Bc: Tensor, context_BT: Tensor, lengths_B: Tensor | None = None) -> Probe:
    """A probe of which all real tokens but the first count."""
    whole_B = torch.full((len(tokens_Bc),), tokens_Bc.shape[1])
    lengths_B = whole_B if lengths_B is None else lengths_B
    steps_c = torch.arange(tokens_Bc.shape[1])
    counted_Bc = ((steps_c > 0) & (steps_c < lengths_B[:, None])).to(tokens_Bc.device)
    return Probe(tokens_Bc, lengths_B, counted_Bc, context_BT, torch.full_like(whole_B, context_BT.shape[1]))
