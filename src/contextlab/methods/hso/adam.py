"""The paper's Adam (section 3.1): every cached state has its own moments and its own number of steps.

It equals one independent Adam per state, created with the state.

Legend: R rows that move, S states of a row, `1` heads, D width of a state.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from contextlab.methods.hso.config import HSOConfig


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of all states, in place.

    The bias corrections c1 = 1 - beta1^n and c2 = 1 - beta2^n of a state's n-th step are folded into two factors:
    lr * (m / c1) / (sqrt(v / c2) + eps) = m / (a * sqrt(v) + b).
    """

    config: HSOConfig
    lr: Tensor
    a: Tensor
    b: Tensor

    @classmethod
    def of(cls, config: HSOConfig, lr_R111: Tensor, count_R1S1: Tensor, like: Tensor) -> Step:
        """The step that is the `count_R1S1`-th (from 1) of each state; its factors are computed in float64."""
        n, lr = count_R1S1.double(), lr_R111.double()
        c1, c2 = 1 - config.beta1**n, 1 - config.beta2**n
        return cls(config, lr.to(like), (c1 / (lr * c2.sqrt())).to(like), (c1 * config.eps / lr).to(like))

    def adam(self, h: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
        """Move states `h[R, heads, S, D]` and their moments against the gradient `g`."""
        m.lerp_(g, 1 - self.config.beta1)
        v.mul_(self.config.beta2).addcmul_(g, g, value=1 - self.config.beta2)
        h.addcdiv_(m, v.sqrt().mul_(self.a).add_(self.b), value=-1)

    def sgd(self, h: Tensor, g: Tensor) -> None:
        """Move states against the gradient."""
        h.addcmul_(g, self.lr, value=-1)
