"""Settings of fine-tuning on the context."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from contextlab.errors import UserError
from contextlab.methods.parts.local_cache import LocalConfig
from contextlab.methods.parts.low_rank import Targets

LR = {"full": 1e-5, "lora": 1e-4}

Share = Annotated[float, pydantic.Field(ge=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class FinetuneConfig(LocalConfig):
    """Which weights learn the context, and how; 8 epochs of batches of 16 at 1e-5 are GenerativeAdapter's continual
    pre-training.

    Attributes:
        N: tokens of a window, in which a question is answered.
        form: `cpt`, continual pre-training, predicts every token of the context; `sft`, supervised fine-tuning,
            predicts the answers in it alone.
        answer: text in front of every answer, with form=sft; an answer ends with its line.
        what: learns the context: `full`, the weights of the backbone, or `lora`, a low-rank update of them.
        parameters: names of the parameters that learn, as a pattern such as `*.mlp.*`, with what=full.
        rank: of the low-rank update of the backbone's weights, with what=lora.
        alpha: the update counts alpha / rank; as much as rank when not given.
        targets: what the low-rank update changes; `attention`, the projections of queries, keys, values and outputs,
            or `all`, those of the MLP too.
        rule: that makes updates of gradients, `adam` or `sgd`.
        lr: learning rate; 0 leaves the weights alone. When not given: 1e-5 (full), 1e-4 (lora).
        epochs: the most passes over the context.
        block: tokens of a block, which is read from a cold start; N, or as many as fit, when not given.
        batch: blocks of one update.
        held_back: share of the blocks that are not learned from, whose loss says when to stop; 0 for none.
        patience: epochs without a lower loss of these blocks, after which it stops.
        context: tokens that are read as a context where none is announced; none when not given, so that a text is
            only read.
        seed: of the order of blocks, and of the choice of those that are held back.
    """

    form: Literal["cpt", "sft"] = "cpt"
    answer: str = "Output:"
    what: Literal["full", "lora"] = "full"
    parameters: str = "*"
    rank: pydantic.PositiveInt = 16
    alpha: pydantic.PositiveInt | None = None
    targets: Targets = "attention"
    rule: Literal["adam", "sgd"] = "adam"
    lr: pydantic.NonNegativeFloat | None = None
    epochs: pydantic.PositiveInt = 8
    block: pydantic.PositiveInt | None = None
    batch: pydantic.PositiveInt = 16
    held_back: Share = 0.0
    patience: pydantic.PositiveInt = 3
    context: pydantic.PositiveInt | None = None
    seed: pydantic.NonNegativeInt = 0

    def __post_init__(self) -> None:
        """Fill in what depends on other fields, so that a stored configuration says it."""
        if self.form == "sft" and not self.answer:
            raise UserError("form=sft needs the text in front of answers: give it as answer=Output: or the like.")
        if self.lr is None:
            object.__setattr__(self, "lr", LR[self.what])

    def block_length(self, positions: int) -> int:
        """Tokens of a block on a model with that many positions.

        Raises:
            UserError: when the block asked for does not fit.
        """
        if self.block is not None and positions < self.block:
            raise UserError(
                f"A block of {self.block} tokens does not fit the model's {positions} positions: use block={positions}."
            )
        return self.block or self.length(positions)
