"""LongMem's hyper-parameters and the switches between the paper and the released code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from contextlab.config import Weights
from contextlab.errors import UserError
from contextlab.kernels.chunk_topk import Index
from contextlab.methods.parts.banks import StoredIn, layer_of_bank
from contextlab.methods.parts.few_bits import Storage
from contextlab.methods.parts.local_cache import CacheConfig, LocalConfig
from contextlab.methods.parts.packed_banks import check_size
from contextlab.methods.sliding import Local


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LongMemConfig(LocalConfig, CacheConfig):
    """The paper's hyper-parameters (Table 8) and the choices that the paper and the released code make differently.

    Attributes:
        N: tokens of a segment, the local context.
        M: tokens the bank holds per row; 0 for no memory.
        K: tokens retrieved per query and head.
        csz: tokens of a chunk, at most N; the last tokens of a segment that fill no chunk are not stored (N mod csz).
        reduction: backbone layers per side layer.
        memory_layer: zero-based backbone layer whose keys and values are cached; three quarters up when not given
            (the paper's 18th of 24).
        memory_layers: instead of it several, as `10-29`: every side block that copies one of them reads a bank of that
            layer's keys and values.
        blocks_per_bank: side blocks in a row that read one bank, of the layer of the first of them; 1 for a bank of
            every block's own.
        softmax: `gate`, one softmax over the local keys and one over the retrieved tokens, mixed by a gate per head; or
            `joint`, one over both, the gate being added to the logits of the retrieved tokens.
        local: `cold`, segments start cold, and keys enter the bank before rotation; or `sliding`, the previous segment
            and the sinks stay in view, in both networks, and what leaves the view enters the bank, turned to the first
            slot after the sinks.
        sinks: first tokens of the text that stay in view, with local=sliding.
        init: `identity`, every side block's own update starts at zero, so that the untrained network equals the
            backbone's window; `paper`, side layer l copies backbone layer reduction*l + 1; `memory`, of all updates
            only what the memory changes in the blocks that read it is open, o_proj(gate * (memory - local)); or
            `difference`, side block l copies layer reduction*l, whose input it is given, and carries what it computes
            less what the backbone computes there. With the last two an empty bank leaves the backbone's window.
        gate: initial value of every gate; when not given -2 with init=memory, else 0.
        rank: of an update of the side blocks' linear layers, which with the gates is then all that is learned; all of
            the side network is when not given.
        last_residual: `raw`, the last cross-network residual uses h_L' as in equation 1; or `normed`, the state after
            the final norm as in the released code.
        side_arithmetic: `backbone`, side layers compute as the layers they copy; or `released`, exact gelu and a norm
            epsilon of 1e-5 as in the released code (only with its own backbone).
        bank_scope: `per_row`, or `shared` by all rows of a batch, of equal length, as in the released code.
        eviction: `fifo` keeps the newest M tokens; `official_two_step` drops two steps' worth at once.
        short_bank: with fewer chunks than asked for, `mask` them, or attend to a `zero_slot` as the released code does.
        storage_dtype: type of the cached keys and values; `int8` or `int4` for that many bits, keys with a range per
            channel and group of tokens, values with one per token.
        stored_in: of the bank; `memory` of the device; `host` for that of the host, from which the chunks that are
            retrieved go to the device; or `disk` for files in the cache folder that are mapped into memory, on a CPU.
        index: that searches the bank; `exact`, or `faiss` for its exact search on a CPU, which needs faiss-cpu.
        weights: trained side weights: `auto`, those that come with the package, where some fit; `none`, the network as
            initialised; or a file, or the folder of a training run.
    """

    # Table 8; the decay to zero is that of the released script.
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 2e-4,
        "betas": (0.9, 0.98),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "clip": 2.0,
        "schedule": "polynomial",
        "warmup": 0.0,
    }
    free_at_test: ClassVar[frozenset[str]] = frozenset(
        {"N", "M", "K", "cache", "csz", "storage_dtype", "stored_in", "index"}
    )

    M: pydantic.NonNegativeInt = 65536
    K: pydantic.PositiveInt = 64
    csz: pydantic.PositiveInt = 4
    reduction: pydantic.PositiveInt = 2
    memory_layer: pydantic.NonNegativeInt | None = None
    memory_layers: Annotated[str, pydantic.Field(pattern=r"^\d{1,6}(-\d{1,6})?$")] | None = None
    blocks_per_bank: pydantic.PositiveInt = 1
    softmax: Literal["gate", "joint"] = "gate"
    local: Local = "cold"
    sinks: pydantic.NonNegativeInt = 4
    init: Literal["identity", "paper", "memory", "difference"] = "identity"
    gate: pydantic.FiniteFloat | None = None
    rank: pydantic.PositiveInt | None = None
    last_residual: Literal["raw", "normed"] = "raw"
    side_arithmetic: Literal["backbone", "released"] = "backbone"
    bank_scope: Literal["per_row", "shared"] = "per_row"
    eviction: Literal["fifo", "official_two_step"] = "fifo"
    short_bank: Literal["mask", "zero_slot"] = "mask"
    storage_dtype: Storage = "float16"
    stored_in: StoredIn = "memory"
    index: Index = "exact"
    weights: Weights = "auto"

    def __post_init__(self) -> None:
        """Check fields that depend on each other."""
        if self.K % self.csz or self.M % self.csz:
            raise UserError(f"K={self.K} and M={self.M} must be multiples of the chunk size csz={self.csz}.")
        check_size(self.M, self.csz, self.storage_dtype)
        if self.init != "paper" and self.last_residual == "normed":
            raise UserError(f"init={self.init} equals the backbone only with last_residual=raw: set one of the two.")
        if self.memory_layer is not None and self.memory_layers is not None:
            raise UserError("memory_layer and memory_layers name the same thing: give one of the two.")
        if self.local == "sliding" and self.bank_scope == "shared":
            raise UserError(
                "Rows cannot share a bank (bank_scope=shared) of what leaves a sliding view: use local=cold."
            )

    def copied(self, depth: int) -> list[int]:
        """The layer of a backbone of that depth that every side block copies."""
        # Blocks of the paper copy the layer above the one whose input they get.
        ahead = 1 if self.init in ("identity", "paper") else 0
        return [min(begin + ahead, depth - 1) for begin in range(0, depth, self.reduction)]

    def reading(self, depth: int) -> dict[int, int]:
        """The side blocks that read a bank, and the backbone layer whose keys and values it holds.

        Raises:
            UserError: when the backbone has no such layer.
        """
        copied = self.copied(depth)
        if self.memory_layers is None:
            layer = layer_of_bank(self.memory_layer, depth)
            block = layer // self.reduction
            if self.init in ("memory", "difference") and layer != copied[block]:
                if self.memory_layer is not None:
                    raise UserError(f"No side block copies memory_layer={layer}: use memory_layer={copied[block]}.")
                layer = copied[block]
            return {block: layer}
        first, _, last = self.memory_layers.partition("-")
        reading = {block: layer for block, layer in enumerate(copied) if int(first) <= layer <= int(last or first)}
        if not reading or int(last or first) >= depth:
            raise UserError(
                f"memory_layers={self.memory_layers} names no layers that side blocks copy: the backbone has layers 0 "
                f"to {depth - 1}."
            )
        layers, together = list(reading.values()), self.blocks_per_bank
        return {block: layers[i // together * together] for i, block in enumerate(reading)}
