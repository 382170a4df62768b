"""HSO as a state machine: a window is read with the states as they are, and moves them when its last target is known.

The last target of a window is the first token of the next, so a window's update waits for it; the log-probability of a
token always comes from before the update. Between calls a state holds no graph: a window that waits is run once more,
with gradients, when the token arrives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone, KeyValueProjections
from contextlab.formula import Formula
from contextlab.method import Capabilities, ContextMethod, Lengths
from contextlab.methods.hso.config import HSOConfig
from contextlab.methods.hso.formula import HSOFormula
from contextlab.methods.hso.reading import HsoReading
from contextlab.methods.hso.state import HSOState
from contextlab.methods.window import Window, WindowConfig

NEVER = 1 << 60


class HSO(ContextMethod[HSOConfig, HSOState]):
    """After each window of k tokens, one gradient step on the cached keys and values, or inputs of layers (section 3).

    Keys are rotated to positions that count from the start of the context, when they are cached or when they are made
    of cached inputs; with `sliding` eviction they run on. Half-precision models get float32 states: steps of `lr` would
    be lost in a narrower type.
    """

    Config = HSOConfig

    def __init__(self, backbone: Backbone, config: HSOConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.context = self.config.length(backbone.max_positions)
        self.resets = self.config.eviction == "reset"
        backbone.check_differentiable()
        self.projections = KeyValueProjections(backbone) if self.config.of_inputs else None

    @property
    def capabilities(self) -> Capabilities:
        """Differentiates while it reads; contexts that are reset start cold."""
        return Capabilities(needs_gradients=True, segment=self.context if self.resets else None)

    def baseline(self) -> Window | None:
        """The window, which HSO with lr=0 equals."""
        plain = self.config.lr == 0 and self.resets
        return Window(self.backbone, WindowConfig(N=self.context)) if plain else None

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Windows forwards and backwards."""
        model = Model.of(self.backbone)
        if model is None:
            return None
        return HSOFormula(model, self.config, self.context, self._first(ahead) if self.resets else None)

    def _first(self, ahead: Lengths | None) -> int:
        """Tokens of the first context."""
        return ahead.first_segment(self.context) if ahead else self.context

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> HSOState:
        """An empty cache."""
        backbone = self.backbone
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        losses_B = torch.zeros(batch_size, device=backbone.device)
        first = self._first(ahead)
        width = torch.promote_types(backbone.attention_dtype, torch.float32)
        of_inputs = self.config.of_inputs
        shape = (1, 0, backbone.width) if of_inputs else (backbone.kv_heads, 0, backbone.head_width)
        empty = torch.zeros(batch_size, *shape, dtype=width, device=backbone.device)
        every, none = (empty,) * backbone.layers, ()
        chosen = every * 2 if self.config.states == "both" else every
        moments = chosen if self.config.keeps_moments else none
        return HSOState(
            length_B=zeros_B,
            pending_BC=backbone.bos_hidden_C.expand(batch_size, -1),
            k=none if of_inputs else every,
            v=none if of_inputs else every,
            inputs=every if of_inputs else none,
            first=moments,
            second=moments,
            tokens_BS=torch.zeros(batch_size, 0, dtype=torch.int64, device=backbone.device),
            used_B=zeros_B,
            open_B=zeros_B,
            left_B=zeros_B + (first if self.resets else NEVER),
            mean_B=losses_B,
            recent_B=losses_B,
            worst_B=losses_B,
        )

    def check_state(self, state: HSOState) -> None:
        """Finished windows and the open one are in the cache, and no more than a context of them."""
        super().check_state(state)
        config, held_B = self.config, state.used_B + state.open_B
        states.same_slots("the cache", (*state.layers, state.tokens_BS[:, None]), held_B)
        states.within("used_B", state.used_B, 0, self.context)
        states.within("open_B", state.open_B, 0, config.k)
        if self.resets:
            states.within("left_B", state.left_B, 1, self.context - held_B)
        else:
            states.within("left_B", state.left_B, NEVER - state.length_B, NEVER - state.length_B)
        if config.keeps_moments:
            states.same_slots("the moments", (*state.first, *state.second), state.used_B)
        for v in state.second:
            states.within("second", v, 0, v.new_tensor(float("inf")))
        states.within("tokens_BS", state.tokens_BS, 0, self.backbone.vocab_size - 1)

    def read(
        self, state: HSOState, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[HSOState, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`. A row that diverges has NaN for log-probabilities from there on.

        Raises:
            UserError: when every row has diverged.
        """
        # Gradients are needed here even where the caller has switched them off.
        with torch.inference_mode(False), torch.no_grad(), self.backbone.frozen():
            reading = HsoReading(
                self.backbone,
                self.config,
                state,
                tokens_BT,
                lengths_B,
                context=self.context,
                scored=logprobs,
                projections=self.projections,
            )
            while bool((reading.rest_B > 0).any()):
                reading.window()
            return reading.state(), reading.logprobs_BT
