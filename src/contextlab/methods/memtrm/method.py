"""Memorizing Transformer as a state machine: segments are read with the bank as it stood before them, then enter it.

As in LongMem's comparison the memory is that of one layer of a given backbone. Keys are stored before rotary encoding
and queries attend to them before rotation, as in the paper, whose memory layer has no positions. The update of the
memory layer leaves out its keys and values: what the bank holds depends on nothing that is learned, so that it stays
valid while training goes on, and gradients are exact although none flows into the bank.

Legend: B rows, t tokens of a block, C width, H query heads, K key/value heads, S keys in view, J slots of the bank, D
head width, k tokens retrieved.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from contextlab import attention
from contextlab.accounting.formulas import Model, update_flops
from contextlab.attention import KV, Anatomy, CacheReader, Layout, empty_kv
from contextlab.backbone import Backbone, UpdatedBackbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.joint_memory_attention import fuse_memory
from contextlab.method import Lengths
from contextlab.methods.memtrm.config import MemTRMConfig
from contextlab.methods.memtrm.formula import MemTRMFormula
from contextlab.methods.parts.banks import layer_of_bank
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.newest import newest
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.sliding import Sliding, local_twin, local_view
from contextlab.methods.window import Window
from contextlab.tensors import dtype_named

CLOSED = -20.0
"""A gate whose weight of the memory is lost in rounding."""


@dataclasses.dataclass(frozen=True)
class MemTRMState(LocalState):
    """The cache of the local context, and the bank.

    Attributes:
        bank: keys before rotation, and values, of the memory layer for the newest tokens of the segments before.
    """

    bank: KV


class Memory(nn.Module):
    """All that is trained: the gates, and the updates of the memory layer and those above it."""

    def __init__(self, gate_H: Tensor, updates: nn.Module | None) -> None:
        super().__init__()
        self.gate_H = nn.Parameter(gate_H)
        self.updates = updates


class MemTRM(SegmentMethod[MemTRMConfig, MemTRMState]):
    """Reads segments of N tokens; one layer also attends to the K best tokens of earlier ones, by a gate per head."""

    Config = MemTRMConfig

    def __init__(self, backbone: Backbone, config: MemTRMConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.view = local_view(backbone, self.config.local, self.config.N, self.config.sinks, self.config.cache)
        self.local = self.view.local
        self.memory_layer = layer_of_bank(self.config.memory_layer, backbone.layers)
        self.parts = self._parts()
        gate_H = torch.full((backbone.heads,), self.config.gate, device=backbone.device)
        self.memory = self.learns(Memory(gate_H, self._updates()), self.config.weights)

    def baseline(self) -> Window | Sliding | None:
        """Local attention alone, while the gates are closed."""
        return self.view if self.untrained and self.config.gate <= CLOSED else None

    @property
    def twin(self) -> str:
        """Local attention with the same update in all layers."""
        return local_twin(self.config.local, self.config.N, self.config.rank, self.config.targets)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Local attention and the look at the bank."""
        model = Model.of(self.backbone)
        if model is None:
            return None
        return MemTRMFormula(
            model,
            self.local,
            self.first_segment(ahead),
            self.config,
            layer=self.memory_layer,
            update=update_flops(self.memory.updates),
            layered=self.parts is not None,
            stored_bytes=dtype_named(self.config.storage_dtype).itemsize,
        )

    def begin(self, empty: LocalState, ahead: Lengths | None) -> MemTRMState:
        """With an empty bank."""
        backbone = self.backbone
        kv = empty.kv.with_raw(frozenset({self.memory_layer}))
        like = torch.empty(0, dtype=dtype_named(self.config.storage_dtype), device=backbone.device)
        bank = empty_kv(1, (empty.batch_size, backbone.kv_heads, backbone.head_width), like)
        return MemTRMState(empty.length_B, empty.pending_BC, kv, empty.left_B, bank)

    def close(self, state: MemTRMState, ended_B: Tensor) -> MemTRMState:
        """The segment enters the bank."""
        bank = self._stored(state.bank, state.kv, ended_B)
        return dataclasses.replace(super().close(state, ended_B), bank=bank)

    def skim(self, state: MemTRMState, tokens_Bt: Tensor, lengths_B: Tensor) -> MemTRMState | None:
        """Read segments that start cold and are not scored up to the memory layer: the bank needs no more."""
        if self.parts is None or not self.local.forgets:
            return None
        reader = CacheReader(self.backbone, state.kv, self.local.layout(state, tokens_Bt.shape[1]))
        hidden_BtC = self.parts.embed(tokens_Bt, reader.layout.position_BT)
        with attention.seam(self.backbone.config, self.backbone.rotary_scale):
            for layer in self.parts.layers[: self.memory_layer + 1]:
                hidden_BtC = attention.run_layer(layer, hidden_BtC, reader, self.backbone.rotary_scale)
        all_B = torch.ones_like(lengths_B, dtype=torch.bool)
        bank = self._stored(state.bank, reader.grown(lengths_B), all_B)
        left_B = torch.full_like(state.left_B, self.local.segment)
        return dataclasses.replace(state, kv=state.kv.cut(0, all_B), left_B=left_B, bank=bank)

    def reader(self, state: MemTRMState, layout: Layout) -> CacheReader:
        """Local attention, and in the memory layer the bank."""
        return TokenReader(self.backbone, state, layout, self.memory_layer, self.config.K, self.memory.gate_H)

    def check_state(self, state: MemTRMState) -> None:
        """The bank holds M tokens at most."""
        super().check_state(state)
        state.bank.check("bank", self.config.M)

    def _parts(self) -> Anatomy | None:
        """The backbone layer by layer, where it is built like Llama or GPT-2."""
        try:
            return attention.anatomy(self.backbone.model)
        except UserError:
            return None

    def _updates(self) -> nn.Module | None:
        """Updates of the layers that what the bank holds does not depend on; the network reads with them from now."""
        if not self.config.rank:
            return None
        free = [
            layer
            for layer in self.config.targeted(self.backbone)
            if layer.block > self.memory_layer or (layer.block == self.memory_layer and not layer.of_keys_and_values)
        ]
        updated = UpdatedBackbone(self.backbone, free, self.config.rank)
        self.network = updated
        return updated.updates

    def _stored(self, bank: KV, kv: KV, ended_B: Tensor) -> KV:
        """The bank with the segments that have ended after it: the newest tokens of the cache."""
        new_B = torch.where(ended_B, kv.used_B.clamp(max=self.local.segment), 0)
        kind, layer = bank.k[0].dtype, self.memory_layer
        new_BJ = torch.arange(int(new_B.max())) + (kv.used_B - new_B)[:, None]
        segment = KV((kv.k[layer],), (kv.v[layer],), kv.used_B).take(new_BJ, new_B)
        slots_BJ, kept_B = newest(bank.used_B, bank.slots, new_B, self.config.M)
        k, v = (
            torch.cat((old, new.detach().to(kind)), dim=2)
            for old, new in ((bank.k[0], segment.k[0]), (bank.v[0], segment.v[0]))
        )
        return KV((k,), (v,), kept_B).take(slots_BJ, kept_B)


class TokenReader(CacheReader):
    """Local attention, in one layer mixed with attention to the best tokens of a bank."""

    def __init__(
        self, backbone: Backbone, state: MemTRMState, layout: Layout, memory_layer: int, take: int, gate_H: Tensor
    ) -> None:
        super().__init__(backbone, state.kv, layout)
        self.bank, self.memory_layer, self.take, self.gate_H = state.bank, memory_layer, take, gate_H
        self.ids_BHtk: Tensor | None = None

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attend locally; in the memory layer also to the bank."""
        local_BHTD = super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        if layer != self.memory_layer or not self.bank.slots:
            return local_BHTD
        k_BKJD, v_BKJD = self.bank.k[0], self.bank.v[0]
        self.ids_BHtk, score_BHtk = chunk_topk(q_BHTD, k_BKJD, self.bank.used_B.to(q_BHTD.device), self.take)
        exists_BHtk = score_BHtk > float("-inf")
        memory = (k_BKJD[:, :, :, None], v_BKJD[:, :, :, None], self.ids_BHtk, exists_BHtk)
        return fuse_memory(local_BHTD, q_BHTD, *memory, self.gate_H, scale=scale)
