"""Statistics of gradients over training text, which the rule `rms` needs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.parts.adaptable import Adaptable, logprobs_within


def gradient_statistics(backbone: Backbone, segments: Iterable[Sequence[int]]) -> dict[str, Tensor]:
    """MS of `rule=rms`: the root mean square of every weight's gradient over segments of training text.

    Args:
        backbone: the backbone that will be evaluated.
        segments: tokens, at least 2 each and no more than the backbone's positions, read one by one from a cold start;
            as long as those of the evaluation.

    Raises:
        UserError: when there is no segment, or one without a next token.
    """
    model = Adaptable(backbone)
    gradients = (model.gradients(model.trained, functools.partial(_predict, backbone, s))[2] for s in segments)
    return dict(zip(model.names, root_mean_square(gradients), strict=True))


def root_mean_square(gradients: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Element by element over all gradients.

    Raises:
        UserError: when there are none.
    """
    total: list[Tensor] = []
    count = 0
    for tensors in gradients:
        total = total or [torch.zeros_like(g) for g in tensors]
        for square, g in zip(total, tensors, strict=True):
            square.addcmul_(g, g)
        count += 1
    if not count:
        raise UserError("Gradient statistics need at least one segment of text: give some.")
    return [square.div_(count).sqrt_() for square in total]


def _predict(backbone: Backbone, segment: Sequence[int]) -> tuple[Tensor, None]:
    if len(segment) < 2:
        raise UserError("A segment of one token has no gradient: give segments of at least 2.")
    tokens_1T = torch.as_tensor(segment, device=backbone.device)[None]
    return logprobs_within(backbone, tokens_1T), None
