"""Common parts of the formulas of methods: the FLOPs of a model's parts, visible pairs, and the bytes of caches.

Everything follows from sizes; nothing is run. See `contextlab.formula`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from contextlab.accounting.flops import (
    causal_pairs,
    gpt2_block_flops,
    gpt_neox_block_flops,
    head_flops,
    llama_block_flops,
    opt_block_flops,
)
from contextlab.backbone import Backbone

BLOCKS: dict[str, Callable[[int, int, Any], int]] = {
    "llama": llama_block_flops,
    "gpt2": gpt2_block_flops,
    "opt": opt_block_flops,
    "gpt_neox": gpt_neox_block_flops,
}
"""FLOPs of a block by the family of the backbone."""
COUNT = 8
"""Bytes of a count per row."""
WIDE_BYTES = 4
"""Bytes of a number of a mean or a sum that is kept, at least."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The sizes of a backbone whose blocks have a formula.

    Attributes:
        family: one of `BLOCKS`.
        config: of transformers.
        layers: blocks.
        width: of a hidden state.
        heads: query heads.
        kv_heads: key and value heads.
        head_width: of a head.
        hidden_bytes: of a hidden state.
        item_bytes: of a number in keys and values.
        window: keys that a query sees at most in every layer; None where the model has no such limit.
    """

    family: str
    config: Any
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden_bytes: int
    item_bytes: int
    window: int | None

    @classmethod
    def of(cls, backbone: Backbone) -> Model | None:
        """The sizes of a backbone; None where its blocks have no formula."""
        if backbone.family is None:
            return None
        return cls(
            backbone.family,
            backbone.config,
            backbone.layers,
            backbone.width,
            backbone.heads,
            backbone.kv_heads,
            backbone.head_width,
            backbone.width * backbone.dtype.itemsize,
            backbone.attention_dtype.itemsize,
            backbone.own_window,
        )

    @property
    def beside(self) -> int:
        """FLOPs per token of what a block computes of the same input as attention; 0 where it follows attention."""
        if not getattr(self.config, "use_parallel_residual", False):
            return 0
        return 4 * self.width * int(self.config.intermediate_size)

    def pairs(self, used: int, tokens: int, band: int | None = None, first: int = 0) -> int:
        """Visible pairs of tokens after so many slots in use.

        Args:
            used: slots in use.
            tokens: after them.
            band: keys that a query sees at most, itself and those just before it; None for all.
            first: slots at the beginning that every query sees whatever the band.
        """
        if self.window is None:
            return pairs(used, tokens, None if band is None else band + first)
        if band is None or self.window <= band:
            return pairs(used, tokens, self.window)
        # The first slots leave the model's own window one after the other.
        sinks = (min(first, s - band + 1) - max(0, s - self.window + 1) for s in range(used, used + tokens))
        return pairs(used, tokens, band) + sum(max(0, count) for count in sinks)

    def block(self, tokens: int, pairs: int) -> int:
        """FLOPs of one block for so many tokens and visible (query, key) pairs of one head."""
        return BLOCKS[self.family](tokens, pairs, self.config)

    def attention(self, pairs: int) -> int:
        """FLOPs of one block's attention, or of attention to something else with as many heads."""
        return self.block(0, pairs)

    def blocks(self, tokens: int, pairs: int) -> int:
        """FLOPs of all blocks."""
        return self.layers * self.block(tokens, pairs)

    def backward(self, tokens: int, pairs: int) -> int:
        """FLOPs of the way back through all blocks to queries, keys and values of the first, without gradients of
        weights.
        """
        return self.layers * (self.block(tokens, 0) + 2 * self.attention(pairs)) - tokens * self.beside

    def projections(self, tokens: int) -> int:
        """FLOPs of making queries, keys and values of one block."""
        return 2 * tokens * self.width * (self.heads + 2 * self.kv_heads) * self.head_width

    def head(self, tokens: int) -> int:
        """FLOPs of the projection onto the vocabulary."""
        return head_flops(tokens, self.config)

    def search(self, queries: int, keys: int, heads: int | None = None) -> int:
        """FLOPs of the inner products of all queries of a block with all keys of a bank; of all query heads if None."""
        return 2 * queries * keys * (self.heads if heads is None else heads) * self.head_width

    def cache_bytes(self, slots: int, layers: int | None = None, item_bytes: int | None = None, parts: int = 2) -> int:
        """Bytes of a cache of one row, and of the count of its slots in use.

        Args:
            slots: in use.
            layers: as many as blocks when not given.
            item_bytes: of a number, those of the model's keys when not given.
            parts: 2 for keys and values, 1 for keys alone.
        """
        layers = self.layers if layers is None else layers
        numbers = parts * layers * slots * self.kv_heads * self.head_width
        return numbers * (item_bytes or self.item_bytes) + COUNT

    def bank_bytes(self, tokens: int, csz: int, layers: int, item_bytes: int) -> int:
        """Bytes of a bank of chunks of one row, and of their mean keys.

        Args:
            tokens: in the bank.
            csz: tokens of a chunk.
            layers: that have one.
            item_bytes: of a stored number.
        """
        means = self.cache_bytes(tokens // csz, layers, max(WIDE_BYTES, self.item_bytes), parts=1)
        return self.cache_bytes(tokens, layers, item_bytes) + means


def triangle(count: int) -> int:
    """1 + 2 + ... + count."""
    return count * (count + 1) // 2


def pairs(used: int, tokens: int, most: int | None = None) -> int:
    """Visible pairs of tokens after so many slots in use, where no query sees more than `most` keys."""
    if most is None:
        return tokens * used + triangle(tokens)
    return causal_pairs(used + tokens, most) - causal_pairs(used, most)


def update_flops(updates: nn.Module | None) -> int:
    """FLOPs per token of low-rank updates: every number of their matrices is multiplied once."""
    return 0 if updates is None else 2 * sum(parameter.numel() for parameter in updates.parameters())
