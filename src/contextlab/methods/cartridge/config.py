"""Settings of a cartridge."""

from __future__ import annotations

import dataclasses
from typing import Literal

import pydantic

from contextlab.errors import UserError
from contextlab.methods.parts.local_cache import LocalConfig


@dataclasses.dataclass(frozen=True)
class CartridgeSizes:
    """Numbers of tokens that fit a model.

    Attributes:
        p: of the cartridge.
        chunk: the most of a chunk of the context.
        studied: of a text of self-study.
    """

    p: int
    chunk: int
    studied: int


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class CartridgeConfig(LocalConfig):
    """How large the cache is that stands for a context, and how it is trained.

    Attributes:
        N: tokens of a window after the cartridge, in which a question is answered.
        p: tokens of the cartridge; 128, or a quarter of the model's positions if fewer, when not given.
        frozen: first tokens of the cartridge that are not trained: attention rests on the first one.
        objective: `self-study`, what the backbone predicts after a chunk of the context, in texts that it writes there;
            `lm`, the next tokens of the context itself.
        chunk: the most tokens of a chunk; 512, or half of the model's positions if fewer, when not given.
        study: texts that the backbone writes after a chunk, with objective=self-study.
        study_tokens: tokens of each of them; 64, or a quarter of the model's positions if fewer, when not given.
        k: most probable tokens of the teacher that are learned from at every place; all others are one more outcome.
        steps: updates of the cartridge.
        batch: texts of one update.
        lr: learning rate of Adam; 0 leaves the keys and values of the context's first tokens.
        context: tokens that are read as a context where none is announced; none when not given, so that a text is
            only read.
        seed: of what the backbone writes, and of the order of texts.
    """

    p: pydantic.PositiveInt | None = None
    frozen: pydantic.NonNegativeInt = 1
    objective: Literal["self-study", "lm"] = "self-study"
    chunk: pydantic.PositiveInt | None = None
    study: pydantic.PositiveInt = 4
    study_tokens: int | None = pydantic.Field(default=None, ge=2)
    k: pydantic.PositiveInt = 64
    steps: pydantic.PositiveInt = 50
    batch: pydantic.PositiveInt = 8
    lr: pydantic.NonNegativeFloat = 0.02
    context: pydantic.PositiveInt | None = None
    seed: pydantic.NonNegativeInt = 0

    def sizes(self, positions: int) -> CartridgeSizes:
        """The numbers of tokens on a model with that many positions.

        Raises:
            UserError: when they do not fit beside each other.
        """
        sizes = CartridgeSizes(
            self.p or max(min(128, positions // 4), 1),
            self.chunk or max(min(512, positions // 2), 1),
            self.study_tokens or max(min(64, positions // 4), 2),
        )
        if sizes.p <= self.frozen:
            raise UserError(f"frozen={self.frozen} leaves nothing of {sizes.p} tokens to train: use a larger p.")
        self_study = self.objective == "self-study"
        written = sizes.studied if self_study else sizes.chunk
        read = max(sizes.p, sizes.chunk) if self_study else sizes.p
        if read + written > positions:
            name = "study_tokens" if self_study else "chunk"
            raise UserError(
                f"p={sizes.p}, chunk={sizes.chunk} and study_tokens={sizes.studied} do not fit the model's {positions} "
                f"positions with objective={self.objective}: use a smaller p, or {name}={max(positions - read, 2)}."
            )
        return sizes
