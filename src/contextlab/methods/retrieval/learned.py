"""The learned weights of retrieval: the queries of a layer for the bank, and how much attention the bank gets.

Legend: B rows, H query heads, T queries, D head width, r rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contextlab.attention import rotate
from contextlab.attention.rotary import Rotary
from contextlab.backbone import Backbone


class LowRank(nn.Module):
    """x + x A B per head, with B zero at first: it changes nothing, and B has a gradient."""

    def __init__(self, heads: int, width: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self.down_HDr = nn.Parameter(like.new_empty(heads, width, rank).normal_(std=width**-0.5))
        self.up_HrD = nn.Parameter(like.new_zeros(heads, rank, width))

    def forward(self, x_BHTD: Tensor) -> Tensor:
        """The changed `x_BHTD`."""
        down, up = (part.to(x_BHTD.dtype) for part in (self.down_HDr, self.up_HrD))
        return x_BHTD + (x_BHTD @ down) @ up

    def transposed(self, x_BHTD: Tensor) -> Tensor:
        """x changed so that its inner product with any y is that of x with the changed y."""
        down, up = (part.to(x_BHTD.dtype) for part in (self.down_HDr, self.up_HrD))
        return x_BHTD + (x_BHTD @ up.transpose(1, 2)) @ down.transpose(1, 2)


class MemoryQuery(nn.Module):
    """The queries of one layer for the bank.

    All keys of the bank have one position. A change of them is therefore one of the queries: the bank holds the keys
    of the backbone whatever is learned, and a search costs what it costs without.
    """

    def __init__(self, backbone: Backbone, rank: int) -> None:
        super().__init__()
        kind = torch.promote_types(backbone.attention_dtype, torch.float32)
        like = torch.empty(0, dtype=kind, device=backbone.device)
        self.bias_H = nn.Parameter(like.new_zeros(backbone.heads))
        sizes = (backbone.heads, backbone.head_width, rank, like)
        self.q, self.k = (LowRank(*sizes) if rank else None for _ in range(2))

    def forward(self, q_BHTD: Tensor, rotary: Rotary | None) -> Tensor:
        """`q_memory_BHTD` of queries before rotation."""
        q_memory_BHTD = rotate(q_BHTD if self.q is None else self.q(q_BHTD), rotary)
        return q_memory_BHTD if self.k is None else self.k.transposed(q_memory_BHTD)
