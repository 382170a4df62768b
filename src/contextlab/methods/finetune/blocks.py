"""A context as blocks that are learned from: which tokens each holds, and which of them are predicted.

Legend: M tokens of the context, T tokens of a block with the one after it, t of them that may be predicted.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.errors import UserError


@dataclasses.dataclass(frozen=True)
class ColdBlock:
    """Tokens that are read from a cold start, and which are learned.

    Attributes:
        tokens_1T: those that are read, and the one after them.
        scored_t: bool, which tokens after the first one are predicted.
    """

    tokens_1T: Tensor
    scored_t: Tensor

    @property
    def count(self) -> int:
        """Tokens that are learned."""
        return int(self.scored_t.sum())


def blocks_of(tokens_1M: Tensor, scored_M: Tensor, length: int) -> list[ColdBlock]:
    """Blocks of so many tokens, each with the token after it, so that all but the context's first are predicted.

    Args:
        tokens_1M: the context.
        scored_M: bool, which of its tokens are learned; blocks without any are left out.
        length: of a block.
    """
    count = tokens_1M.shape[1]
    blocks = (
        ColdBlock(tokens_1M[:, begin : begin + length + 1], scored_M[begin + 1 : begin + length + 1])
        for begin in range(0, count - 1, length)
    )
    return [block for block in blocks if block.count]


def divided(blocks: Sequence[ColdBlock], share: float, draw: random.Random) -> tuple[list[ColdBlock], list[ColdBlock]]:
    """Blocks to learn from, and those held back: the nearest whole number to the share, but never all."""
    held_back = draw.sample(range(len(blocks)), min(round(share * len(blocks)), max(len(blocks) - 1, 0)))
    return (
        [block for number, block in enumerate(blocks) if number not in held_back],
        [block for number, block in enumerate(blocks) if number in held_back],
    )


def answers(backbone: Backbone, tokens_1M: Tensor, before: str) -> Tensor:
    """`scored_M`: the tokens of answers, which stand after the text `before` and end with their line.

    Raises:
        UserError: when there is no such text.
    """
    pieces = [backbone.decode([token]) for token in tokens_1M[0].tolist()]
    scored = in_answers(pieces, before)
    if not any(scored):
        raise UserError(
            f"No answer after the text {before!r} is in this context: name the text in front of its answers in "
            "answer=, or use form=cpt."
        )
    return torch.tensor(scored, device=tokens_1M.device)


def in_answers(pieces: Sequence[str], before: str) -> list[bool]:
    """Which pieces of a text begin inside of an answer."""
    text = "".join(pieces)
    spans = []
    at = text.find(before)
    while at >= 0:
        begin = at + len(before)
        end = text.find("\n", begin)
        spans.append((begin, len(text) if end < 0 else end))
        at = text.find(before, begin)
    marks, begin = [], 0
    for piece in pieces:
        marks.append(any(first <= begin < last for first, last in spans))
        begin += len(piece)
    return marks
