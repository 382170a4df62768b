"""Dynamic evaluation's hyper-parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pydantic

from contextlab.errors import UserError
from contextlab.methods.parts.local_cache import LocalConfig

LR = {"adam": 3e-5, "rms": 1e-5, "sgd": 1e-3}
EPS = {"adam": 1e-8, "rms": 1e-4, "sgd": 0.0}

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class DynamicEvalConfig(LocalConfig):
    """The choices of Krause et al. (2018, 2019); N is the context, which starts cold as in a window.

    Attributes:
        N: tokens of a context.
        segment: tokens between two updates; a context's last segment may be shorter.
        rule: `adam`; `rms`, gradients over their root mean square in training, with decay to the trained weights;
            or `sgd`.
        lr: learning rate; 0 leaves the weights alone. When not given: 3e-5 (adam), 1e-5 (rms), 1e-3 (sgd).
        beta1: decay of Adam's first moment.
        beta2: decay of Adam's second moment.
        eps: added to the denominator. When not given: 1e-8 (adam), 1e-4 (rms).
        decay: lambda, the share of the way back to the trained weights per update (rms).
        statistics: safetensors file of what `gradient_statistics` returned (rms).
        cache: after an update the context's cached states stay `stale`, or are `recomputed` with the new weights.
        parameters: names of the parameters that learn, as a pattern such as `*.mlp.*`.
    """

    segment: pydantic.PositiveInt = 128
    rule: Literal["adam", "rms", "sgd"] = "adam"
    lr: pydantic.NonNegativeFloat | None = None
    beta1: Beta = 0.9
    beta2: Beta = 0.999
    eps: pydantic.NonNegativeFloat | None = None
    decay: pydantic.NonNegativeFloat = 2e-3
    statistics: Path | None = None
    cache: Literal["stale", "recomputed"] = "stale"
    parameters: str = "*"

    def __post_init__(self) -> None:
        """Fill in what depends on the rule, so that a stored configuration says it."""
        if self.rule == "rms" and self.statistics is None:
            raise UserError(
                "rule=rms needs gradients of a training sample: save gradient_statistics(...) and give statistics=FILE."
            )
        for name, defaults in (("lr", LR), ("eps", EPS)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[self.rule])
