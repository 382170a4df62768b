"""Continuations after a packed cache, each of which packs its own tokens as it would alone.

A group is packed when its last token has been read, and what follows sees what packing has left of it. Its first tokens
may be the newest of the state, so that these lie among the tokens of every continuation and not in the shared cache.

Legend: B rows, T tokens, N continuations, P tokens of earlier passes, S slots, C width of the model.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import torch
from torch import Tensor

from contextlab.attention import KV
from contextlab.methods.parts.branches import Branches, Tail
from contextlab.methods.parts.groups import GROUP
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.packed_cache import PackedKV

L = TypeVar("L", bound=LocalState)


class PackedTail(Tail[L]):
    """See `Tail`; all rows have as many tokens in their caches."""

    extra = GROUP

    def __init__(self, branches: Branches[L], state: L, count: int) -> None:
        assert isinstance(state.kv, PackedKV)
        self.stored, newest = state.caches, int(state.kv.newest_B[0])
        caches = (_spread(kv.opened(), newest, count) for kv in state.caches)
        start = dataclasses.replace(state.with_caches(*caches), length_B=state.length_B - newest)
        super().__init__(branches, start, count)
        self.newest = newest
        self.exact = state.kv.exact - int(state.kv.first.used_B[0])
        self.length_N = torch.full((count,), newest)
        self.packed_N = torch.zeros_like(self.length_N)
        self.steps_P = torch.arange(newest, device=self.group_P.device).repeat(count)
        self.group_P = torch.arange(count, device=self.group_P.device).repeat_interleave(newest)

    def read(self, tokens_BT: Tensor, group_T: Tensor, steps_T: Tensor, *, keep: bool) -> Tensor:
        """See `Tail`: in as many passes as there are groups of one continuation that the tokens belong to."""
        group, steps = group_T.cpu(), steps_T.cpu() + self.newest
        pass_T = self._group_of(steps) - self._group_of(self.length_N)[group]
        last = int(pass_T.max())
        hidden = []
        for number in range(last + 1):
            self._pack()
            index = (pass_T == number).nonzero()[:, 0]
            of_pass = index.to(group_T.device)
            more = keep or number < last
            steps_t = steps_T[of_pass] + self.newest
            hidden.append((of_pass, super().read(tokens_BT[:, of_pass], group_T[of_pass], steps_t, keep=more)))
            self.length_N = self.length_N + group[index].bincount(minlength=self.count)
        order = torch.cat([of_pass for of_pass, _ in hidden])
        return torch.cat([hidden_BtC for _, hidden_BtC in hidden], dim=1)[:, order.argsort()]

    def _group_of(self, steps: Tensor) -> Tensor:
        """The group of tokens after so many others, which is how many groups these fill; the first for exact ones."""
        return (steps - self.exact).clamp(min=0) // GROUP

    def _pack(self) -> None:
        """Pack the groups that are whole; no pass has completed more than one of a continuation."""
        whole_N = self._group_of(self.length_N)
        ready_N = whole_N > self.packed_N
        if not bool(ready_N.any()):
            return
        steps, group = self.steps_P.cpu(), self.group_P.cpu()
        whole_P = ready_N[group] & (steps >= self.exact) & (self._group_of(steps) == self.packed_N[group])
        index = whole_P.nonzero()[:, 0]
        in_order = index[group[index].argsort(stable=True)]
        slots_S = (in_order + self.state.kv.slots - len(steps)).to(self.group_P.device)
        rounded = (old.rounded(kv, slots_S) for old, kv in zip(self.stored, self.state.caches, strict=True))
        self.state, self.packed_N = self.state.with_caches(*rounded), whole_N


def _spread(kv: KV, newest: int, count: int) -> KV:
    """A cache whose newest tokens lie after the others once for every continuation."""
    shared = kv.slots - newest

    def spread(x_BKSD: Tensor) -> Tensor:
        return torch.cat((x_BKSD[:, :, :shared], x_BKSD[:, :, shared:].repeat(1, 1, count, 1)), dim=2)

    return kv.replace(tuple(map(spread, kv.k)), tuple(map(spread, kv.v)), kv.used_B - newest)
