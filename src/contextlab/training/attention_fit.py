"""The attention objective: every layer's attention output equals full attention's over the same text.

Queries, keys and values are those of the frozen model with full attention. So no layer sees what another one has not
learned yet, all of them learn side by side, and no gradient passes through the model: minutes where the other
objectives need hours. A first stage, after which the method learns to predict with all its layers in sequence.

Legend: B rows, T tokens of a segment, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.attention import Attend, CacheReader, Layout
from contextlab.errors import UserError
from contextlab.method import AnyMethod, State
from contextlab.training.corpus import Corpus
from contextlab.training.objectives import Objective, Outcome
from contextlab.training.streams import Batch


class AttentionFit(Objective):
    """Squared error of attention outputs relative to full attention's squared norm, the mean over layers.

    Every segment is a separate text: full attention begins with it, and so does the method.
    """

    def __init__(self, method: AnyMethod, corpus: Corpus, config: Any) -> None:
        super().__init__(method, corpus, config)
        attend = method.whole_attention()
        if attend is None:
            raise UserError(
                f"{type(method).__name__} has no attention over whole texts that could be fitted: use --objective lm."
            )
        self.attend = attend

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """The error of a batch, padding left out; the state stays as it is.

        Raises:
            UserError: when a segment is longer than full attention reaches.
        """
        backbone = self.method.backbone
        length = batch.tokens_BT.shape[1]
        if length > backbone.max_positions:
            raise UserError(
                f"A segment of {length} tokens is longer than full attention reaches: use --segment "
                f"{backbone.max_positions} or less."
            )
        steps_T = torch.arange(length, device=batch.tokens_BT.device)
        full = backbone.reader(len(batch.lengths_B), Layout(steps_T.expand_as(batch.tokens_BT)))
        beside = _Beside(full, self.attend, batch.real_BT)
        with torch.no_grad():
            backbone.forward(batch.tokens_BT, full.layout.position_BT, beside)
        return Outcome(state, torch.stack(beside.errors).mean() * batch.lengths_B.sum(), None)


class _Beside:
    """Full attention, which the model goes on with, and beside it the attention that is fitted.

    Attributes:
        errors: of all layers so far, each with a separate graph.
    """

    def __init__(self, full: CacheReader, attend: Attend, real_BT: Tensor) -> None:
        self.full, self.attend = full, attend
        self.real_B1T1 = real_BT[:, None, :, None]
        self.errors: list[Tensor] = []

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Full attention's output of a layer."""
        full_BHTD = self.full(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        with torch.enable_grad():
            own_BHTD = self.attend(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
            error = ((own_BHTD - full_BHTD).square() * self.real_B1T1).sum()
            self.errors.append(error / (full_BHTD.square() * self.real_B1T1).sum())
        return full_BHTD
