"""Adapters as values: added, taken away, saved and loaded.

Legend: B rows, L adapted layers, R = d_r.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from torch import Tensor

from contextlab import tensors
from contextlab.errors import UserError
from contextlab.methods.generative_adapter.generator import Generator
from contextlab.methods.parts.targets import Pair


@dataclasses.dataclass(frozen=True)
class Adapter:
    """Contexts as sums of their states, one a row: S of every adapted layer, before it is normalised.

    S is a sum over tokens, so contexts that were read on their own are joined by `+` and taken away by `-`; with a
    decay, neither of the two is the older one then.

    Attributes:
        S_BLRR: S of every row and adapted layer.
        generator: what made it, and makes weight changes of it.
    """

    S_BLRR: Tensor
    generator: Generator

    def __add__(self, other: Adapter) -> Adapter:
        return Adapter(self.S_BLRR + self._joined(other), self.generator)

    def __sub__(self, other: Adapter) -> Adapter:
        return Adapter(self.S_BLRR - self._joined(other), self.generator)

    def pairs(self) -> tuple[Pair, ...]:
        """The low-rank weight change of every adapted layer; differentiable."""
        return self.generator.pairs(self.S_BLRR)

    def check_origin(self, generator: Generator) -> None:
        """Whether the adapter may be used with a generator.

        Raises:
            UserError: when it was made with another one, or for another backbone.
        """
        if self.generator is not generator:
            _check_origin(self.generator.origin(), generator.origin())

    def save(self, path: Path | str) -> None:
        """Write S to a safetensors file that says which backbone, generator and layers it belongs to."""
        about = {
            **self.generator.origin(),
            "settings": json.dumps({"rank": self.generator.rank, "scale": self.generator.scale}),
        }
        tensors.write(path, {"S": self.S_BLRR}, about)

    @classmethod
    def load(cls, path: Path | str, generator: Generator) -> Adapter:
        """The adapter that `save` wrote.

        Raises:
            UserError: when it is none, or belongs to another generator or backbone.
        """
        stored, about = tensors.read(path, generator.backbone.device)
        if stored.keys() != {"S"}:
            raise UserError(f"{path} is not an adapter that was saved here: check the path.")
        _check_origin(about, generator.origin())
        S_BLRR, empty_1LRR = stored["S"], generator.empty(1)
        fits = S_BLRR.dtype == empty_1LRR.dtype and S_BLRR.shape[1:] == empty_1LRR.shape[1:] and len(S_BLRR)
        if not fits or not bool(S_BLRR.isfinite().all()):
            raise UserError(f"{path} holds an S that its generator cannot have made: give an intact file.")
        return cls(S_BLRR, generator)

    def _joined(self, other: Adapter) -> Tensor:
        other.check_origin(self.generator)
        return other.S_BLRR


def _check_origin(stored: dict[str, str], expected: dict[str, str]) -> None:
    for part, digest in expected.items():
        if stored.get(part) != digest:
            raise UserError(f"This adapter belongs to another {part}: use it with the one that it was made with.")
