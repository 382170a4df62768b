"""Formulas of methods that read in blocks: the loop of `methods.blocks` over lengths instead of tokens."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, steps, total
from contextlab.method import Lengths
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.methods.parts.branches import at_once
from contextlab.methods.parts.groups import GROUP
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.parts.packed_branches import PackedTail
from contextlab.methods.parts.packed_cache import packed_bytes, packed_tokens

CHANGE_BYTES = 4
"""Bytes of a number of a change of weights, at least."""


@dataclasses.dataclass(frozen=True)
class Segments:
    """Where the segments of a text end.

    Attributes:
        first: tokens in front, which have other segments.
        inside: tokens of a segment there, the last one ending with them.
        length: tokens of every segment after them.
    """

    first: int
    inside: int
    length: int

    def bounds(self, position: int) -> tuple[int, int]:
        """Begin and end of the segment in which the token at a position is."""
        if position < self.first:
            begin = position // self.inside * self.inside
            return begin, min(begin + self.inside, self.first)
        begin = self.first + (position - self.first) // self.length * self.length
        return begin, begin + self.length

    def before(self, position: int) -> Iterator[int]:
        """The lengths of all segments that have ended at a position, in order."""
        begin = 0
        while (end := self.bounds(begin)[1]) <= position:
            yield end - begin
            begin = end


@dataclasses.dataclass(frozen=True)
class Span:
    """The part of a row that a block reads.

    Attributes:
        before: tokens of the text in front of it.
        taken: tokens that count; the row is padded to the longest.
        begin: tokens in front of its segment.
        end: where the segment ends.
    """

    before: int
    taken: int
    begin: int
    end: int

    @property
    def ended(self) -> bool:
        """Whether the segment ends with it."""
        return self.taken > 0 and self.before + self.taken == self.end


class BlockFormula(Formula):
    """The arithmetic of a `BlockMethod`: that of one step, added up over the blocks of a call.

    Args:
        model: sizes of the backbone.
        segments: of the text.
    """

    def __init__(self, model: Model, segments: Segments) -> None:
        self.model, self.segments = model, segments

    @abstractmethod
    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of `BlockMethod.step` over rows that are padded to so many tokens."""

    def skim(self, spans: Sequence[Span]) -> int | None:
        """FLOPs of `BlockMethod.skim`; None where the whole step is needed."""
        return None

    def head(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of `BlockMethod.head` for the same block."""
        return len(spans) * self.model.head(tokens)

    def beside(self, before: int, tokens: int) -> int | None:
        """FLOPs of a continuation that lies beside others after one state; None where each has a copy of it."""
        return self.step([Span(before, tokens, *self.segments.bounds(before))], tokens)

    def predict(self, befores: Sequence[int]) -> int | None:
        """FLOPs of one projection onto the vocabulary for every row."""
        return self.model.head(len(befores))

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """FLOPs of all blocks, and of the projection where log-probabilities are wanted."""
        flops, open_rows = 0, list(rows)
        while any(row.tokens for row in open_rows):
            rooms = zip(open_rows, self._rooms(open_rows), strict=True)
            spans = [self._span(row.before, min(row.tokens, room, BLOCK_TOKENS)) for row, room in rooms]
            tokens = max(span.taken for span in spans)
            passing = not logprobs and all(
                row.tokens > span.taken and span.ended for row, span in zip(open_rows, spans, strict=True)
            )
            skimmed = self.skim(spans) if passing else None
            flops += self.step(spans, tokens) if skimmed is None else skimmed
            flops += self.head(spans, tokens) if logprobs else 0
            pairs_of = zip(open_rows, spans, strict=True)
            open_rows = [Row(row.before + span.taken, row.tokens - span.taken) for row, span in pairs_of]
        return flops

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """FLOPs of common passes over the candidates, or of reading them from copies of the state."""
        longest = max(candidates, default=0)
        if longest == 0:
            return 0
        flops = self._in_view(before, longest)
        if flops is None:
            return super().score(before, candidates)
        if len(candidates) > (together := at_once(longest + self._extra(before, longest))):
            return total(
                [self.score(before, candidates[n : n + together]) for n in range(0, len(candidates), together)]
            )
        return len(candidates) * (flops + self.model.head(longest))

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """FLOPs of common passes where many prompts fit after the state, else of copies of it."""
        longest = max(prompts, default=0) + most - 1
        if len(prompts) < 2 or self._in_view(before, longest) is None:
            return super().generate(before, prompts, written, most)
        return self._in_common(before, prompts, written, most)

    def _in_common(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """FLOPs of common passes over prompts, unpadded, and one token more of each in every further step."""
        longest = max(prompts) + most - 1
        together = at_once(longest + self._extra(before, longest))
        flops: list[int | None] = []
        for n in range(0, len(prompts), together):
            count = steps(written[n : n + together], most)
            for prompt in prompts[n : n + together] if count else []:
                flops += [self.beside(before, prompt), self.predict([before])]
                for end in range(before + prompt, before + prompt + count - 1):
                    flops += [self.beside(end, 1), self.predict([end])]
        return total(flops)

    def _in_view(self, before: int, longest: int) -> int | None:
        """FLOPs of a continuation that does not go beyond the segment; None for one that does, or has a copy."""
        return self.beside(before, longest) if longest <= self._room_beside(before) else None

    def _room_beside(self, before: int) -> int:
        """The most tokens of a continuation that lies beside others."""
        return self._room(before)

    def _extra(self, before: int, longest: int) -> int:
        """Tokens that a continuation of that length may have beside its own; see `Tail`."""
        return 0

    def _room(self, before: int) -> int:
        """Tokens to the end of the segment."""
        return self.segments.bounds(before)[1] - before

    def _rooms(self, rows: Sequence[Row]) -> list[int]:
        """Tokens that each of some rows may read in one pass over all of them."""
        return [self._room(row.before) for row in rows]

    def _span(self, before: int, tokens: int) -> Span:
        begin, end = self.segments.bounds(before)
        return Span(before, min(tokens, self._room(before)), begin, end)


class LocalFormula(BlockFormula):
    """A local cache, and low-rank updates of the layers where there are any.

    Args:
        model: sizes of the backbone.
        local: how long segments are, and what stays of them.
        first: tokens of the first segment.
        update: FLOPs per token of the updates.
        packs_inside: see `SegmentMethod`.
    """

    def __init__(
        self,
        model: Model,
        local: LocalCache,
        first: int | None = None,
        update: int = 0,
        *,
        packs_inside: bool = False,
    ) -> None:
        first = local.segment if first is None else first
        super().__init__(model, Segments(first, first, local.segment))
        self.local, self.update, self.packs_inside = local, update, packs_inside

    def _room(self, before: int) -> int:
        """Tokens of the longest pass, which ends where tokens in view are packed if it cannot do that itself."""
        return self._left(before) if self.packs_inside else self._until_packed(before)

    def _rooms(self, rows: Sequence[Row]) -> list[int]:
        """Passes end where a group does in any of the rows, if rows are in different places of their groups."""
        level = len({self.used(row.before) for row in rows}) == 1
        return super()._rooms(rows) if level else [self._until_packed(row.before) for row in rows]

    def _until_packed(self, before: int) -> int:
        """As `_left`, or until the next tokens in view are packed."""
        room = self._left(before)
        if self.local.storage is None:
            return room
        exact, used = self.local.exact, self.used(before)
        return min(room, GROUP - (used - exact - packed_tokens(used, exact)))

    def _room_beside(self, before: int) -> int:
        """As `_left`, where every continuation packs its own tokens."""
        return self._left(before) if self.packs_beside else self._room(before)

    def _left(self, before: int) -> int:
        """See `SegmentMethod.left`."""
        return super()._room(before)

    def _extra(self, before: int, longest: int) -> int:
        """The state's newest tokens, where they are packed with those of the continuation."""
        return PackedTail.extra if longest > self._until_packed(before) else 0

    @property
    def packs_beside(self) -> bool:
        """See `SegmentMethod.packs_beside`."""
        return self.local.storage is not None

    def used(self, before: int) -> int:
        """Slots in use of the local cache."""
        begin, _ = self.segments.bounds(before)
        return self.kept(begin) + before - begin

    def kept(self, end: int) -> int:
        """Slots that stay of a text that ends with a segment."""
        return min(end, self.local.keep_first + self.local.keep_last)

    def pairs(self, span: Span, tokens: int) -> int:
        """Visible pairs in the local cache."""
        return self.model.pairs(self.used(span.before), tokens, self.local.band, self.local.keep_first)

    def network(self, span: Span, tokens: int) -> int:
        """FLOPs of a whole forward pass over the row."""
        return self.model.blocks(tokens, self.pairs(span, tokens)) + tokens * self.update

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of the forward pass."""
        return sum(self.network(span, tokens) for span in spans)

    def up_to(self, layers: int, spans: Sequence[Span]) -> int:
        """FLOPs of the lowest layers over the tokens that count, without updates."""
        return sum(layers * self.model.block(span.taken, self.pairs(span, span.taken)) for span in spans)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local cache, of the last hidden state, and of the counts of tokens read and left."""
        return self.view_bytes(self.used(length)) + self.model.hidden_bytes + 2 * COUNT

    def view_bytes(self, used: int, layers: int | None = None) -> int:
        """Bytes of a cache of so many tokens in view, of all layers or of so many."""
        local = self.local
        if local.storage is None:
            return self.model.cache_bytes(used, layers)
        return packed_bytes(self.model, used, local.storage, local.exact, layers)


class ForgettingFormula(LocalFormula):
    """A local cache of which nothing stays at a segment's end: what nobody will see need not be computed."""

    def skim(self, spans: Sequence[Span]) -> int | None:
        """Nothing, where nothing stays."""
        return 0 if self.local.forgets else None


class WeightsFormula(BlockFormula):
    """Chunks that are kept as changes of weights: forward passes with thin products beside the changed layers.

    Args:
        model: sizes of the backbone.
        chunk: the most tokens of a chunk.
        pairs: numbers of all changes.
        ahead: of the text's start.
        learned: FLOPs per token of what is learned from it.
    """

    def __init__(self, model: Model, chunk: int, pairs: int, ahead: Lengths | None, learned: int = 0) -> None:
        self.context = ahead.context if ahead else 0
        count = -(-self.context // chunk)
        super().__init__(model, Segments(self.context, -(-self.context // max(count, 1)), chunk))
        self.pairs, self.learned = pairs, learned

    @abstractmethod
    def written(self, chunk: int) -> int:
        """FLOPs of writing a chunk of so many tokens into weights."""

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes, learned from; at a chunk's end its change, and at the context's what follows BOS."""
        flops = sum(self.network(span.before - span.begin, tokens) for span in spans)
        flops += len(spans) * tokens * self.learned
        ended = [span for span in spans if span.ended]
        if any(span.end == self.context for span in ended):
            flops += len(spans) * self.network(0, 1)
        return flops + sum(self.written(span.end - span.begin) for span in ended)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass that nothing is learned from."""
        return self.network(before - self.segments.bounds(before)[0], tokens)

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """As common passes also for one prompt: what is written is not learned from where it fits after the state."""
        if not prompts or max(prompts) + most > self._room(before):
            return super().generate(before, prompts, written, most)
        return self._in_common(before, prompts, written, most)

    def network(self, used: int, tokens: int) -> int:
        """FLOPs of a forward pass over tokens after so many of their chunk."""
        return self.model.blocks(tokens, self.model.pairs(used, tokens)) + 2 * tokens * self.pairs

    def bytes_of(self, numbers: int, length: int) -> int:
        """Bytes of numbers of a state and of the changes, of the open chunk's cache, the last hidden state, and three
        counts.
        """
        wide = max(CHANGE_BYTES, self.model.item_bytes)
        cache = self.model.cache_bytes(length - self.segments.bounds(length)[0])
        return (numbers + self.pairs) * wide + cache + self.model.hidden_bytes + 3 * COUNT
