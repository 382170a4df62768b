"""Writing a chunk into weights: what the backbone computes after the chunk, by weights alone.

Legend: n texts of the regression, t tokens of them, N rows of the regression, I inputs and O outputs of a layer,
C width of the model; 1 stands for a single row of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab import calls
from contextlab.attention import Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.kernels.buffers import wide
from contextlab.methods.full import Full
from contextlab.methods.least_squares import regression
from contextlab.methods.least_squares.config import LeastSquaresConfig
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.targets import Pair, Target, adapted, observed
from contextlab.writing import pad

Written = tuple[Pair, Tensor]
"""The change of a layer, and `seen_1pI` (see `regression.fitted`)."""


class LeastSquaresFit:
    """One pass of regressions from the lowest layer to the highest.

    The texts are the chunk itself and what the backbone writes after it. Their tokens' states after every block, as the
    plain backbone has them after the chunk, are what the changed backbone has to give from a cold start. What a layer
    cannot give, the layers above it, which see its outcome, are fitted to.

    Args:
        backbone: that reads.
        targets: the layers that are changed.
        inverses: of the covariance of their inputs over generic text.
        config: ridge and seed.
        prompts: tokens that every text of self-study begins with.
        written: tokens that the backbone writes after them.
    """

    def __init__(
        self,
        backbone: Backbone,
        targets: list[Target],
        inverses: Sequence[Tensor],
        config: LeastSquaresConfig,
        prompts: list[list[int]],
        written: int,
    ) -> None:
        self.backbone, self.targets, self.inverses = backbone, targets, inverses
        self.config, self.prompts, self.written = config, prompts, written
        self.plain = Full(backbone)

    def __call__(self, tokens_1T: Tensor, before: Sequence[Written], number: int) -> list[Written]:
        """The changes with a chunk added to them.

        Args:
            tokens_1T: the chunk.
            before: of every layer, what earlier chunks have written, for one row.
            number: of tokens in front of the chunk; the seed of self-study depends on it.

        Raises:
            UserError: when hidden states are not finite.
        """
        with calls.within(self.plain):
            state, _ = self.plain.read(self.plain.start(), tokens_1T, logprobs=False)
            texts = [tokens_1T[0].tolist(), *self._studied(state, number)]
        tokens_nt, lengths_n = pad(texts, self.backbone.device)
        steps_t = torch.arange(tokens_nt.shape[1], device=tokens_nt.device)
        # Attention rests on the first token of a text, so its states have another size with a context than without.
        row_nt = (steps_t > 0) & (steps_t < lengths_n.to(steps_t.device)[:, None])
        if not bool((lengths_n > 1).any()):
            return list(before)
        with_chunk = after_context(self.plain, state.fork(len(texts)), tokens_nt, self.targets)
        return self._regressions(tokens_nt, row_nt, with_chunk, before, tokens_1T.shape[1])

    def _studied(self, state: LocalState, number: int) -> list[list[int]]:
        """Texts of self-study: prompts, and what the backbone writes after the chunk and them."""
        if not self.prompts:
            return []
        texts = self.plain.generate(
            state, self.prompts, max_new_tokens=self.written, temperature=1.0, seed=self.config.seed + number
        )
        return [[*prompt, *text] for prompt, text in zip(self.prompts, texts, strict=True)]

    @property
    def studied(self) -> list[int]:
        """Tokens of every text of self-study."""
        return [len(prompt) + self.written for prompt in self.prompts]

    def _regressions(
        self, tokens_nt: Tensor, row_nt: Tensor, with_chunk: Sequence[Tensor], before: Sequence[Written], position: int
    ) -> list[Written]:
        count, length = tokens_nt.shape
        after: list[Written] = []

        def leave(i: int, x_ntI: Tensor, hidden_ntC: Tensor) -> Tensor:
            old, seen_1pI = before[i]
            x_NI, with_chunk_NO, hidden_NO = (x[row_nt].to(wide(x)) for x in (x_ntI, with_chunk[i], hidden_ntC))
            y_NO = with_chunk_NO - hidden_NO
            if not bool(x_NI.isfinite().all() & y_NO.isfinite().all()):
                raise UserError("The context's hidden states are not finite: load the backbone with --dtype float32.")
            if self.config.error == "relative":
                size_N1 = regression.sizes(with_chunk_NO, hidden_NO)
                x_NI, y_NO = x_NI / size_N1, y_NO / size_N1
            up_ON, down_NI = regression.fitted(x_NI, y_NO, self.inverses[i], seen_1pI[0], self.config.ridge)
            up_Om, down_mI = torch.cat((old.up[0], up_ON), dim=1), torch.cat((old.down[0], down_NI))
            up_Or, down_rI = regression.shortened(up_Om, down_mI, old.up.shape[2])
            kept_pI = seen_1pI[0]
            if len(kept_pI):
                kept_pI = regression.strongest(torch.cat((kept_pI, down_NI)), len(kept_pI))
            after.append((Pair(up_Or[None], down_rI[None]), kept_pI[None]))
            return x_ntI @ down_NI.mT.to(x_ntI.dtype) @ up_ON.mT.to(x_ntI.dtype)

        pairs = [Pair(old.up.expand(count, -1, -1), old.down.expand(count, -1, -1)) for old, _ in before]
        position_nt = torch.arange(length, device=tokens_nt.device).expand(count, -1)
        reader = self.backbone.reader(count, Layout(position_nt))
        with adapted(self.targets, pairs.__getitem__), observed(self.targets, leave):
            # Models that learn positions see these texts where they are after the chunk: the chunk alone differs.
            self.backbone.forward(tokens_nt, position_nt + position, reader)
        return after


def after_context(full: Full, state: LocalState, tokens_nt: Tensor, targets: list[Target]) -> list[Tensor]:
    """`hidden_ntC` after the block of every layer, as the plain backbone computes it after a context."""
    states: list[Tensor] = []

    def leave(_i: int, _x_ntI: Tensor, hidden_ntC: Tensor) -> None:
        states.append(hidden_ntC)

    with observed(targets, leave):
        full.forward(state, tokens_nt, full.local.layout(state, tokens_nt.shape[1]))
    return states
