"""Gists: additional tokens, with separate projections, that stand for the tokens of a window.

Legend: B rows, T new tokens, S slots of a cache, G gists of the longest row, C width of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone import Backbone, UpdatedBackbone, linear_layers


class Gists(nn.Module):
    """All that is trained: the embedding of gists, and what their projections differ by from those of tokens.

    Queries, keys, values and outputs of gists have weights W + B A, with W of the backbone and B zero at first; the
    rest of every block is the backbone's. The embedding begins as that of the end of a text.
    """

    def __init__(self, backbone: Backbone, rank: int) -> None:
        super().__init__()
        # In a list, so that the backbone's parameters are not this module's.
        self._network = [
            UpdatedBackbone(backbone, [layer for layer in linear_layers(backbone) if layer.of_attention], rank)
        ]
        self.updates = self._network[0].updates
        weight_VC = backbone.model.get_input_embeddings().weight.detach()
        kind = torch.promote_types(weight_VC.dtype, torch.float32)
        self.embedding_C = nn.Parameter(weight_VC[end_of_text(backbone)].to(kind).clone())

    def forward(self, kv: KV, window: Windows) -> KV:
        """The cache of all rows with the keys and values of their gists after its slots, padding included."""
        network = self._network[0]
        reader = GistReader(network, kv, window)
        rows, count = reader.layout.position_BT.shape
        embedding_BGC = self.embedding_C.to(network.dtype).expand(rows, count, -1)
        network.forward_embedded(embedding_BGC, reader.layout.position_BT, reader)
        return kv.replace(tuple(reader.k), tuple(reader.v), kv.used_B)


class Windows:
    """The windows that end in some rows, and the gists that they get.

    Attributes:
        front_B: slots in front of the window.
        tokens_B: of the window.
        gists_B: that stand for them; the last one stands for fewer where the ratio does not divide the tokens.
        seen_BG: tokens of the window that each gist sees: j times the ratio the j-th, none more than there are.
    """

    def __init__(self, front_B: Tensor, tokens_B: Tensor, ratio_B: Tensor) -> None:
        self.front_B, self.tokens_B = front_B, tokens_B  # on the host, as all that follows
        self.gists_B = (tokens_B + ratio_B - 1) // ratio_B
        self.steps_G = torch.arange(int(self.gists_B.max()))
        self.seen_BG = torch.minimum((self.steps_G + 1) * ratio_B[:, None], tokens_B[:, None])

    @property
    def position_BG(self) -> Tensor:
        """Of every gist: after the last token that it sees, moved on by the gists of the window before it."""
        return self.front_B[:, None] + self.seen_BG + self.steps_G


class GistReader(CacheReader):
    """Attention of gists to all in front of the window, to its tokens as far as each sees, and to gists before."""

    def __init__(self, network: Backbone, kv: KV, window: Windows) -> None:
        device = kv.k[0].device
        super().__init__(network, kv, Layout(window.position_BG.to(device)))
        self.limit_BG1 = (window.front_B[:, None] + window.seen_BG)[:, :, None].to(device)
        self.steps_G = window.steps_G.to(device)

    def causal(self, window: int | None) -> bool:
        """Never: what a gist sees ends before its own place."""
        return False

    def visible(self, window: int | None = None) -> Tensor:
        """`visible_BGS`; with a sliding window of the model's own, nothing farther."""
        slot_S = torch.arange(self.key_position_BS.shape[1], device=self.limit_BG1.device)
        earlier_GS = (slot_S >= self.cached) & (slot_S - self.cached <= self.steps_G[:, None])
        seen_BGS = earlier_GS | ((slot_S < self.cached) & (slot_S < self.limit_BG1))
        if window is not None:
            seen_BGS &= self.key_position_BS[:, None] > self.layout.position_BT[:, :, None] - window
        return seen_BGS


def end_of_text(backbone: Backbone) -> int:
    """The token that ends a text, or BOS where the model names none."""
    end = backbone.config.eos_token_id
    return end if isinstance(end, int) else backbone.bos
