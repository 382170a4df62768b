"""Least squares as a state machine: every finished chunk is written into weights by one regression per layer.

Legend: B rows, t tokens of a block, N tokens of a chunk, C width of the model, p directions, I inputs of a layer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.least_squares import generic
from contextlab.methods.least_squares.config import LeastSquaresConfig
from contextlab.methods.least_squares.fit import LeastSquaresFit, Written
from contextlab.methods.least_squares.formula import LeastSquaresFormula
from contextlab.methods.parts import targets
from contextlab.methods.parts.context_weights import WeightsMethod, WeightsState
from contextlab.methods.parts.local_cache import LocalCache, LocalState
from contextlab.methods.parts.targets import Pair, Target
from contextlab.writing import put


@dataclasses.dataclass(frozen=True)
class LeastSquaresState(WeightsState):
    """The context as weights, the inputs that they were made for, and the tokens of the open chunk.

    Attributes:
        seen: `seen_BpI` of every layer (see `regression.fitted`).
        tokens_BN: tokens of the open chunk; without slots in a state that only answers.
    """

    seen: tuple[Tensor, ...]
    tokens_BN: Tensor


class LeastSquares(WeightsMethod[LeastSquaresConfig, LeastSquaresState]):
    """Solves for the weights with which the backbone computes, without a context, what it computes after it.

    Nothing is trained. The context's tokens, and texts that the backbone writes after them, are rows of a ridge
    regression in every layer, whose ridge leaves inputs of generic text alone.
    """

    Config = LeastSquaresConfig

    def __init__(self, backbone: Backbone, config: LeastSquaresConfig | None = None) -> None:
        super().__init__(backbone, config)
        prompts = self.config.prompts(backbone.encode)
        chunk, written = self.config.lengths(backbone.max_positions, max(map(len, prompts), default=0))
        self.local = LocalCache(chunk)
        self.targets = _layers(backbone, self.config)
        self.rank, self.seen = self.config.widths(backbone.width, min(target.inputs for target in self.targets))
        inverses = generic.inverses(backbone, self.targets, self.config.generic)
        self.fit = LeastSquaresFit(backbone, self.targets, inverses, self.config, prompts, written)

    @property
    def added_parameters(self) -> int:
        """Numbers, as wide as the backbone's, of the inverse covariances of generic inputs."""
        return sum(inverse_II.nbytes for inverse_II in self.fit.inverses) // self.backbone.dtype.itemsize

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes with the changes, and the regressions at a chunk's end."""
        model, plain = Model.of(self.backbone), self.fit.plain.formula()
        if model is None or plain is None:
            return None
        return LeastSquaresFormula(model, plain, self.local.segment, self.fit, (self.rank, self.seen), ahead)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> LeastSquaresState:
        """Without a change of weights."""
        context_B, rows = empty.length_B + (ahead.context if ahead else 0), empty.batch_size
        zero = self.fit.inverses[0].new_zeros(())
        return LeastSquaresState(
            empty.length_B,
            empty.pending_BC,
            empty.kv,
            left_B=self.chunk_after(empty.length_B, context_B),
            pairs=tuple(
                Pair(zero.expand(rows, target.outputs, self.rank), zero.expand(rows, self.rank, target.inputs))
                for target in self.targets
            ),
            context_B=context_B,
            seen=tuple(zero.expand(rows, self.seen, target.inputs) for target in self.targets),
            tokens_BN=torch.zeros(rows, self.local.segment, dtype=torch.int64, device=self.backbone.device),
        )

    def check_state(self, state: LeastSquaresState) -> None:
        """Tokens are those of the vocabulary."""
        super().check_state(state)
        states.within("tokens_BN", state.tokens_BN, 0, self.backbone.vocab_size - 1)

    def step(self, state: LeastSquaresState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[LeastSquaresState, Tensor]:
        """Attend within the chunk, and at its end write it into the weights of the next."""
        ended_B = state.left_B == lengths_B
        hidden_BtC, readers = self.forward(state, tokens_Bt, self.local.layout(state, tokens_Bt.shape[1]))
        read = self.local.after(state, readers, lengths_B, self.backbone)
        if not state.tokens_BN.shape[1]:
            return read, hidden_BtC
        chunk_B = state.kv.used_B + lengths_B
        read = dataclasses.replace(read, tokens_BN=put(state.tokens_BN, tokens_Bt, state.kv.used_B, lengths_B))
        if not bool(ended_B.any()):
            return read, hidden_BtC
        read = self._written(read, ended_B, chunk_B, state.length_B - state.kv.used_B)
        return self.placed(read, ended_B, lengths_B, hidden_BtC)

    def only_answers(self, state: LeastSquaresState) -> LeastSquaresState:
        """Without keeping tokens."""
        return dataclasses.replace(state, tokens_BN=state.tokens_BN[:, :0])

    def memory_alone(self, state: LeastSquaresState) -> LeastSquaresState:
        """A state that only answers, with the weights of all that was read, an open chunk included; see
        `ContextMethod.memory_alone`.
        """
        used_B = state.kv.used_B
        if bool(used_B.any()):
            state = self._written(state, used_B > 0, used_B, state.length_B - used_B)
            start = self.start(state.batch_size)
            state = dataclasses.replace(
                start, pairs=state.pairs, seen=state.seen, pending_BC=self.after_bos(state.pairs)
            )
        return self.only_answers(state)

    def _written(
        self, state: LeastSquaresState, rows_B: Tensor, lengths_B: Tensor, before_B: Tensor
    ) -> LeastSquaresState:
        """The state with the tokens of its open chunk in the weights, in some rows; every row is fitted by itself."""
        ended = rows_B.nonzero()[:, 0].to(state.device)
        written: list[list[Written]] = []
        for b in ended.tolist():
            row = state.row(b)
            before = list(zip(row.pairs, row.seen, strict=True))
            written.append(self.fit(row.tokens_BN[:, : int(lengths_B[b])], before, int(before_B[b])))
        pairs, seen = [], []
        for old, old_seen_BpI, solutions in zip(state.pairs, state.seen, zip(*written, strict=True), strict=True):
            new = Pair(torch.cat([pair.up for pair, _ in solutions]), torch.cat([pair.down for pair, _ in solutions]))
            pairs.append(old.with_rows(ended, new))
            seen.append(old_seen_BpI.index_copy(0, ended, torch.cat([seen_1pI for _, seen_1pI in solutions])))
        return dataclasses.replace(state, pairs=tuple(pairs), seen=tuple(seen))


def _layers(backbone: Backbone, config: LeastSquaresConfig) -> list[Target]:
    """The layers that are changed: one of every block from the lowest on.

    Raises:
        UserError: when there are none or several of a block, or a block adds more to their output than the residual.
    """
    first = backbone.layers // 4 if config.first_layer is None else config.first_layer
    if first >= backbone.layers:
        raise UserError(f"first_layer={first} is not one of the {backbone.layers} layers: choose a lower one.")
    higher = [target for target in targets.find(backbone, config.modules) if target.depth >= first]
    if not higher:
        raise UserError(f"modules={config.modules} names no layer from first_layer={first} on: choose a lower one.")
    return targets.added_alone(backbone, higher)
