"""Full attention: all of the context, as far as the model's positions reach; then it starts again.

Legend: B rows, t tokens of a block.
"""

from __future__ import annotations

from typing import ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab.accounting.formulas import Model
from contextlab.attention import CacheReader, Layout
from contextlab.backbone import Backbone, Rope, StretchedBackbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Capabilities, Lengths
from contextlab.methods.parts.formulas import ForgettingFormula
from contextlab.methods.parts.local_cache import CacheConfig, LocalCache, LocalState
from contextlab.methods.parts.low_rank import LowRankConfig, LowRankMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class FullConfig(CacheConfig, LowRankConfig):
    """How far positions reach, how the cache is stored, and the low-rank update.

    Attributes:
        rope: how the model's rotary positions are stretched, `linear`, `dynamic` (NTK) or `yarn`; not at all when not
            given.
        factor: how many times the model's positions are then read as one context.
    """

    free_at_test: ClassVar[frozenset[str]] = frozenset({"cache"})

    rope: Rope | None = None
    factor: float = pydantic.Field(default=4.0, gt=1)


class Full(LowRankMethod[FullConfig]):
    """Attends to the whole context; a context longer than the model's positions is read in blocks of that length.

    With `rope` the positions are stretched first. Frequencies that change with the length of a text (`dynamic`) do so
    at every multiple of the model's positions; keys are cached without RoPE, and turned by the present ones.

    Attributes:
        stretched: the backbone with stretched positions; None without `rope`.
    """

    Config = FullConfig
    packs_inside = True

    def __init__(self, backbone: Backbone, config: FullConfig | None = None) -> None:
        config = config or FullConfig()
        if config.rope is None and config.factor != FullConfig().factor:
            raise UserError(f"factor={config.factor} stretches positions: say how, as in rope=yarn.")
        self.stretched = StretchedBackbone(backbone, config.rope, config.factor) if config.rope else None
        super().__init__(backbone, config, self.stretched)
        self.local = LocalCache(self.network.max_positions, storage=config.cache)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming up to the model's positions."""
        return Capabilities(max_context=self.local.segment, few_bits=self.local.storage is not None)

    @property
    def step_length(self) -> int | None:
        """Tokens after which the rotary frequencies change; None where they never do."""
        return self.stretched.step if self.stretched else None

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes that end where frequencies change."""
        model, step = Model.of(self.network), self.step_length
        if model is None or step is None:
            return super().formula(ahead)
        return SteppedFormula(model, self.local, step, self.config.update_flops(self.learned))

    def begin(self, empty: LocalState, ahead: Lengths | None) -> LocalState:
        """Keys without RoPE where frequencies change."""
        if self.step_length is None:
            return empty
        return empty.with_caches(empty.kv.with_raw(frozenset(range(self.backbone.layers))))

    def left(self, state: LocalState) -> Tensor:
        """Up to the end of the context, or until frequencies change."""
        left_B, step = super().left(state), self.step_length
        return left_B if step is None else torch.minimum(left_B, step - state.kv.used_B % step)

    def packs_beside(self, state: LocalState) -> bool:
        """Not where frequencies change: they may do so inside of a group that continuations share with the state."""
        return self.step_length is None and super().packs_beside(state)

    def skim(self, state: LocalState, tokens_Bt: Tensor, lengths_B: Tensor) -> LocalState | None:
        """Nothing is computed of the rest of a context, where it is read at once."""
        return super().skim(state, tokens_Bt, lengths_B) if bool((lengths_B == state.left_B).all()) else None

    def reader(self, state: LocalState, layout: Layout) -> CacheReader:
        """Attention with the frequencies of the present length."""
        if self.stretched is None:
            return super().reader(state, layout)
        return CacheReader(self.stretched.positions_at(state.kv.used_B), state.kv, layout)


class SteppedFormula(ForgettingFormula):
    """Full attention whose passes end at every multiple of `step` tokens.

    Args:
        model: sizes of the backbone.
        local: how long a context is.
        step: tokens after which frequencies change.
        update: FLOPs per token of the updates.
    """

    def __init__(self, model: Model, local: LocalCache, step: int, update: int) -> None:
        super().__init__(model, local, None, update)
        self._step = step

    def _left(self, before: int) -> int:
        """Tokens to the end of the context, or until frequencies change."""
        return min(super()._left(before), self._step - self.used(before) % self._step)

    @property
    def packs_beside(self) -> bool:
        """See `Full.packs_beside`."""
        return False
