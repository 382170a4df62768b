"""UltraGist's hyper-parameters, and how much fits the positions of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import pydantic

from contextlab.config import Weights
from contextlab.errors import UserError
from contextlab.method import MethodConfig

Ratio = Annotated[int, pydantic.Field(ge=1)]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class UltraGistConfig(MethodConfig):
    """The paper's hyper-parameters; its ratios are 2 to 32, its windows 1,024 or 2,048 tokens.

    Attributes:
        W: tokens of a window, which gists then stand for; 1,024, or half of the model's positions, when not given.
        ratio: tokens of a window for one gist.
        ratios: of which every window has one at random in training, as 2|4|8; `none` to train with `ratio`.
        sinks: first tokens of the text that stay in view, as they are.
        M: gists that are kept of a row, the newest; as many as fit the model's positions when not given.
        rank: of the low-rank difference between the projections of gists and those of tokens.
        weights: trained projections: `auto`, those that come with the package, where some fit; `none`, as initialised;
            or a file, or the folder of a training run.
    """

    # Gists of one window are read in the next ones.
    training_defaults: ClassVar[Mapping[str, Any]] = {"segments": 2}
    free_at_test: ClassVar[frozenset[str]] = frozenset({"W", "ratio", "ratios", "M"})

    W: pydantic.PositiveInt | None = None
    ratio: Ratio = 8
    ratios: Annotated[str, pydantic.Field(pattern=r"^(none|[1-9]\d*(\|[1-9]\d*)*)$")] = "2|4|8|16|32"
    sinks: pydantic.NonNegativeInt = 1
    M: pydantic.PositiveInt | None = None
    rank: pydantic.PositiveInt = 16
    weights: Weights = "auto"

    @property
    def drawn(self) -> tuple[int, ...]:
        """The ratios that training draws from; empty where it uses `ratio`."""
        return () if self.ratios == "none" else tuple(map(int, self.ratios.split("|")))

    def extent(self, positions: int) -> Extent:
        """Lengths that fit a model with that many positions.

        Raises:
            UserError: when the window, its gists and those kept do not.
        """
        window = self.W or max(min(1024, positions // 2), 1)
        room = positions - self.sinks - window - -(-window // min(self.ratio, *self.drawn, window))
        if room < (self.M or 1):
            raise UserError(
                f"A window of {window} tokens, its gists, {self.M or 1} earlier ones and {self.sinks} sinks do not fit "
                f"the model's {positions} positions: use a smaller W{'' if self.M is None else ' or M'}."
            )
        return Extent(window, self.sinks, self.M or room)


@dataclasses.dataclass(frozen=True)
class Extent:
    """How much is in view.

    Attributes:
        window: the most tokens of a window.
        sinks: first tokens that stay.
        gists: the most gists that stay.
    """

    window: int
    sinks: int
    gists: int

    @property
    def front(self) -> int:
        """The most slots in front of a window."""
        return self.sinks + self.gists
