"""TRIME as a state machine: every token read makes a pair, of what stood in front of it and the token itself.

Pairs of the open segment are local memory, the newest M of those before it long memory; a prediction sees both, and
which pairs it sees does not depend on how a text is cut into calls. Nothing is cut off from the graph: in training,
gradients flow into representations as far back as the state carries one.

Legend: B rows, t tokens of a block, J pairs of memory, W width of the model, C = 2 W that of hidden states and of the
representations after them, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model, update_flops
from contextlab.backbone import Backbone
from contextlab.backbone.wrapper import HEAD_TOKENS
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.low_rank import twin
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.trime import distribution
from contextlab.methods.trime.config import TRIMEConfig
from contextlab.methods.trime.formula import TRIMEFormula
from contextlab.methods.trime.network import RepresentingBackbone
from contextlab.methods.trime.pairs import Pairs, Seen


@dataclasses.dataclass(frozen=True)
class TRIMEState(LocalState):
    """The cache of the open segment, and memory; `pending_BC` ends with the representation of the context.

    Attributes:
        long: pairs of the segments before.
        pairs: those of the open segment.
    """

    long: Pairs
    pairs: Pairs


class TRIME(SegmentMethod[TRIMEConfig, TRIMEState]):
    """Reads segments of N tokens; earlier contexts like the present one raise the tokens that followed them."""

    Config = TRIMEConfig
    head_alone = False

    def __init__(self, backbone: Backbone, config: TRIMEConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.length(backbone.max_positions), storage=self.config.cache)
        network = backbone
        if self.config.rank:
            network = updated = self.config.updated(backbone)
            self.learns(updated.updates, self.config.weights)
        self.network = RepresentingBackbone(backbone, network)

    @property
    def twin(self) -> str:
        """The window with the same update, trained without memory."""
        return twin("window", N=self.config.N, rank=self.config.rank, targets=self.config.targets)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """The window, and a look at all pairs for every prediction."""
        model = Model.of(self.backbone)
        if model is None:
            return None
        first, update = self.first_segment(ahead), update_flops(self.learned)
        return TRIMEFormula(model, self.local, first, most=self.config.M, update=update)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> TRIMEState:
        """Without pairs."""
        none = Pairs.empty(empty.batch_size, empty.pending_BC[0].chunk(2)[1])
        return TRIMEState(empty.length_B, empty.pending_BC, empty.kv, empty.left_B, none, none)

    def continuations(self, state: TRIMEState, longest: int) -> None:
        """Each from a copy of the state, to whose pairs its own tokens belong."""

    def step(self, state: TRIMEState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[TRIMEState, Tensor]:
        """Attend within the segment and make a pair of every token; at its end they become long memory."""
        after, hidden_BtC = super().step(state, tokens_Bt, lengths_B)
        previous_BtC = torch.cat((state.pending_BC[:, None], hidden_BtC[:, :-1]), dim=1)
        new_pairs = Pairs(previous_BtC.chunk(2, dim=-1)[1], tokens_Bt, lengths_B)
        pairs = state.pairs.extended(new_pairs, torch.ones_like(lengths_B, dtype=torch.bool), self.local.segment)
        long, ended_B = state.long, state.left_B == lengths_B
        if bool(ended_B.any()):
            long, pairs = long.extended(pairs, ended_B, self.config.M), pairs.without(ended_B)
        return dataclasses.replace(after, long=long, pairs=pairs), hidden_BtC

    def head(self, state: TRIMEState) -> Callable[[Tensor, Tensor], Tensor]:
        """The softmax over the vocabulary and memory, in which the pairs of a step's own earlier tokens are too."""
        return functools.partial(self._step_logprobs, state.long, state.pairs)

    @torch.no_grad()
    def next_logprobs(self, state: TRIMEState) -> Tensor:
        """`logprobs_BV`, float32: the distribution of the next token of every row."""
        hidden_BW, f_BW = state.pending_BC.chunk(2, dim=-1)
        s_B1J, seen_B1J, token_BJ = self._memory_logits(f_BW[:, None], (state.long.seen(1), state.pairs.seen(1)))
        logprobs_BV = distribution.logprobs_of_all(self._logits(hidden_BW), s_B1J[:, 0], seen_B1J[:, 0], token_BJ)
        return logprobs_BV.float()

    def check_state(self, state: TRIMEState) -> None:
        """Local memory holds the open segment, long memory M pairs at most."""
        super().check_state(state)
        state.long.check("long memory", self.config.M, self.backbone.vocab_size)
        state.pairs.check("local memory", self.local.segment, self.backbone.vocab_size)
        states.within("pairs of local memory in use", state.pairs.used_B, state.kv.used_B, state.kv.used_B)

    def _memory_logits(self, f_BtW: Tensor, memory: Sequence[Seen]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits `s_BtJ` of all pairs for some queries, which of them each sees, and their tokens `token_BJ`."""
        s = [distribution.memory_logits(f_BtW, part.f_BJW, self.config.temperature) for part in memory]
        seen, token = [part.seen_BtJ for part in memory], [part.token_BJ for part in memory]
        return torch.cat(s, dim=-1), torch.cat(seen, dim=-1), torch.cat(token, dim=-1)

    def _step_logprobs(self, long: Pairs, local: Pairs, previous_BtC: Tensor, tokens_Bt: Tensor) -> Tensor:
        rows, length = tokens_Bt.shape
        hidden_BtW, f_BtW = previous_BtC.chunk(2, dim=-1)
        at_once = max(1, HEAD_TOKENS // rows)
        parts = []
        for begin in range(0, length, at_once):
            end = min(begin + at_once, length)
            of_block = Seen.before(f_BtW[:, :end], tokens_Bt[:, :end], end - begin)
            memory = (long.seen(end - begin), local.seen(end - begin), of_block)
            hidden, f, tokens = (x[:, begin:end] for x in (hidden_BtW, f_BtW, tokens_Bt))
            parts.append(self._logprobs(hidden, f, tokens, memory))
        return torch.cat(parts, dim=1)

    def _logprobs(self, hidden_BtW: Tensor, f_BtW: Tensor, tokens_Bt: Tensor, memory: Sequence[Seen]) -> Tensor:
        s_BtJ, seen_BtJ, token_BJ = self._memory_logits(f_BtW, memory)
        logits_BtV = self._logits(hidden_BtW)
        normaliser_Bt = logits_BtV.logsumexp(-1)
        model_Bt = logits_BtV.gather(-1, tokens_Bt[..., None])[..., 0] - normaliser_Bt
        same_BtJ = token_BJ[:, None] == tokens_Bt[..., None]
        return distribution.logprobs_of(model_Bt, normaliser_Bt, s_BtJ, seen_BtJ, same_BtJ)

    def _logits(self, hidden: Tensor) -> Tensor:
        """The backbone's logits, in float32 at least."""
        logits: Tensor = self.backbone.model.get_output_embeddings()(hidden)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))
