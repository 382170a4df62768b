"""EVALM as a method: exact local attention with sinks, and one softmax over it and summaries of all that has left it.

Legend: B rows, t tokens of a block, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab import attention, states
from contextlab.attention import KV, Layout
from contextlab.backbone import Backbone, wrap
from contextlab.errors import UserError
from contextlab.method import Ahead, Capabilities
from contextlab.methods.evalm.config import EVALMConfig
from contextlab.methods.evalm.parallel import ParallelEVA
from contextlab.methods.evalm.reader import EVALMState, EvaReader
from contextlab.methods.evalm.summary import Summary, summaries
from contextlab.methods.segments import CacheMethod, reserved
from contextlab.methods.sliding import Sliding, SlidingConfig


class EVALM(CacheMethod[EVALMConfig, EVALMState]):
    """Local windows of W tokens with sinks; every chunk of c tokens that has left them stays as one key and value.

    Untrained, summaries have attention weight 0 and the method is its baseline; `remote_bias` opens them, `weights`
    brings trained ones.
    """

    Config = EVALMConfig
    # A head with a bias of minus infinity gives summaries a weight of 0.
    unbounded = ("remote_bias_H",)

    def __init__(self, backbone: Backbone, config: EVALMConfig | None = None) -> None:
        super().__init__(backbone, config)
        if backbone.slopes_H is not None:
            raise UserError("EVALM needs rotary or learned positions: use longmem with an ALiBi model.")
        self.geometry = self.config.geometry(backbone.max_positions)
        self.segment, self.keep_first, self.keep_last = (
            self.geometry.window,
            self.geometry.sinks,
            self.geometry.recent,
        )
        self.summaries = self.learns(summaries(backbone, self.config), self.config.weights)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming, trainable; without overlap a window starts cold but for sinks and summaries."""
        segment = None if self.keep_last else self.segment
        return Capabilities(segment=segment)

    def baseline(self) -> Sliding | None:
        """Local attention with sinks, while summaries have attention weight 0."""
        if self.config.remote_bias is not None or not self.untrained:
            return None
        recent = None if self.config.overlap else 0
        return Sliding(self.backbone, SlidingConfig(N=self.segment, sinks=self.keep_first, recent=recent))

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> EVALMState:
        """An empty state; a first window that is shortened for what is ahead still holds whole chunks."""
        plain = self.empty(batch_size, ahead)
        backbone, chunk = self.backbone, self.geometry.chunk
        sum_BKD = torch.zeros(
            batch_size,
            backbone.kv_heads,
            backbone.head_width,
            dtype=backbone.attention_dtype,
            device=backbone.device,
        )
        return EVALMState(
            plain.length_B,
            plain.pending_BC,
            # Chunks are summed up from keys before rotation.
            dataclasses.replace(plain.kv, raw=frozenset(range(backbone.layers))),
            (plain.left_B + chunk - 1) // chunk * chunk,
            chunks=backbone.empty_kv(batch_size),
            query_sum=(sum_BKD,) * (backbone.layers if self.config.pooling == "eva" else 0),
        )

    def reserve(self, state: EVALMState, lengths_B: Tensor) -> EVALMState:
        """Room for the summaries of all chunks that the call completes."""
        chunks = state.chunks
        final_B = (state.length_B + lengths_B) // self.geometry.chunk
        if bool((final_B == chunks.used_B).all()):
            return state
        missing = max(int(final_B.max()) - chunks.slots, 0)
        k, v = (tuple(F.pad(x, (0, 0, 0, missing)) for x in layers) for layers in (chunks.k, chunks.v))
        return dataclasses.replace(state, chunks=KV(k, v, chunks.used_B))

    def step(self, state: EVALMState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[EVALMState, Tensor]:
        """Attend, roll up finished chunks; at a window's end cut the local cache back."""
        steps = torch.arange(tokens_Bt.shape[1], device=tokens_Bt.device)
        state = dataclasses.replace(state, kv=reserved(state.kv, lengths_B, state.left_B))
        reader = self._reader(state, Layout(state.kv.used_B[:, None] + steps), lengths_B)
        hidden_BtC = self.backbone.forward(tokens_Bt, self._input_positions(state, steps), reader)
        if not bool(hidden_BtC.isfinite().all()):
            raise UserError("The model's hidden states are no longer finite: use a wider dtype or other weights.")
        left_B = state.left_B - lengths_B
        assert reader.roll_up is not None
        after = dataclasses.replace(
            state,
            kv=self.kept(reader.grown(lengths_B), left_B == 0),
            left_B=torch.where(left_B == 0, self.segment, left_B),
            chunks=KV(tuple(reader.chunk_k), tuple(reader.chunk_v), state.chunks.used_B + reader.roll_up.done_B),
            query_sum=tuple(reader.query_sum),
        )
        return after, hidden_BtC

    def check_state(self, state: EVALMState) -> None:
        """Every whole chunk has left a summary."""
        super().check_state(state)
        state.chunks.check("chunks", states.MOST)
        whole_B = state.length_B // self.geometry.chunk
        states.within("chunks.used_B", state.chunks.used_B, whole_B, whole_B)
        states.within("kv.used_B", state.kv.used_B, state.length_B % self.geometry.chunk, state.length_B)

    def skim(self, state: EVALMState, tokens_Bt: Tensor, lengths_B: Tensor) -> None:
        """Every window leaves summaries behind."""
        return

    def reader(self, state: EVALMState, layout: Layout) -> EvaReader:
        """The attention of a pass that leaves the state as it is."""
        return self._reader(state, layout, None)

    def _reader(self, state: EVALMState, layout: Layout, lengths_B: Tensor | None) -> EvaReader:
        layers = cast(Sequence[Summary], self.summaries)
        return EvaReader(self.backbone, self.geometry, layers, state, layout, lengths_B)

    def side_by_side(self, state: EVALMState, longest: int) -> bool:
        """Nor where a candidate would see its own beginning as a summary."""
        chunk = self.geometry.chunk
        sees_itself = self.geometry.own and bool((state.length_B % chunk + longest > chunk).any())
        return not sees_itself and super().side_by_side(state, longest)

    @contextmanager
    def as_attention(self) -> Iterator[None]:
        """Let the backbone's transformers model attend like this method wherever it is called on whole sequences.

        Differentiable, also in the summaries' weights; padding on the right. Afterwards the model is what it was.

        Raises:
            UserError: in a call with padding on the left, position ids, or a cache.
        """
        attend = ParallelEVA(self.backbone, self.summaries, self.geometry)
        with attention.attending(self.backbone.model, attend, self._parallel_positions):
            yield

    def _parallel_positions(self, length: int) -> Tensor:
        positions_T = torch.arange(length)
        if not self.backbone.learned_positions:
            return positions_T * 0
        if not self.keep_last:
            begin_T = positions_T // self.segment * self.segment
            positions_T = positions_T - begin_T + begin_T.clamp(max=self.keep_first)
        return positions_T % self.backbone.max_positions


@contextmanager
def eva_attention_of(model: Any, config: EVALMConfig | None = None) -> Iterator[EVALM]:
    """Give a Llama-, GPT-2- or OPT-style model of transformers EVALM's attention for the duration of a block.

    Args:
        model: a causal language model; weights, attention setting and training mode are what they were afterwards.
        config: of the method, which is handed back.

    Raises:
        UserError: for a model whose attention is out of reach, and as `EVALM.as_attention` does.
    """
    training = {module: module.training for module in model.modules()}
    try:
        method = EVALM(wrap(model), config)
    finally:
        for module, mode in training.items():
            module.training = mode
    with method.as_attention():
        yield method
