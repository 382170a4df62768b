"""A cache and weights at once, as a state machine.

Legend: B rows, T tokens of a call, t tokens up to the next change of weights.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contextlab import calls, files, states
from contextlab.backbone import Backbone
from contextlab.formula import Formula
from contextlab.method import AnyMethod, Capabilities, ContextMethod, Lengths, State
from contextlab.methods.composed.config import ComposedConfig
from contextlab.methods.composed.formula import ComposedFormula
from contextlab.methods.parts.blocks import BlockTokens
from contextlab.methods.parts.context_weights import WeightsState
from contextlab.methods.parts.formulas import LocalFormula, WeightsFormula
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.targets import adapted


@dataclasses.dataclass(frozen=True)
class ComposedState(State):
    """The states of both methods after the same text.

    Attributes:
        cache: of the method that reads.
        weights: of the method that makes weights.
    """

    cache: LocalState
    weights: WeightsState

    @property
    def cached(self) -> int:
        """Those of the cache."""
        return self.cache.cached


class Composed(ContextMethod[ComposedConfig, ComposedState]):
    """Reads with a cache, and with the weights that another method has made of the text so far.

    Both methods read every token, each as it does alone. The one that makes weights is not changed at all: its chunks
    start cold, and its state is the one that it has alone. What the other one computes, keys and values that it caches
    included, is computed with the weights of all chunks that have ended before.
    """

    Config = ComposedConfig

    def __init__(self, backbone: Backbone, config: ComposedConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.cache, self.weights = self.config.cache(backbone), self.config.weights(backbone)

    @property
    def parts(self) -> tuple[AnyMethod, AnyMethod]:
        """Both methods."""
        return self.cache, self.weights

    @property
    def capabilities(self) -> Capabilities:
        """Of the cache; weights stay where it starts again."""
        return dataclasses.replace(self.cache.capabilities, max_context=None)

    @property
    def untrained(self) -> bool:
        """Whether one of the two is."""
        return any(part.untrained for part in self.parts)

    @property
    def weights_digest(self) -> str | None:
        """sha256 of what both have learned and of the files that they read; None without such."""
        learned = [digest for part in self.parts if (digest := part.weights_digest) is not None]
        paths = [value for part in self.parts for value in part.config.as_dict().values() if isinstance(value, Path)]
        digests = learned + [files.sha256(path) for path in paths]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest() if digests else None

    def baseline(self) -> AnyMethod | None:
        """The cache alone, while no text changes weights."""
        return None if self.weights.baseline() is None else self.cache

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """The sum of both, with the products of the changes; None where one of the two has none."""
        cache, weights = self.cache.formula(ahead), self.weights.formula(ahead)
        if not isinstance(cache, LocalFormula) or not isinstance(weights, WeightsFormula):
            return None
        return ComposedFormula(cache, weights)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> ComposedState:
        """Both empty states."""
        cache, weights = (part.start(batch_size, ahead=ahead) for part in self.parts)
        return ComposedState(cache.length_B, cache.pending_BC, cache, weights)

    @torch.no_grad()
    def read(
        self, state: ComposedState, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[ComposedState, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`."""
        left_B = torch.full_like(state.length_B, tokens_BT.shape[1]) if lengths_B is None else lengths_B.cpu()
        done_B = torch.zeros_like(left_B)
        logprobs_BT = torch.zeros(tokens_BT.shape, device=tokens_BT.device) if logprobs else None
        while bool((left_B > 0).any()):
            take_B = torch.minimum(left_B, self.weights.room(state.weights))
            block = BlockTokens(done_B, take_B, tokens_BT)
            with self._changed(state):
                cache, logprobs_Bt = self.cache.read(state.cache, block.tokens_Bt, take_B, logprobs=logprobs)
            with calls.within(self.weights):
                weights, _ = self.weights.read(state.weights, block.tokens_Bt, take_B, logprobs=False)
            if logprobs_BT is not None and logprobs_Bt is not None:
                block.put(logprobs_Bt, logprobs_BT)
            state = ComposedState(cache.length_B, cache.pending_BC, cache, weights)
            done_B, left_B = done_B + take_B, left_B - take_B
        return state, logprobs_BT

    @torch.no_grad()
    def score(self, state: ComposedState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """With the cache alone, where no candidate is as long as to change weights."""
        if not self._within(state, max(map(len, candidates), default=0)):
            return super().score(state, candidates)
        with self._changed(state):
            return self.cache.score(state.cache, candidates)

    @torch.no_grad()
    def score_rows(self, state: ComposedState, candidates: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Every row's candidates as in `score`."""
        if not self._within(state, max((len(text) for row in candidates for text in row), default=0)):
            return super().score_rows(state, candidates)
        with self._changed(state):
            return self.cache.score_rows(state.cache, candidates)

    @torch.no_grad()
    def generate(
        self, state: ComposedState, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[int]]:
        """With the cache alone, where no text is as long as to change weights."""
        # The last token is not read.
        if not self._within(state, max(map(len, prompts), default=0) + max_new_tokens - 1):
            return super().generate(state, prompts, max_new_tokens=max_new_tokens, **options)
        with self._changed(state):
            return self.cache.generate(state.cache, prompts, max_new_tokens=max_new_tokens, **options)

    def check_state(self, state: ComposedState) -> None:
        """Both states are of the same text."""
        super().check_state(state)
        for name, part, own in (("cache", self.cache, state.cache), ("weights", self.weights, state.weights)):
            part.check_state(own)
            states.within(f"{name}.length_B", own.length_B, state.length_B, state.length_B)

    @contextmanager
    def _changed(self, state: ComposedState) -> Iterator[None]:
        """Calls of the cache with every row's weights; copies of a row, which lie beside each other, have the row's."""
        changes = adapted(self.weights.targets, state.weights.pairs.__getitem__)
        with calls.within(self.cache), changes:
            yield

    def _within(self, state: ComposedState, longest: int) -> bool:
        """Whether texts of at most so many tokens change no row's weights."""
        return longest <= int(self.weights.room(state.weights).min())

    def _parameters(self) -> Iterable[nn.Parameter]:
        return itertools.chain.from_iterable(part._parameters() for part in self.parts)
