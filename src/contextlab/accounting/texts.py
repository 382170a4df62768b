"""The number of tokens that states of a run have read, from which formulas compute the cost of calls."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence

from contextlab.formula import Formula, Row
from contextlab.method import State


@dataclasses.dataclass(frozen=True)
class ReadText:
    """The text that a state of one row has read.

    Attributes:
        formula: of its method, for what was announced at its start; None where there is none, and every answer is None.
        before: tokens read.
    """

    formula: Formula | None = None
    before: int = 0

    def after(self, tokens: int) -> ReadText:
        """The text with so many tokens more."""
        return ReadText(self.formula, self.before + tokens)

    def read(self, tokens: int, *, logprobs: bool) -> int | None:
        """FLOPs of reading on."""
        return None if self.formula is None else self.formula.read([Row(self.before, tokens)], logprobs=logprobs)

    def score(self, candidates: Sequence[Sequence[int]]) -> int | None:
        """FLOPs of scoring candidates."""
        return (
            None
            if self.formula is None
            else self.formula.score(self.before, [len(candidate) for candidate in candidates])
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], max_new_tokens: int
    ) -> int | None:
        """FLOPs of writing what was written."""
        read, made = ([len(text) for text in texts] for texts in (prompts, written))
        return None if self.formula is None else self.formula.generate(self.before, read, made, max_new_tokens)

    @property
    def state_bytes(self) -> int | None:
        """Bytes of the state."""
        return None if self.formula is None else self.formula.state_bytes(self.before)


class ReadTexts:
    """The texts of states that somebody still holds."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[State], ReadText]] = {}

    def put(self, state: State, text: ReadText) -> None:
        """Note what a state has read."""
        number = id(state)
        if text.formula is not None and state.batch_size == 1:
            self._known[number] = weakref.ref(state, lambda _: self._known.pop(number, None)), text

    def of(self, state: State) -> ReadText:
        """The text of a state; a text without a formula for a state that was not noted."""
        reference, text = self._known.get(id(state), (None, ReadText()))
        return text if reference is not None and reference() is state else ReadText()
