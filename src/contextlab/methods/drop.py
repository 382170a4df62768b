"""Prompt compression by the backbone's own surprisal: of every segment the least expected tokens stay.

Legend: B rows, t tokens of a block, N tokens of a segment, r tokens that stay of it, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pydantic
import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import COUNT, Model
from contextlab.attention import KV, Layout
from contextlab.backbone import Backbone
from contextlab.formula import Formula
from contextlab.method import Capabilities, ContextMethod, Lengths
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import LocalCache, LocalConfig, LocalState
from contextlab.methods.parts.segments import SegmentMethod

TOKEN_BYTES, SURPRISAL_BYTES = 4, 4


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class DropConfig(LocalConfig):
    """How long a segment is, and how much of it stays.

    Attributes:
        N: tokens of a window; 1,024 or half of the model's positions when not given.
        ratio: share of its tokens that stay when it ends.
    """

    ratio: float = pydantic.Field(default=0.5, gt=0, le=1)


@dataclasses.dataclass(frozen=True)
class DropState(LocalState):
    """The cache of the compressed text and of the open segment, whose tokens are still known.

    Attributes:
        front_B: slots of the compressed text.
        tokens_BN: int32, of the open segment, 0 after its end.
        surprisal_BN: float32, -log P of each of them.
    """

    front_B: Tensor
    tokens_BN: Tensor
    surprisal_BN: Tensor


@dataclasses.dataclass(frozen=True)
class Shortening:
    """How much of a text stays.

    Attributes:
        ratio: share of the tokens of a segment.
        segment: tokens of a segment.
        positions: of the model.
    """

    ratio: float
    segment: int
    positions: int

    def kept(self, tokens: int) -> int:
        """How many tokens of a segment stay."""
        return max(1, round(self.ratio * tokens))

    def starts_empty(self, front: int, tokens: int) -> bool:
        """Whether so many tokens of a compressed text must go, or no segment would fit after it and the next part."""
        return front + self.kept(tokens) + self.segment > self.positions

    def front(self, front: int, tokens: int) -> int:
        """Tokens of the compressed text that stay when a segment ends."""
        return 0 if self.starts_empty(front, tokens) else front


class Drop(SegmentMethod[DropConfig, DropState]):
    """Segments of N tokens; when one ends, its tokens with the highest surprisal are read again, without the others.

    A token's surprisal is known from reading its segment after the compressed text. Then the cache of the segment is
    left out, and the tokens that stay are read after the compressed text, at the next positions: what later tokens
    see is the cache of a shorter text. Where it does not fit the model's positions any more, it begins again.
    """

    Config = DropConfig

    def __init__(self, backbone: Backbone, config: DropConfig | None = None) -> None:
        super().__init__(backbone, config)
        segment = self.config.length(max(1, backbone.max_positions // 2))
        self.local = LocalCache(segment)
        self.shortening = Shortening(self.config.ratio, segment, backbone.max_positions)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming; a segment sees the compressed text before it as long as this fits."""
        segment, rest = self.local.segment, self.backbone.max_positions - self.local.segment
        return Capabilities(max_context=segment * (1 + rest // self.shortening.kept(segment)))

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Every segment once, and once more what stays of it."""
        model = Model.of(self.backbone)
        return None if model is None else DropFormula(model, self.local, self.shortening, self._first(ahead))

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> DropState:
        """An empty state, whose segments end with the context."""
        empty = self.local.empty(self.network, batch_size)
        device = empty.pending_BC.device
        tokens_BN = torch.zeros(batch_size, self.local.segment, dtype=torch.int32, device=device)
        left_B = torch.full_like(empty.left_B, self._first(ahead))
        zeros_B, surprisal_BN = torch.zeros_like(left_B), torch.zeros_like(tokens_BN, dtype=torch.float32)
        return DropState(zeros_B, empty.pending_BC, empty.kv, left_B, zeros_B, tokens_BN, surprisal_BN)

    def step(self, state: DropState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[DropState, Tensor]:
        """Attend to the compressed text and the segment, note surprisals, and close segments that have ended."""
        hidden_BtC, readers = self.forward(state, tokens_Bt, self.local.layout(state, tokens_Bt.shape[1]))
        previous_BtC = torch.cat((state.pending_BC[:, None], hidden_BtC[:, :-1]), dim=1)
        surprisal_Bt = -self.network.logprobs(previous_BtC, tokens_Bt)
        slots_Bt = self._slots(state, tokens_Bt.shape[1], lengths_B)
        noted = dataclasses.replace(
            self.local.grown(state, readers, lengths_B),
            tokens_BN=_written(state.tokens_BN, slots_Bt, tokens_Bt),
            surprisal_BN=_written(state.surprisal_BN, slots_Bt, surprisal_Bt),
        )
        return self.closed(noted, lengths_B), hidden_BtC

    def close(self, state: DropState, ended_B: Tensor) -> DropState:
        """The compressed text, and after it what stays of the segment."""
        shortening, used_B = self.shortening, state.kv.used_B
        open_B = (used_B - state.front_B).tolist()
        pairs = list(zip(state.front_B.tolist(), open_B, strict=True))
        kept_B = torch.where(ended_B, torch.tensor([shortening.kept(tokens) for _, tokens in pairs]), 0)
        front_B = torch.tensor([shortening.front(*pair) for pair in pairs])
        cut_B = torch.where(ended_B, front_B, used_B)
        slots_S = torch.arange(int(cut_B.max()), device=state.device)
        before = state.with_caches(state.kv.take(slots_S.expand(len(ended_B), -1), cut_B))
        kv = self._read(before, self._staying(state, kept_B), kept_B)
        device_B = ended_B.to(state.device)[:, None]
        return dataclasses.replace(
            state.with_caches(kv),
            left_B=torch.where(ended_B, self.local.segment, state.left_B),
            front_B=torch.where(ended_B, kv.used_B, state.front_B),
            tokens_BN=state.tokens_BN.masked_fill(device_B, 0),
            surprisal_BN=state.surprisal_BN.masked_fill(device_B, 0.0),
        )

    def check_state(self, state: DropState) -> None:
        """The open segment is as long as its cache, and its tokens are the backbone's."""
        ContextMethod.check_state(self, state)
        state.kv.check("kv", self.backbone.max_positions)
        states.within("front_B", state.front_B, 0, state.kv.used_B)
        states.within("left_B", state.left_B, 1, self.local.segment - (state.kv.used_B - state.front_B))
        states.within("tokens_BN", state.tokens_BN, 0, self.backbone.vocab_size - 1)

    def _first(self, ahead: Lengths | None) -> int:
        """Tokens of the first segment, so that one ends with the context."""
        return self.local.first_segment(Lengths(ahead.context) if ahead else None)

    def _slots(self, state: DropState, count: int, lengths_B: Tensor) -> Tensor:
        """Where the tokens of a block stand in their segments; N for padding."""
        steps_t = torch.arange(count, device=state.device)
        open_B = (state.kv.used_B - state.front_B).to(state.device)
        real_Bt = steps_t < lengths_B.to(state.device)[:, None]
        return torch.where(real_Bt, open_B[:, None] + steps_t, self.local.segment)

    def _staying(self, state: DropState, kept_B: Tensor) -> Tensor:
        """The tokens with the highest surprisal, in the order of the text; of equal ones the first."""
        slots_N = torch.arange(self.local.segment, device=state.device)
        open_B = (state.kv.used_B - state.front_B).to(state.device)
        surprisal_BN = state.surprisal_BN.masked_fill(slots_N >= open_B[:, None], float("-inf"))
        ranks_BN = surprisal_BN.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        stays_BN = ranks_BN < kept_B.to(state.device)[:, None]
        order_Br = (~stays_BN).int().argsort(dim=1, stable=True)[:, : int(kept_B.max())]
        return state.tokens_BN.gather(1, order_Br).long()

    def _read(self, state: DropState, tokens_Br: Tensor, lengths_B: Tensor) -> KV:
        """The cache of a state with each row's first `lengths_B` tokens after it."""
        _, (reader,) = self.forward(state, tokens_Br, Layout(state.kv.next_positions(tokens_Br.shape[1])))
        return reader.grown(lengths_B)


class DropFormula(LocalFormula):
    """A local cache after a compressed text, and a second pass over what stays of a segment.

    Args:
        model: sizes of the backbone.
        local: how long segments are.
        shortening: how much of them stays.
        first: tokens of the first segment.
    """

    def __init__(self, model: Model, local: LocalCache, shortening: Shortening, first: int) -> None:
        super().__init__(model, local, first)
        self.shortening = shortening

    def kept(self, end: int) -> int:
        """Slots of the compressed text when a segment has ended."""
        front = 0
        for tokens in self.segments.before(end):
            front = self.shortening.front(front, tokens) + self.shortening.kept(tokens)
        return front

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """The forward pass, the probabilities of its tokens, and at a segment's end the pass over what stays."""
        flops = super().step(spans, tokens) + len(spans) * self.model.head(tokens)
        slots = max((self.shortening.kept(span.end - span.begin) for span in spans if span.ended), default=0)
        return flops + sum(self.model.blocks(slots, self.model.pairs(self._slots(span), slots)) for span in spans)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass alone: no segment ends inside of it."""
        return self.network(self._span(before, tokens), tokens)

    def state_bytes(self, length: int) -> int:
        """Bytes of the cache and of the open segment's tokens, with their surprisal."""
        return super().state_bytes(length) + self.local.segment * (TOKEN_BYTES + SURPRISAL_BYTES) + COUNT

    def _slots(self, span: Span) -> int:
        """Slots in front of the second pass."""
        if not span.ended:
            return self.used(span.before + span.taken)
        return self.shortening.front(self.kept(span.begin), span.end - span.begin)


def _written(into_BN: Tensor, slots_Bt: Tensor, values_Bt: Tensor) -> Tensor:
    """Values at places of every row; a place after the last one is left out."""
    wider = torch.nn.functional.pad(into_BN, (0, 1))
    return wider.scatter(1, slots_Bt, values_Bt.to(into_BN.dtype))[:, :-1]
