"""Documents side by side: consecutive segments of a document in consecutive batches (LongMem, Fig. 3).

Documents, or sequences of equal length into which they are cut, are dealt to rows in groups of about equal length and
shuffled inside their group. A row whose document ends begins the next one alone; segments never hold two documents.

Legend: B rows, T tokens of a segment.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import sys
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.training.corpus import Corpus
from contextlab.writing import pad

Position = tuple[int, int, int]
"""Of a row: the pass through its documents, the index of the document in the order of this pass, tokens read of it."""
Stretch = tuple[int, int, int]
"""Tokens that are read from an empty state: a document, its first token and the end; whole, or one segment."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """One segment of every row.

    Attributes:
        tokens_BT: right-padded where a document ends.
        lengths_B: tokens that count, on the host.
        fresh_B: whether a row begins a text, on the host.
        documents: of every row.
        begins: of the segment in its document, in tokens, by row.
        answers_BT: whether a token's loss counts, as far as the document says; None where no document says so.
        context_B: tokens of the context that a document with answers begins with, as far as they are in the segment; on
            the host.
    """

    tokens_BT: Tensor
    lengths_B: Tensor
    fresh_B: Tensor
    documents: tuple[int, ...]
    begins: tuple[int, ...]
    answers_BT: Tensor | None = None
    context_B: Tensor | None = None

    @property
    def real_BT(self) -> Tensor:
        """Tokens that are no padding."""
        return (torch.arange(self.tokens_BT.shape[1]) < self.lengths_B[:, None]).to(self.tokens_BT.device)

    @property
    def counted_BT(self) -> Tensor:
        """Tokens whose loss counts."""
        return self.real_BT if self.answers_BT is None else self.real_BT & self.answers_BT

    @property
    def scale(self) -> float:
        """The factor of sums over the tokens that count, with which each stands for as many tokens as were
        read for it; gradients are divided by the tokens that were read.
        """
        return 1.0 if self.answers_BT is None else float(self.lengths_B.sum()) / max(int(self.counted_BT.sum()), 1)


class Streams:
    """Where every row is in its documents.

    Args:
        corpus: of the documents.
        documents: that are read.
        rows: of all processes.
        segment: the most tokens of a segment.
        seed: of the order of the documents.
        shuffled: whether a row reads sequences of all documents in random order, each as a separate document.
        sequence: tokens of a document that are one text, a segment at least; all of them when None.
        mine: rows of this process; all of them when None.
        device: of the batches.

    Attributes:
        position: by row of this process; may be set to where an earlier run was.
        stretches: documents, or their sequences, by number.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: Sequence[int],
        rows: int,
        segment: int,
        seed: int = 0,
        *,
        shuffled: bool = False,
        sequence: int | None = None,
        mine: range | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        stretches = {n: (n, 0, corpus.documents[n].tokens) for n in documents}
        length = sys.maxsize if sequence is None else max(sequence, segment)
        if shuffled:
            stretches = dict(enumerate(_sequences(list(stretches.values()), length)))
        groups = balanced({n: end - begin for n, (_, begin, end) in stretches.items()}, rows)
        if not all(groups):
            kind = "sequences" if shuffled else "documents"
            raise UserError(
                f"The corpus {corpus.name} has {len(stretches)} {kind} to train on, "
                f"fewer than {rows} rows: use --rows {len(stretches)} or fewer."
            )
        self.corpus, self.segment, self.seed, self.device = corpus, segment, seed, device
        self.stretches, self._orders = stretches, dict[tuple[int, int], list[int]]()
        self.sequence = sys.maxsize if shuffled else length
        self.rows = mine if mine is not None else range(rows)
        self.groups = [groups[row] for row in self.rows]
        self.position: list[Position] = [(0, 0, 0) for _ in self.rows]

    def order(self, row: int, epoch: int) -> list[int]:
        """The numbers of the stretches, or else documents, that a row of this process reads in one pass."""
        if (row, epoch) not in self._orders:
            order = list(self.groups[row])
            random.Random(f"{self.seed} {self.rows[row]} {epoch}").shuffle(order)
            self._orders = {key: order for key, order in self._orders.items() if key[0] != row}
            self._orders[row, epoch] = order
        return self._orders[row, epoch]

    def read(self) -> dict[int, int]:
        """Tokens of every document that the rows of this process have read, again in every pass."""
        tokens: Counter[int] = Counter()
        for row, (last, index, done) in enumerate(self.position):
            for epoch in range(last + 1):
                order = self.order(row, epoch)
                for stretch in order if epoch < last else order[:index]:
                    tokens[self.stretches[stretch][0]] += self._length(stretch)
            if done:
                tokens[self.stretches[self.order(row, last)[index]][0]] += done
        return dict(tokens)

    def fits(self, positions: Sequence[Position]) -> bool:
        """Whether these can be the positions of the rows."""
        return len(positions) == len(self.rows) and all(
            index < len(group) and begin < self._length(self.order(row, epoch)[index])
            for row, (group, (epoch, index, begin)) in enumerate(zip(self.groups, positions, strict=True))
        )

    def _length(self, stretch: int) -> int:
        _, begin, end = self.stretches[stretch]
        return end - begin

    def next(self) -> Batch:
        """The next segment of every row."""
        pieces, documents, begins, restarts = list[list[int]](), list[int](), list[int](), list[bool]()
        for row, (epoch, index, done) in enumerate(self.position):
            document, first, end = self.stretches[self.order(row, epoch)[index]]
            begin = first + done
            text_end = done // self.sequence * self.sequence + self.sequence
            piece = self.corpus.piece(document, begin, min(begin + self.segment, end, first + text_end)).tolist()
            pieces.append(piece)
            documents.append(document)
            begins.append(begin)
            restarts.append(done % self.sequence == 0)
            self.position[row] = self._position_after(row, epoch, index, done + len(piece))
        tokens_BT, lengths_B = pad(pieces, self.device)
        fresh_B = torch.tensor(restarts)
        answers_BT, context_B = self._answers(documents, begins, lengths_B)
        return Batch(tokens_BT, lengths_B, fresh_B, tuple(documents), tuple(begins), answers_BT, context_B)

    def _answers(
        self, documents: Sequence[int], begins: Sequence[int], lengths_B: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """`answers_BT` and `context_B`; None where none of the documents has answers."""
        entries = [self.corpus.documents[n] for n in documents]
        if not any(entry.answers for entry in entries):
            return None, None
        parts = zip(entries, begins, lengths_B.tolist(), strict=True)
        marks = [entry.marks(begin, begin + length) for entry, begin, length in parts]
        answers_BT, _ = pad(marks, self.device)
        context_left = [max(entry.context - begin, 0) for entry, begin in zip(entries, begins, strict=True)]
        return answers_BT.bool(), torch.minimum(torch.tensor(context_left), lengths_B)

    def _position_after(self, row: int, epoch: int, index: int, end: int) -> Position:
        order = self.order(row, epoch)
        if end < self._length(order[index]):
            return epoch, index, end
        return (epoch, index + 1, 0) if index + 1 < len(order) else (epoch + 1, 0, 0)


def _sequences(documents: Sequence[Stretch], length: int) -> list[Stretch]:
    """The whole sequences of documents, and as they are those documents that are shorter than one."""
    return [
        (n, begin, min(begin + length, end))
        for n, _, end in documents
        for begin in range(0, max(end - length, 0) + 1, length)
    ]


def balanced(lengths: dict[int, int], groups: int) -> list[list[int]]:
    """Documents dealt to groups of about equal length: the longest first, each to the group that has least."""
    heap = [(0, group) for group in range(groups)]
    dealt: list[list[int]] = [[] for _ in range(groups)]
    for document in sorted(lengths, key=lambda item: (-lengths[item], item)):
        total, group = heapq.heappop(heap)
        dealt[group].append(document)
        heapq.heappush(heap, (total + lengths[document], group))
    return dealt
