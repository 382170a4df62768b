"""Adapted twins: a baseline on a backbone whose weights carry a low-rank update, the same for every text.

A method that was trained on some corpus has learned the corpus's domain besides the use of its memory. The baseline
with an update of the same rank, trained on the same tokens, has learned the domain alone: the rest is the memory's.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self, TypeVar

import pydantic
from torch import Tensor, nn

from contextlab import grammar
from contextlab.accounting.formulas import Model, update_flops
from contextlab.backbone import Backbone, Linear, OwnBackbone, UpdatedBackbone, linear_layers
from contextlab.config import MethodConfig, Weights
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.parts.formulas import ForgettingFormula
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.trained import CHOICES

Targets = Literal["attention", "all"]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LowRankConfig(MethodConfig):
    """A low-rank update of the backbone's weights.

    Attributes:
        rank: of the low-rank update of the backbone's weights, 0 for none; `full`, to learn the weights themselves.
        targets: what the low-rank update changes; `attention`, the projections of queries, keys, values and outputs,
            or `all`, those of the MLP too.
        weights: the trained update: `auto`, one that comes with the package, where one fits; `none`, as initialised;
            or a file, or the folder of a training run.
    """

    rank: pydantic.NonNegativeInt | Literal["full"] = 0
    targets: Targets = "attention"
    weights: Weights = "auto"

    def updated(self, backbone: Backbone) -> UpdatedBackbone | OwnBackbone:
        """A network that carries the update beside a backbone that stays as it is.

        Raises:
            UserError: as their constructors.
        """
        if self.rank == "full":
            return OwnBackbone(backbone)
        return UpdatedBackbone(backbone, self.targeted(backbone), self.rank)

    def update_flops(self, updates: nn.Module | None) -> int:
        """FLOPs per token of the update; own weights cost what the backbone's do."""
        return 0 if self.rank == "full" else update_flops(updates)

    def targeted(self, backbone: Backbone) -> list[Linear]:
        """The layers of a backbone that are updated."""
        layers = linear_layers(backbone)
        return [layer for layer in layers if layer.of_attention or self.targets == "all"]


def twin(baseline: str, *, N: int | None, rank: int | Literal["full"] | None, targets: Targets = "attention") -> str:
    """A baseline with a low-rank update, as an argument of `--method`.

    Args:
        baseline: its name.
        N: its length; the default when None.
        rank: of its update; 16 when there is none to be the same.
        targets: the linear layers with an update.
    """
    settings = {"N": N, "rank": rank or 16, "targets": targets if targets != "attention" else None}
    return grammar.spelled(baseline, None, {name: value for name, value in settings.items() if value is not None})


C = TypeVar("C", bound=LowRankConfig)


class LowRankMethod(SegmentMethod[C, LocalState]):
    """A method that keeps a cache and nothing else, with a low-rank update to learn where `rank` says so."""

    def __init__(self, backbone: Backbone, config: C | None = None, network: Backbone | None = None) -> None:
        """Build it.

        Args:
            backbone: stays as it is.
            config: settings.
            network: what reads and is updated, where that is a model around the backbone's weights.
        """
        super().__init__(backbone, config)
        self.network = network or backbone
        if self.config.rank:
            self.network = updated = self.config.updated(self.network)
            self.head_alone = self.config.rank != "full"
            self.learns(updated.updates, self.config.weights)
        elif self.config.weights not in CHOICES:
            raise UserError(f"weights={self.config.weights} holds an update of some rank: give it, as in rank=16.")

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes over what the cache holds."""
        model = Model.of(self.network)
        if model is None:
            return None
        first, update = self.first_segment(ahead), self.config.update_flops(self.learned)
        return ForgettingFormula(model, self.local, first, update, packs_inside=self.packs_inside)

    def skim(self, state: LocalState, tokens_Bt: Tensor, lengths_B: Tensor) -> LocalState | None:
        """A segment of which nothing is kept need not be computed."""
        return self.local.skim(state)

    def memory_alone(self, state: LocalState) -> LocalState:
        """An empty state: the local context is all there is."""
        return self.start(state.batch_size)

    def baseline(self) -> Self | None:
        """The method without an update, which an untrained one equals exactly."""
        if not self.config.rank or not self.untrained:
            return None
        plain: dict[str, Any] = {"rank": 0, "weights": "auto"}
        return type(self)(self.backbone, dataclasses.replace(self.config, **plain))
