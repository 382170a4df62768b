"""Vectors of chunks and queries: by an encoder of sentences, or by the backbone itself.

Legend: t tokens, E width of a vector, C width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from contextlab.attention import Layout
from contextlab.backbone import Backbone, SentenceEncoder
from contextlab.errors import UserError

Vector: TypeAlias = Callable[[Sequence[int]], Tensor]
"""The vector of tokens of the backbone, of length 1, in float32."""


def of_encoder(backbone: Backbone, encoder: SentenceEncoder) -> Vector:
    """The vector that an encoder gives to the decoded text.

    Raises:
        UserError: when the backbone has no tokenizer.
    """
    if backbone.tokenizer is None:
        raise UserError("This model was given without a tokenizer: pass one to search in text.")
    return lambda tokens: encoder(backbone.decode(list(tokens)))


def of_backbone(backbone: Backbone) -> Vector:
    """The mean of the backbone's last hidden states, from a cold start."""

    def vector_C(tokens: Sequence[int]) -> Tensor:
        tokens_1t = torch.tensor([list(tokens)], device=backbone.device)
        position_1t = torch.arange(len(tokens), device=backbone.device)[None]
        hidden_1tC = backbone.forward(tokens_1t, position_1t, backbone.reader(1, Layout(position_1t)))
        return normalize(hidden_1tC[0].float().mean(0), dim=0)

    return vector_C
