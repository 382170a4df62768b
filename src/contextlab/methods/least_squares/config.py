"""Settings of least squares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pydantic

from contextlab.errors import UserError
from contextlab.method import MethodConfig

DOWN_PROJECTIONS = "*mlp.down_proj|*mlp.c_proj|*fc2|*dense_4h_to_h"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LeastSquaresConfig(MethodConfig):
    """How long a chunk is, what it is written into, and from which rows.

    Attributes:
        chunk: the most tokens of a chunk; 128, or as many as fit, when not given.
        first_layer: zero-based, the lowest layer that is changed; a quarter of the depth when not given.
        modules: patterns, separated by |, of the linear layers that are changed, one per block, whose output is added
            to the residual stream.
        ridge: how much inputs of other texts keep their outputs, in units of the chunk's own mean square; larger values
            change less.
        error: of the regression's rows: `absolute`, where a few tokens with large states can decide, or `relative` to
            the size of a row's state, as the norms of the layers above see it.
        study: texts that the backbone writes after a chunk, whose tokens are rows of the regression beside the chunk's
            own (self-study).
        study_tokens: tokens of each of them; as many as a chunk when not given.
        study_prompts: what they begin with, in turn, in front of these tokens: prompts between `|`, in which `\\n` is a
            line end, as `\\n\\nQuestion:`; nothing when empty.
        rank: of the change of a layer; a quarter of the model's width when not given.
        seen: directions of the inputs of earlier chunks, per layer, whose outputs later chunks leave alone (recursive
            least squares); 0 for none, as many as `rank` when not given.
        generic: file of other texts, with a form feed between them, whose inputs are left alone; a few pages of 16
            public-domain books when not given.
        seed: of what the backbone writes.
    """

    chunk: pydantic.PositiveInt | None = None
    first_layer: pydantic.NonNegativeInt | None = None
    modules: str = DOWN_PROJECTIONS
    ridge: pydantic.PositiveFloat = 3.0
    error: Literal["absolute", "relative"] = "absolute"
    study: pydantic.NonNegativeInt = 4
    study_tokens: pydantic.PositiveInt | None = None
    study_prompts: str = ""
    rank: pydantic.PositiveInt | None = None
    seen: pydantic.NonNegativeInt | None = None
    generic: Path | None = None
    seed: pydantic.NonNegativeInt = 0

    def lengths(self, positions: int, prompt: int) -> tuple[int, int]:
        """The most tokens of a chunk, and those that are written in a text of self-study.

        Args:
            positions: of the model.
            prompt: tokens of the longest prompt of self-study.

        Raises:
            UserError: when they do not fit beside each other.
        """
        most = (positions - prompt) // 2
        if self.study and self.study_tokens:
            most = min(positions // 2, positions - prompt - self.study_tokens)
        chunk = self.chunk or max(min(128, most), 1)
        written = (self.study_tokens or chunk) if self.study else 0
        if chunk > most:
            smaller = (
                f"use chunk={most}, or shorter texts of self-study" if most > 0 else "use shorter prompts or texts"
            )
            raise UserError(
                f"A chunk of {chunk} tokens and as many again, or {prompt + written} of self-study, do not fit the "
                f"model's {positions} positions: {smaller}."
            )
        return chunk, written

    def prompts(self, encode: Callable[[str], list[int]]) -> list[list[int]]:
        """Tokens that every text of self-study begins with."""
        prompts = [encode(prompt.replace("\\n", "\n")) for prompt in self.study_prompts.split("|") if prompt]
        return [prompts[n % len(prompts)] if prompts else [] for n in range(self.study)]

    def widths(self, width: int, inputs: int) -> tuple[int, int]:
        """The rank of a change, and the directions that are kept of earlier inputs.

        Args:
            width: of the model.
            inputs: of a layer.

        Raises:
            UserError: when they are larger than the layer.
        """
        rank = self.rank or max(width // 4, 1)
        seen = min(rank, inputs) if self.seen is None else self.seen
        if rank > width or seen > inputs:
            raise UserError(f"rank={rank} and seen={seen} must be at most {width} and {inputs} on this model.")
        return rank, seen
