"""Update rules of methods that learn while they read: each changes the weights, and its moments, in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Protocol

from torch import Tensor

Tensors = Sequence[Tensor]


class Rule(Protocol):
    """A rule that turns a gradient into an update; `moments` says whether it keeps two tensors per weight."""

    moments: ClassVar[bool]

    def update(self, weights: Tensors, gradients: Tensors, m: Tensors, v: Tensors, count: int) -> None:
        """Update number `count`, from 1."""


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam with bias correction (Kingma & Ba, 2015)."""

    moments: ClassVar[bool] = True
    lr: float
    beta1: float
    beta2: float
    eps: float

    def update(self, weights: Tensors, gradients: Tensors, m: Tensors, v: Tensors, count: int) -> None:
        """Update number `count`, from 1."""
        first, second = 1 - self.beta1**count, 1 - self.beta2**count
        for w, g, m_w, v_w in zip(weights, gradients, m, v, strict=True):
            m_w.lerp_(g, 1 - self.beta1)
            v_w.mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            w.addcdiv_(m_w, (v_w / second).sqrt_().add_(self.eps), value=-self.lr / first)


@dataclasses.dataclass(frozen=True)
class RMS:
    """theta += lambda R (theta_0 - theta) - lr g / (MS + eps), with lambda R at most 1 (Krause et al., 2018).

    Attributes:
        trained: theta_0.
        ms: root mean square of every weight's gradient in training.
        decay: lambda.
    """

    moments: ClassVar[bool] = False
    lr: float
    eps: float
    decay: float
    trained: Tensors
    ms: Tensors

    def update(self, weights: Tensors, gradients: Tensors, m: Tensors, v: Tensors, count: int) -> None:
        """Update number `count`, from 1."""
        mean = sum(float(ms.mean()) for ms in self.ms) / len(self.ms)
        for w, g, trained, ms in zip(weights, gradients, self.trained, self.ms, strict=True):
            w.lerp_(trained, (ms * (self.decay / mean)).clamp_(max=1))
            w.addcdiv_(g, ms + self.eps, value=-self.lr)


@dataclasses.dataclass(frozen=True)
class SGD:
    """theta -= lr g."""

    moments: ClassVar[bool] = False
    lr: float

    def update(self, weights: Tensors, gradients: Tensors, m: Tensors, v: Tensors, count: int) -> None:
        """Update number `count`, from 1."""
        for w, g in zip(weights, gradients, strict=True):
            w.sub_(g, alpha=self.lr)
