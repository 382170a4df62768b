"""HSO's hyper-parameters and the switches where the paper leaves a choice."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from contextlab.errors import UserError
from contextlab.method import MethodConfig

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class HSOConfig(MethodConfig):
    """The paper's settings for language models (section 4.1) and its variants (Table 3).

    Attributes:
        k: tokens of a window; one update follows each. With k >= context no update is ever used.
        lr: step size; 0 is the plain model.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment; the paper does not state it.
        optimizer: `adam`, with moments and a step count for every state, or `sgd`.
        update: `full` moves all states in view, `present` only those of the newest window.
        states: what moves: the cached `keys`, `values` or `both`; or `inputs`: what the attention of a layer is given
            is cached and moves, and every pass makes keys and values of it again, as the paper's Transformer-XL does.
        steps: gradient steps for a window; 2 is the paper's HSO-2.
        second: the second of two steps differentiates through the window's queries alone, with its moved states
            `fixed`, or through the window `recomputed`, to whose states the first step is added again.
        context: most states in view of a window; 1,024 or as many as the model has positions when not given.
        eviction: at the end of a context `reset` it, or, `sliding`, keep the last `context` states.
        warmup: the n-th update of a context uses lr * min(1, n / (warmup + 1)).
    """

    k: pydantic.PositiveInt = 25
    lr: pydantic.NonNegativeFloat = 0.003
    beta1: Beta = 0.65
    beta2: Beta = 0.9
    eps: pydantic.PositiveFloat = 1e-8
    optimizer: Literal["adam", "sgd"] = "adam"
    update: Literal["full", "present"] = "full"
    states: Literal["both", "keys", "values", "inputs"] = "both"
    steps: Annotated[int, pydantic.Field(ge=1, le=2)] = 1
    second: Literal["fixed", "recomputed"] = "fixed"
    context: pydantic.PositiveInt | None = None
    eviction: Literal["reset", "sliding"] = "reset"
    warmup: pydantic.NonNegativeInt = 0

    def length(self, positions: int) -> int:
        """States in view on a model with that many positions; a sliding window comes on top of them.

        Raises:
            UserError: when they do not fit.
        """
        most = positions - self.k if self.eviction == "sliding" else positions
        if most < 1:
            raise UserError(f"A window of k={self.k} does not fit the model's {positions} positions: use a smaller k.")
        if self.context is not None and self.context > most:
            raise UserError(
                f"context={self.context} does not fit the model's {positions} positions: use context={most}."
            )
        return self.context or min(1024, most)

    @property
    def of_inputs(self) -> bool:
        """Whether the inputs of layers are cached, and not keys and values."""
        return self.states == "inputs"

    @property
    def keeps_moments(self) -> bool:
        """Whether the optimizer moves a state more than once, so that its moments have to be kept."""
        return self.optimizer == "adam" and self.update == "full" and self.lr > 0
