"""Documents side by side: consecutive segments of a document in consecutive batches (LongMem, Fig. 3).

Documents are dealt to rows in groups of about equal length and shuffled inside their group. A row whose document ends
begins the next one alone; segments never hold two documents.

Legend: B rows, T tokens of a segment.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.method import pad
from contextlab.training.corpus import Corpus

Position = tuple[int, int, int]
"""Of a row: the pass through its documents, the index of the document in the order of this pass, tokens read of it."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """One segment of every row.

    Attributes:
        tokens_BT: right-padded where a document ends.
        lengths_B: tokens that count.
        fresh_B: whether a row begins a document.
        documents: of every row.
        begins: of the segment in its document, in tokens, by row.
    """

    tokens_BT: Tensor
    lengths_B: Tensor
    fresh_B: Tensor
    documents: tuple[int, ...]
    begins: tuple[int, ...]


class Streams:
    """Where every row is in its documents.

    Args:
        corpus: of the documents.
        documents: that are read.
        rows: of all processes.
        segment: the most tokens of a segment.
        seed: of the order of the documents.
        mine: rows of this process; all of them when None.
        device: of the batches.

    Attributes:
        position: by row of this process; may be set to where an earlier run was.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: Sequence[int],
        rows: int,
        segment: int,
        seed: int = 0,
        *,
        mine: range | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        lengths = {n: corpus.documents[n].tokens for n in documents}
        groups = balanced(lengths, rows)
        if not all(groups):
            raise UserError(
                f"The corpus {corpus.name} has {len(lengths)} documents to train on, fewer than {rows} rows: use "
                f"--rows {len(lengths)} or fewer."
            )
        self.corpus, self.segment, self.seed, self.device = corpus, segment, seed, device
        self.rows = mine if mine is not None else range(rows)
        self.groups = [groups[row] for row in self.rows]
        self.position: list[Position] = [(0, 0, 0) for _ in self.rows]

    def order(self, row: int, epoch: int) -> list[int]:
        """The documents of a row of this process in one pass through them."""
        order = list(self.groups[row])
        random.Random(f"{self.seed} {self.rows[row]} {epoch}").shuffle(order)
        return order

    def fits(self, positions: Sequence[Position]) -> bool:
        """Whether these can be the positions of the rows."""
        return len(positions) == len(self.rows) and all(
            index < len(group) and begin < self.corpus.documents[self.order(row, epoch)[index]].tokens
            for row, (group, (epoch, index, begin)) in enumerate(zip(self.groups, positions, strict=True))
        )

    def next(self) -> Batch:
        """The next segment of every row."""
        pieces, documents, begins = list[list[int]](), list[int](), list[int]()
        for row, (epoch, index, begin) in enumerate(self.position):
            order = self.order(row, epoch)
            piece = self.corpus.piece(order[index], begin, begin + self.segment).tolist()
            pieces.append(piece)
            documents.append(order[index])
            begins.append(begin)
            self.position[row] = self._behind(row, epoch, index, begin + len(piece))
        tokens_BT, lengths_B = pad(pieces, self.device)
        fresh_B = torch.tensor([begin == 0 for begin in begins], device=self.device)
        return Batch(tokens_BT, lengths_B, fresh_B, tuple(documents), tuple(begins))

    def _behind(self, row: int, epoch: int, index: int, end: int) -> Position:
        order = self.order(row, epoch)
        if end < self.corpus.documents[order[index]].tokens:
            return epoch, index, end
        return (epoch, index + 1, 0) if index + 1 < len(order) else (epoch + 1, 0, 0)


def balanced(lengths: dict[int, int], groups: int) -> list[list[int]]:
    """Documents dealt to groups of about equal length: the longest first, each to the group that has least."""
    heap = [(0, group) for group in range(groups)]
    dealt: list[list[int]] = [[] for _ in range(groups)]
    for document in sorted(lengths, key=lambda one: (-lengths[one], one)):
        total, group = heapq.heappop(heap)
        dealt[group].append(document)
        heapq.heappush(heap, (total + lengths[document], group))
    return dealt
