"""The settings of a training run, and the learning rate over its course."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field

from contextlab.config import Config, MethodConfig
from contextlab.errors import UserError
from contextlab.training.rates import checked, several

LOCAL = 1024
TEXT = 8192
"""Tokens of a text where texts are shuffled and nothing else is asked for."""
FAIR: Mapping[str, Any] = {
    "rows": 1,
    "segment": 4096,
    "sequence": 8192,
    "order": "shuffled",
    "schedule": "cosine",
    "warmup": 0.05,
    "betas": (0.9, 0.95),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "clip": 1.0,
    "accumulate": 1,
    "documents": 12,
    "history": 3072,
    "scored": 1024,
    "texts": 1,
    "validation": "completion",
    "patience": None,
    "grid": "3e-4|1e-3|3e-3",
}
"""What is the same for all methods that are compared as pairs, whatever a method's own defaults are."""
FAIR_TOKENS = 500_000
"""Tokens of such a training, at least."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TrainConfig(Config):
    """Length, optimiser and validation of a training; the defaults of the optimiser are those of the method.

    Attributes:
        tokens: tokens to train on, padding left out.
        rows: documents side by side, in every process.
        segment: tokens of one row in one batch, through which gradients reach; `segments` of the method's own, or of
            1,024, when not given.
        sequence: tokens of a document that are read as one text, `segment` for one segment; after them its row goes on
            with an empty state. When not given, 8,192 with order=shuffled, else whole documents.
        segments: what a method writes into its memory in one of its segments and reads in the next gets a gradient only
            where both are in one batch; not used with `segment`.
        protocol: `fair` sets all that two methods must have in common to be compared (`FAIR`); their defaults count
            with `own`.
        lr: the highest learning rate.
        grid: learning rates between `|`, of which the one is taken that has the lowest loss on held-back texts after a
            training of `grid_tokens`; none is searched when empty.
        grid_tokens: of each of these trainings.
        rates: factors of `lr` for some of what is learned, as `summaries.*:10`: a pattern of names, a colon and a
            factor; several are separated by `|`, and the first that fits counts.
        schedule: how it falls from there to zero: `linear`, `polynomial`, `cosine`; or `constant`.
        power: of the polynomial schedule.
        warmup: share of the tokens over which it rises from zero.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: of AdamW, decoupled from the gradient.
        clip: norm to which gradients are cut back; 0 leaves them.
        accumulate: batches per step of the optimiser.
        objective: what is minimised, as `lm` or `teacher(k=64)`.
        order: `shuffled`, sequences of all documents in random order, each from an empty state; or `documents`, each
            from its beginning to its end.
        seed: of the order of documents, all draws, and the initial weights that a method draws itself; low-rank
            updates of the model begin with the same numbers under every seed.
        evaluate_every: tokens between validations; so many that these cost a twentieth of the training when not given.
        checkpoint_every: seconds between checkpoints; 0 writes one after every step.
        documents: held-back documents that validation reads, no more than there are; at most 12 when not given.
        texts: texts of every one of them.
        history: tokens that validation reads before those it scores; two segments when not given.
        validation: what is scored: `completion`, what follows the history; or `reconstruction`, the history's last
            segment once more, from the memory alone.
        scored: tokens that it scores; a segment when not given.
        dtype: of the products of linear layers; `auto` is bfloat16 on a GPU, and float32 elsewhere.
        recompute: whether the backward pass computes blocks again, all but their attention, instead of keeping what
            they need: less memory and more time, with the same gradients.
        patience: validations without a lower loss after which the training ends; never when not given.
        log: where curves are shown beside the file: `tensorboard`, in a folder of that name; or `none`.
        licence: of the corpus, for the card, where its index names none.
        storage: type of the weights that are written at the end; int8 is for matrices, with a scale per output channel.
    """

    tokens: pydantic.PositiveInt
    rows: pydantic.PositiveInt = 2
    segment: pydantic.PositiveInt | None = None
    sequence: pydantic.PositiveInt | Literal["segment"] | None = None
    segments: pydantic.PositiveInt = 1
    protocol: Literal["own", "fair"] = "own"
    lr: pydantic.PositiveFloat = 1e-3
    grid: Annotated[str, pydantic.AfterValidator(several)] = ""
    grid_tokens: pydantic.PositiveInt = 32768
    rates: Annotated[str, pydantic.AfterValidator(checked)] = ""
    schedule: Literal["linear", "polynomial", "cosine", "constant"] = "cosine"
    power: pydantic.PositiveFloat = 1.0
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: pydantic.PositiveFloat = 1e-8
    weight_decay: pydantic.NonNegativeFloat = 0.01
    clip: pydantic.NonNegativeFloat = 1.0
    accumulate: pydantic.PositiveInt = 1
    objective: str = "lm"
    order: Literal["shuffled", "documents"] = "shuffled"
    seed: int = 0
    evaluate_every: pydantic.PositiveInt | None = None
    checkpoint_every: pydantic.NonNegativeFloat = 300.0
    documents: Annotated[int, Field(ge=2)] | None = None
    texts: pydantic.PositiveInt = 1
    history: pydantic.PositiveInt | None = None
    validation: Literal["completion", "reconstruction"] = "completion"
    scored: pydantic.PositiveInt | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    recompute: bool = False
    patience: pydantic.PositiveInt | None = None
    log: Literal["none", "tensorboard"] = "none"
    licence: str = ""
    storage: Literal["int8", "float16", "float32"] = "float16"

    @classmethod
    def of(cls, method: type[MethodConfig], options: Mapping[str, Any]) -> Self:
        """The options; what they leave out is the method's own default, or else the general one.

        Raises:
            UserError: for an unknown option, a wrong value, one that the protocol sets, or too few tokens for it.
        """
        if options.get("protocol") != "fair":
            return cls.parse({**method.training_defaults, **options}, "train")
        fixed = next((name for name in options if name in FAIR and name != "grid"), None)
        if fixed is not None:
            raise UserError(f"protocol=fair sets {fixed}={FAIR[fixed]} for all methods: leave {fixed} out.")
        settings = cls.parse({**FAIR, **options}, "train")
        if settings.tokens < FAIR_TOKENS:
            raise UserError(f"protocol=fair needs {FAIR_TOKENS:,} tokens or more: use --tokens {FAIR_TOKENS}.")
        return settings

    @property
    def trials(self) -> list[TrainConfig]:
        """Short trainings of the search, one for every learning rate of the grid.

        They are too short for the protocol, but have all that it sets.
        """
        tokens = self.grid_tokens
        short: dict[str, Any] = {"protocol": "own", "grid": "", "tokens": tokens, "evaluate_every": tokens}
        return [dataclasses.replace(self, lr=rate, **short) for rate in self.searched]

    @property
    def searched(self) -> tuple[float, ...]:
        """The learning rates of the grid."""
        return tuple(float(rate) for rate in self.grid.split("|") if rate)

    def length(self, local: int | None, positions: int) -> int:
        """Tokens of a segment.

        Args:
            local: the method's own segment.
            positions: of the backbone.
        """
        return self.segment or self.segments * (local or min(LOCAL, positions))

    def text(self, segment: int) -> int | None:
        """Tokens that are read as one text, in segments of so many; None for whole documents."""
        if self.sequence == "segment":
            return segment
        if self.sequence is None and self.order == "documents":
            return None
        return self.sequence or TEXT

    def rate(self, tokens: int) -> float:
        """The learning rate of a step in front of which so many tokens were learned from."""
        progress = min(tokens / self.tokens, 1.0)
        if progress < self.warmup:
            # The first step, in front of which nothing was learned, is not lost.
            return self.lr * max(progress, self.warmup / 20) / self.warmup
        decay_left = (1 - progress) / (1 - self.warmup)
        shapes = {"linear": decay_left, "polynomial": math.pow(decay_left, self.power), "constant": 1.0}
        return self.lr * shapes.get(self.schedule, (1 - math.cos(math.pi * decay_left)) / 2)

    def same_course(self, earlier: Mapping[str, Any]) -> str | None:
        """The first option in which a run would take another course than one begun with `earlier`; None if in none.

        An option that is newer than that run has its default there. How often the run is looked at and how it is stored
        may change, and the length where the learning rate does not depend on it; not the texts of validation, whose
        losses are compared.
        """
        free = {"evaluate_every", "checkpoint_every", "storage", "log", "licence"}
        free |= {"tokens"} if self.schedule == "constant" and not self.warmup else set()
        earlier = {**type(self)(tokens=self.tokens).as_dict(), **earlier}
        for name, value in self.as_dict().items():
            other = earlier[name]
            if name not in free and value != (tuple(other) if isinstance(other, list) else other):
                return name
        return None
