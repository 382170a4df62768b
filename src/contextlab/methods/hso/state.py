"""The state of HSO between calls, and the same as buffers that one call moves in place.

Legend: B rows, S slots of the cache, K key/value heads, D head width, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch import Tensor

from contextlab.method import State
from contextlab.methods.hso.adam import Step
from contextlab.methods.hso.attend import WindowAttend
from contextlab.methods.hso.config import HSOConfig

Layers = tuple[Tensor, ...]
Moments = tuple[list[Tensor], list[Tensor]]


@dataclasses.dataclass(frozen=True)
class HSOState(State):
    """The cache, its moments, and what is known of the unfinished window. Slots of finished windows come first.

    Attributes:
        k: keys of every layer after rotation, `k_BKSD`; slots after `used_B + open_B` are padding. There are
            none where inputs are cached.
        v: values of every layer likewise, `v_BKSD`.
        inputs: what every layer's attention was given, `x_B1SC`; none where keys and values are cached.
        first: first moments of the states that move, slots up to the longest `used_B`; none where they move once.
        second: second moments likewise.
        tokens_BS: the tokens of the slots.
        used_B: slots of finished windows.
        open_B: tokens of the unfinished window; k of them when it only waits for its last target.
        left_B: tokens until the context is reset.
        mean_B: mean loss of the finished windows of the context, nats per token.
        recent_B: sum of these means over the windows of the stretch that is judged next.
        worst_B: highest loss of a stretch that was seen not to have diverged, nats per token.
    """

    k: Layers
    v: Layers
    inputs: Layers
    first: Layers
    second: Layers
    tokens_BS: Tensor
    used_B: Tensor
    open_B: Tensor
    left_B: Tensor
    mean_B: Tensor
    recent_B: Tensor
    worst_B: Tensor

    @property
    def cached(self) -> int:
        """Tokens in view."""
        return int((self.used_B + self.open_B).sum())

    @property
    def layers(self) -> Layers:
        """All that is cached: keys of every layer, then values of every layer, or the inputs of every layer."""
        return (*self.k, *self.v, *self.inputs)

    def unpadded(self) -> Self:
        """The state without slots that no row uses; see `State.unpadded`."""
        slots, used = int((self.used_B + self.open_B).max()), int(self.used_B.max())
        sizes = {"k": slots, "v": slots, "inputs": slots, "first": used, "second": used}
        layers: dict[str, Any] = {
            name: tuple(x[:, :, :size] for x in getattr(self, name)) for name, size in sizes.items()
        }
        return dataclasses.replace(self, tokens_BS=self.tokens_BS[:, :slots], **layers).own(self.owner)


class MomentBuffers:
    """Cache and moments, preallocated for `slots` slots; those after a row's states hold no moments.

    Attributes:
        cached: keys of every layer, then values of every layer; or the inputs of every layer.
    """

    def __init__(self, config: HSOConfig, state: HSOState, slots: int) -> None:
        self.config, self.slots, self._before = config, slots, state
        self.cached = [grown(x, 2, slots) for x in state.layers]
        every, keys = range(len(self.cached)), len(state.k)
        self._chosen = {"keys": every[:keys], "values": every[keys:]}.get(config.states, every)
        self._moments: Moments | None = None

    def cut(self, slots: int, used: int) -> dict[str, Layers]:
        """What is cached and its moments, of the first slots, under the names of a state's fields."""
        first, second = self._moments or (self._before.first, self._before.second)
        keys = len(self._before.k)
        parts = {"k": self.cached[:keys], "v": self.cached[keys : 2 * keys], "inputs": self.cached[2 * keys :]}
        cut = {name: _first(part, slots) for name, part in parts.items()}
        return cut | {"first": _first(first, used), "second": _first(second, used)}

    def moments(self, used_B: Tensor) -> Moments:
        """Moments to move: kept ones, copied when first needed, or those of one window, which are not kept."""
        if self.config.optimizer == "sgd":
            return [], []
        if not self.config.keeps_moments:
            rows, heads, _, width = self.cached[0].shape
            shape = (rows, heads, self.config.k, width)
            first, second = ([self.cached[0].new_zeros(shape) for _ in self._chosen] for _ in range(2))
            return first, second
        if self._moments is None:
            free_B1S1 = torch.arange(self.slots, device=used_B.device)[:, None] >= used_B[:, None, None, None]
            first, second = (
                [grown(x, 2, self.slots).masked_fill_(free_B1S1, 0) for x in xs]
                for xs in (self._before.first, self._before.second)
            )
            self._moments = first, second
        return self._moments

    def move(self, rows: slice | Tensor, step: Step, attend: WindowAttend, moments: Moments) -> None:
        """One step of the states of some rows in `attend`'s view against their gradients."""
        present = self.config.update == "present"
        for number, i in enumerate(self._chosen):
            h, g = attend.cached[i], attend.gradients[i]
            index = attend.slot_index(h)
            if present:
                h, g = h.gather(2, index), g.gather(2, index)
            whole = [h, *(xs[number][:, :, : g.shape[2]] for xs in moments if xs)]
            moved = [x[rows] for x in whole]
            if self.config.optimizer == "sgd":
                step.sgd(moved[0], g[rows])
            else:
                step.adam(moved[0], g[rows], *moved[1:])
            if isinstance(rows, Tensor):
                for x, part in zip(whole, moved, strict=True):
                    x[rows] = part
            if present:
                attend.cached[i].scatter_(2, index, h)

    def restart(self, rows_B: Tensor) -> None:
        """Moments of the states of `rows_B` are dropped with them."""
        if self._moments is not None and bool(rows_B.any()):
            for x in (*self._moments[0], *self._moments[1]):
                x.masked_fill_(rows_B[:, None, None, None], 0)

    def evict(self, over_B: Tensor, most: int, tokens_BS: Tensor) -> None:
        """Drop each row's first `over_B` slots, the tokens of them too; `most` are kept."""
        first, second = self._moments or ([], [])
        for over in over_B[over_B > 0].unique().tolist():
            rows = slice(None) if bool((over_B == over).all()) else (over_B == over).nonzero()[:, 0]
            for x in (*self.cached, *first, *second, tokens_BS[:, None, :, None]):
                x[rows, :, :most] = x[rows, :, over : over + most].clone()
                x[rows, :, most:] = 0


def _first(xs_BKSD: Iterable[Tensor], slots: int) -> Layers:
    return tuple(x[:, :, :slots].contiguous() for x in xs_BKSD)


def grown(x: Tensor, dim: int, slots: int) -> Tensor:
    """A copy of `x`, preallocated for that many slots."""
    shape = list(x.shape)
    shape[dim] = slots
    grown = x.new_zeros(shape)
    grown.narrow(dim, 0, x.shape[dim]).copy_(x)
    return grown
