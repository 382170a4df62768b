"""LongMem's hyper-parameters and the switches between the paper and the released code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pydantic

from contextlab.config import Weights
from contextlab.errors import UserError
from contextlab.methods.window import LocalConfig


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LongMemConfig(LocalConfig):
    """The paper's hyper-parameters (Table 8) and the choices that the paper and the released code make differently.

    Attributes:
        N: tokens of a segment, the local context.
        M: tokens the bank holds per row.
        K: tokens retrieved per query and head.
        csz: tokens of a chunk, at most N; the last tokens of a segment that fill no chunk are not stored (N mod csz).
        reduction: backbone layers per side layer.
        memory_layer: zero-based backbone layer whose keys and values are cached; three quarters up when not given
            (the paper's 18th of 24).
        init: `identity`, every side block's own update starts at zero, so that the untrained network equals the
            backbone's window; or `paper`, side layer l copies backbone layer reduction*l + 1.
        last_residual: `raw`, the last cross-network residual uses h_L' as in equation 1; or `normed`, the state after
            the final norm as in the released code.
        side_arithmetic: `backbone`, side layers compute as the layers they copy; or `released`, exact gelu and a norm
            epsilon of 1e-5 as in the released code (only with its own backbone).
        bank_scope: `per_row`, or `shared` by all rows of a batch, of equal length, as in the released code.
        eviction: `fifo` keeps the newest M tokens; `official_two_step` drops two steps' worth at once.
        short_bank: with fewer chunks than asked for, `mask` them, or attend to a `zero_slot` as the released code does.
        storage_dtype: type of the cached keys and values.
        weights: trained side weights: `auto`, those that come with the package, where some fit; `none`, the network as
            initialised; or a file, or the folder of a training run.
    """

    # Table 8; the decay to zero is that of the released script.
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 2e-4,
        "betas": (0.9, 0.98),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "clip": 2.0,
        "schedule": "polynomial",
        "warmup": 0.0,
    }
    free_at_test: ClassVar[frozenset[str]] = frozenset({"N", "M", "K", "csz"})

    M: pydantic.PositiveInt = 65536
    K: pydantic.PositiveInt = 64
    csz: pydantic.PositiveInt = 4
    reduction: pydantic.PositiveInt = 2
    memory_layer: pydantic.NonNegativeInt | None = None
    init: Literal["identity", "paper"] = "identity"
    last_residual: Literal["raw", "normed"] = "raw"
    side_arithmetic: Literal["backbone", "released"] = "backbone"
    bank_scope: Literal["per_row", "shared"] = "per_row"
    eviction: Literal["fifo", "official_two_step"] = "fifo"
    short_bank: Literal["mask", "zero_slot"] = "mask"
    storage_dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    weights: Weights = "auto"

    def __post_init__(self) -> None:
        """Check what the fields say together."""
        if self.K % self.csz or self.M % self.csz:
            raise UserError(f"K={self.K} and M={self.M} must be multiples of the chunk size csz={self.csz}.")
        if self.init == "identity" and self.last_residual == "normed":
            raise UserError("init=identity equals the backbone only with last_residual=raw: set one of the two.")
