"""A cartridge as a state machine: the first slots of the local cache, which are trained when the context ends.

Until then they hold the keys and values of the text's first tokens, and the context's tokens are kept. Nothing else of
the context stays: a question follows BOS, with the cartridge in view.

Legend: B rows, N tokens of a context, t tokens of a block, C width of the model; 1 stands for a single row.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.attention import KV
from contextlab.backbone import Backbone
from contextlab.formula import Formula
from contextlab.method import Capabilities, Lengths
from contextlab.methods.cartridge.config import CartridgeConfig
from contextlab.methods.cartridge.fit import CartridgeFit
from contextlab.methods.cartridge.formula import CartridgeFormula
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.open_context import OpenContextState
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.writing import put


class Cartridge(SegmentMethod[CartridgeConfig, OpenContextState]):
    """Attends to a window of N tokens, and to p keys and values that have been trained to stand for the context."""

    Config = CartridgeConfig

    def __init__(self, backbone: Backbone, config: CartridgeConfig | None = None) -> None:
        super().__init__(backbone, config)
        sizes = self.config.sizes(backbone.max_positions)
        self.local = LocalCache(self.config.length(backbone.max_positions - sizes.p), keep_first=sizes.p)
        self.fit = CartridgeFit(backbone, self.config, sizes)

    @property
    def capabilities(self) -> Capabilities:
        """Differentiates at the end of a context; windows start cold, after the cartridge."""
        return dataclasses.replace(super().capabilities, needs_gradients=True)

    def baseline(self) -> Sliding | None:
        """Windows after the text's first tokens, where no context is announced."""
        if self.config.context is not None:
            return None
        return Sliding(self.backbone, SlidingConfig(N=self.local.segment, sinks=self.local.keep_first, recent=0))

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes over what the cache holds, and the training."""
        model, plain = Model.of(self.backbone), self.fit.plain.formula()
        if model is None or plain is None:
            return None
        first = self.first_segment(ahead)
        return CartridgeFormula(model, plain, self.local, first, self._context(ahead), self.fit)

    def placed_for(self, ahead: Lengths | None) -> Lengths | None:
        """The context alone: a segment ends with it."""
        context = self._context(ahead)
        return Lengths(context) if context else None

    def begin(self, empty: LocalState, ahead: Lengths | None) -> OpenContextState:
        """Without tokens."""
        return OpenContextState(
            empty.length_B,
            empty.pending_BC,
            empty.kv,
            empty.left_B,
            tokens_BN=torch.zeros(empty.batch_size, 0, dtype=torch.int64, device=empty.device),
            context_B=torch.full_like(empty.length_B, self._context(ahead)),
        )

    def check_state(self, state: OpenContextState) -> None:
        """All tokens of a context are there until it ends, and a segment ends with it."""
        super().check_state(state)
        rest_B = state.context_B - state.length_B
        state.check_context(self.backbone.vocab_size)
        states.within("left_B", state.left_B * state.open_B, 0, rest_B.clamp(min=0))

    def step(self, state: OpenContextState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[OpenContextState, Tensor]:
        """Attend to the cartridge and the window; train where the context ends."""
        ends_B = state.open_B & (state.length_B + lengths_B == state.context_B)
        read, hidden_BtC = super().step(_with_tokens(state, tokens_Bt, lengths_B), tokens_Bt, lengths_B)
        if not bool(ends_B.any()):
            return read, hidden_BtC
        hidden_BtC = hidden_BtC.clone()
        rows = []
        for b, length in enumerate((state.length_B + lengths_B).tolist()):
            row = read.row(b)
            # A row alone holds as many tokens as its length says, which is counted after the step.
            tokens_1N = read.tokens_BN[b : b + 1, :length]
            if bool(ends_B[b]):
                row = dataclasses.replace(row, kv=self.fit(tokens_1N))
                # The last hidden state of a block is what predicts the next token: here, that of a question.
                hidden_BtC[b, int(lengths_B[b]) - 1] = self._after_bos(row.kv)
            still_open = length < int(row.context_B)
            rows.append(dataclasses.replace(row, tokens_BN=tokens_1N if still_open else tokens_1N[:, :0]))
        return states.joined(rows), hidden_BtC

    def _context(self, ahead: Lengths | None) -> int:
        """Tokens of the context; 0 without one."""
        return ahead.context if ahead else self.config.context or 0

    def _after_bos(self, cartridge: KV) -> Tensor:
        """`hidden_C` after BOS, with the cartridge in view."""
        bos_11 = torch.tensor([[self.backbone.bos]], device=self.backbone.device)
        return self.fit.hidden(cartridge, bos_11)[0, 0]


def _with_tokens(state: OpenContextState, tokens_Bt: Tensor, lengths_B: Tensor) -> OpenContextState:
    """The state with the tokens of a block, in rows whose context has not ended."""
    taken_B = lengths_B * state.open_B
    if not bool(taken_B.any()):
        return state
    known_B = state.length_B * state.open_B
    return dataclasses.replace(state, tokens_BN=put(state.tokens_BN, tokens_Bt, known_B, taken_B))
