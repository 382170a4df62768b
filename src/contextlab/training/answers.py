"""Instruction tuning (section 3.3 of GenerativeAdapter's paper): answers, from the memory alone of a context.

A document is a context, and prompts with their answers after it. The context becomes a memory, the rest is predicted
from it with an empty local context, and the answers alone count.

Legend: B rows, P tokens of the contexts, T tokens of what follows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.method import State
from contextlab.training.objectives import Outcome
from contextlab.training.probes import Probe, ProbeObjective
from contextlab.training.streams import Batch


class Answers(ProbeObjective):
    """- log P of the answers of a document, given the memory of its context."""

    def check(self, segment: int) -> None:
        """Refuse documents without answers, and documents that are longer than a segment.

        Raises:
            UserError: saying what to give instead.
        """
        documents = [self.corpus.documents[n] for n in self.corpus.training]
        plain = next((document.name for document in documents if not document.answers), None)
        if plain is not None:
            raise UserError(
                f"{plain} of {self.corpus.name} has no answers: give lines with a context, a prompt and an answer, or "
                "use --objective lm."
            )
        longest = max(document.tokens for document in documents)
        if longest > segment:
            raise UserError(
                f"The longest document of {self.corpus.name} has {longest} tokens and a segment has {segment}: use "
                f"--segment {longest}."
            )

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from whole documents."""
        context_B = batch.context_B
        assert context_B is not None
        context_BP = batch.tokens_BT[:, : int(context_B.max())]
        memory = self.method.learn_context(self.method.start(len(context_B)), context_BP, context_B)
        lengths_B = batch.lengths_B - context_B
        steps_T, device = torch.arange(int(lengths_B.max())), batch.tokens_BT.device
        index_BT = (context_B[:, None] + steps_T).clamp(max=batch.tokens_BT.shape[1] - 1).to(device)
        counted_BT = _at(batch.counted_BT, index_BT) & (steps_T < lengths_B[:, None]).to(device)
        probe = Probe(_at(batch.tokens_BT, index_BT), lengths_B, counted_BT, context_BP, context_B)
        _, loss = self.probe(self.method.memory_alone(memory), probe)
        return self.outcome([(1.0, loss)], batch)


def _at(values_BT: Tensor, index_BT: Tensor) -> Tensor:
    return values_BT.gather(1, index_BT)
