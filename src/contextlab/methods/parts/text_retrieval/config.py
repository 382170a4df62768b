"""Settings of text retrieval, and what a prediction has in view."""

from __future__ import annotations

import dataclasses

import pydantic

from contextlab.errors import UserError
from contextlab.method import MethodConfig

CHUNK, RECENT = 64, 256


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TextConfig(MethodConfig):
    """What is retrieved, by what, and how often.

    Attributes:
        k: chunks that are retrieved.
        chunk: the most tokens of a chunk; 64, or a sixteenth of the model's positions if fewer, when not given.
        recent: last tokens that are in view at least, beside the chunks; 256, or as many as fit, when not given.
        query: last tokens that are searched for.
        stride: tokens after which is searched again.
    """

    k: pydantic.PositiveInt = 4
    chunk: pydantic.PositiveInt | None = None
    recent: pydantic.PositiveInt | None = None
    query: pydantic.PositiveInt = 32
    stride: pydantic.PositiveInt = 8

    def view(self, positions: int) -> View:
        """The lengths for a model with so many positions.

        Raises:
            UserError: when they do not fit.
        """
        chunk = self.chunk or max(1, min(CHUNK, positions // 16))
        room = positions - (self.k + 1) * chunk - self.stride
        recent = self.recent or min(RECENT, room)
        if not 0 < recent <= room:
            raise UserError(
                f"{self.k} chunks of {chunk} tokens, one beside them, {recent} recent tokens and a stride of "
                f"{self.stride} do not fit the model's {positions} positions: use fewer or smaller chunks, or "
                f"recent={max(room, 1)}."
            )
        return View(self.k, chunk, recent, self.query, self.stride)


@dataclasses.dataclass(frozen=True)
class View:
    """What the tokens of a text see: the retrieved chunks in the order of the text, then all that no chunk holds yet.

    Attributes:
        k: chunks.
        chunk: tokens of one.
        recent: tokens in front of a search that are no part of a chunk that can be retrieved.
        query: tokens that are searched for.
        stride: tokens between two searches.
    """

    k: int
    chunk: int
    recent: int
    query: int
    stride: int

    def first(self, context: int) -> int:
        """Tokens before the first search, so that one is at the end of a context of that length."""
        return context % self.stride or self.stride

    def searched(self, position: int, first: int) -> int:
        """Tokens of the text in front of the search whose chunks the token at a position sees."""
        return max(0, position - (position - first) % self.stride)

    def room(self, position: int, first: int) -> int:
        """Tokens from a position to the next search."""
        return self.stride - (position - first) % self.stride

    def chunks(self, searched: int) -> int:
        """Chunks that can be retrieved after so many tokens."""
        return max(0, searched - self.recent) // self.chunk

    def used(self, position: int, first: int) -> int:
        """Tokens in front of a position that are in view."""
        chunks = self.chunks(self.searched(position, first))
        return position - max(0, chunks - self.k) * self.chunk
