"""GenerativeAdapter as a state machine.

Legend: B rows, t tokens of a block, C width of the model, L adapted layers, R = d_r.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone, linear_layers
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.generative_adapter import released
from contextlab.methods.generative_adapter.adapter import Adapter
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.generative_adapter.formula import AdapterFormula, Widths
from contextlab.methods.generative_adapter.generator import Generator
from contextlab.methods.parts.context_weights import WeightsMethod, WeightsState
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.low_rank import Targets, twin
from contextlab.methods.window import Window, WindowConfig


@dataclasses.dataclass(frozen=True)
class AdapterState(WeightsState):
    """The context as weights, and what they are made of.

    Attributes:
        S_BLRR: sum over all tokens read, those of the open chunk included; without layers in a state that only answers.
    """

    S_BLRR: Tensor


class GenerativeAdapter(WeightsMethod[GenerativeAdapterConfig, AdapterState]):
    """Turns every finished chunk into a low-rank change of weights by a learned generator (section 3)."""

    Config = GenerativeAdapterConfig

    def __init__(self, backbone: Backbone, config: GenerativeAdapterConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.chunk_length(backbone.max_positions))
        self.generator = self.learns(Generator(backbone, self.config), self.config.weights)
        self.targets = self.generator.targets

    @property
    def twin(self) -> str:
        """The window of a chunk's length with an update of the pairs' rank, the same for every context."""
        attention = {layer.path for layer in linear_layers(self.backbone) if layer.of_attention}
        targets: Targets = "attention" if all(target.name in attention for target in self.generator.targets) else "all"
        return twin("window", N=self.config.chunk, rank=self.generator.rank, targets=targets)

    def baseline(self) -> Window | None:
        """The window, while A1 is zero; after an announced context it is the closed book."""
        return Window(self.backbone, WindowConfig(N=self.local.segment)) if self.generator.untrained else None

    def renamed_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """The authors' released weights, or ours."""
        return released.generator_weights(weights) if released.is_released(weights) else weights

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes with the pairs, S, and weights made of it."""
        model, generator = Model.of(self.backbone), self.generator
        if model is None:
            return None
        widths = Widths(generator.d_r, generator.rank, generator.targets)
        return AdapterFormula(model, self.local.segment, self.config, widths, ahead)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> AdapterState:
        """Without a change of weights."""
        context_B = empty.length_B + (ahead.context if ahead else 0)
        return AdapterState(
            empty.length_B,
            empty.pending_BC,
            empty.kv,
            left_B=self.chunk_after(empty.length_B, context_B),
            pairs=self.generator.no_pairs(empty.batch_size),
            context_B=context_B,
            S_BLRR=self.generator.empty(empty.batch_size),
        )

    def step(self, state: AdapterState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[AdapterState, Tensor]:
        """Attend within the chunk, add its states to S, and at its end make the weights of the next."""
        ended_B = state.left_B == lengths_B
        real_Bt = (torch.arange(tokens_Bt.shape[1]) < lengths_B[:, None]).to(tokens_Bt.device)
        grams: list[Tensor] = []

        def enter(i: int, hidden_BtC: Tensor) -> None:
            grams.append(self.generator.layer(i).gram(hidden_BtC, real_Bt))

        learning = state.S_BLRR.shape[1] > 0
        layout = self.local.layout(state, tokens_Bt.shape[1])
        hidden_BtC, readers = self.forward(state, tokens_Bt, layout, enter if learning else None)
        read = self.local.after(state, readers, lengths_B, self.backbone)
        if not learning:
            return read, hidden_BtC
        S_BLRR = state.S_BLRR
        begun_B = (state.kv.used_B == 0) & (lengths_B > 0)
        if self.config.decay < 1 and bool(begun_B.any()):
            S_BLRR = torch.where(begun_B.to(state.device)[:, None, None, None], self.config.decay * S_BLRR, S_BLRR)
        read = dataclasses.replace(read, S_BLRR=S_BLRR + torch.stack(grams, dim=1))
        if not bool(ended_B.any()):
            return read, hidden_BtC
        ended = ended_B.nonzero()[:, 0].to(state.device)
        new_pairs = self.generator.pairs(read.S_BLRR[ended])
        pairs = tuple(old.with_rows(ended, new) for old, new in zip(state.pairs, new_pairs, strict=True))
        return self.placed(dataclasses.replace(read, pairs=pairs), ended_B, lengths_B, hidden_BtC)

    def only_answers(self, state: AdapterState) -> AdapterState:
        """Without S."""
        return dataclasses.replace(state, S_BLRR=state.S_BLRR[:, :0])

    def memory_alone(self, state: AdapterState) -> AdapterState:
        """A state that only answers, with the weights of all that was read, an open chunk included; see
        `ContextMethod.memory_alone`.
        """
        if bool(state.kv.used_B.any()):
            state = self.apply(self.adapter(state))
        return self.only_answers(state)

    def adapter(self, state: AdapterState) -> Adapter:
        """The adapter of all that a state has read, an open chunk included."""
        return Adapter(state.S_BLRR, self.generator)

    def apply(self, adapter: Adapter) -> AdapterState:
        """A state in front of a question, with an adapter's weights; one row for each of the adapter's. Differentiable.

        Raises:
            UserError: when the adapter was made with another generator or backbone.
        """
        adapter.check_origin(self.generator)
        pairs = adapter.pairs()
        state = self.start(len(adapter.S_BLRR))
        return dataclasses.replace(state, S_BLRR=adapter.S_BLRR, pairs=pairs, pending_BC=self.after_bos(pairs))
