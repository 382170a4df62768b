"""GenerativeAdapter's hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from contextlab.config import Weights
from contextlab.errors import UserError
from contextlab.method import MethodConfig

OUTPUT_PROJECTIONS = "*attn.o_proj|*attn.out_proj|*attn.c_proj"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class GenerativeAdapterConfig(MethodConfig):
    """The paper's hyper-parameters (section 4.1), in proportion where it fixes them for a width of 4,096.

    Attributes:
        chunk: the most tokens of a chunk; 1,024 or as many as the model has positions when not given.
        d_r: width of S; a quarter of the model's when not given (the paper's 1,024 of 4,096).
        r: rank kept by `svd` and `svd-lowrank`; an eighth of d_r when not given (the paper's 128 of 1,024).
        alpha: the weight change counts alpha / d_r; d_r / 16 when not given, which is the paper's scale of 1/16
            (alpha 64) at any width.
        normalisation: `svd`, exact; `svd-lowrank`, the randomised one of the released code; `polar`, all singular
            values driven to one by Newton-Schulz iteration; `frobenius`, S over its norm; or `none`.
        niter: power iterations of `svd-lowrank`.
        oversampling: further directions that `svd-lowrank` looks at; the released code has none.
        steps: Newton-Schulz iterations of `polar`; 20 bring singular values above 1e-3 of the norm to one.
        rms_norm: whether states are RMS-normalised, with a learned gain, before they enter S, as in the released code.
        decay: of S, by which it is multiplied where a chunk begins: old chunks then count less; 1 is the paper's sum.
        modules: patterns, separated by |, of the linear layers inside the blocks that are adapted.
        seed: of the initialisation and of `svd-lowrank`.
        weights: a trained generator: `auto`, the one that comes with the package, where one fits; `none`, as
            initialised; or a file, under our names or those of the released checkpoint, or the folder of a run.
    """

    # What the generator makes of one chunk is used in the next ones.
    training_defaults: ClassVar[Mapping[str, Any]] = {"segments": 2}
    free_at_test: ClassVar[frozenset[str]] = frozenset({"chunk"})

    chunk: pydantic.PositiveInt | None = None
    d_r: pydantic.PositiveInt | None = None
    r: pydantic.PositiveInt | None = None
    alpha: pydantic.PositiveFloat | None = None
    normalisation: Literal["svd", "svd-lowrank", "polar", "frobenius", "none"] = "svd"
    niter: pydantic.NonNegativeInt = 1
    oversampling: pydantic.NonNegativeInt = 0
    steps: pydantic.PositiveInt = 20
    rms_norm: bool = True
    decay: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    modules: str = OUTPUT_PROJECTIONS
    seed: int = 0
    weights: Weights = "auto"

    def chunk_length(self, positions: int) -> int:
        """The most tokens of a chunk on a model with that many positions.

        Raises:
            UserError: when the chunk asked for does not fit.
        """
        if self.chunk is not None and positions < self.chunk:
            raise UserError(
                f"A chunk of {self.chunk} tokens does not fit the model's {positions} positions: use chunk={positions}."
            )
        return self.chunk or min(1024, positions)

    def widths(self, width: int) -> tuple[int, int]:
        """d_r and the rank of the pairs, on a model of that width.

        Raises:
            UserError: when r is larger than d_r.
        """
        d_r = self.d_r or max(width // 4, 1)
        if self.r is not None and self.r > d_r:
            raise UserError(f"The rank r={self.r} is larger than d_r={d_r}: choose r of at most {d_r}.")
        return d_r, (self.r or max(d_r // 8, 1)) if self.normalisation.startswith("svd") else d_r
