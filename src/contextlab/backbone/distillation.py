"""Learning whole distributions of a teacher, of which the most probable tokens are kept.

Legend: N positions, C width of the model, V vocabulary, k tokens kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contextlab.backbone.wrapper import Backbone

POSITIONS = 128
"""Places whose whole distributions are in memory at one time."""
LEAST = 1e-6
"""The least probability that counts for all other tokens together."""


def best(backbone: Backbone, hidden_NC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`ids_Nk` and `logprobs_Nk` of the most probable tokens, from hidden states."""
    tops = [backbone.logprobs_of_all(piece_NC).topk(k) for piece_NC in hidden_NC.split(POSITIONS)]
    return torch.cat([top.indices for top in tops]), torch.cat([top.values for top in tops])


def cross_entropies(backbone: Backbone, hidden_NC: Tensor, ids_Nk: Tensor, logprobs_Nk: Tensor) -> Tensor:
    """`loss_N`: cross-entropy of the head's distribution at hidden states to a teacher's most probable tokens.

    Whole distributions are in memory for a few positions at one time, in the backward pass too.
    """

    def loss(hidden_NC: Tensor, ids_Nk: Tensor, logprobs_Nk: Tensor) -> Tensor:
        student_NV = backbone.logits(hidden_NC).log_softmax(-1)
        return cross_entropy(student_NV.gather(1, ids_Nk), logprobs_Nk)

    pieces = zip(hidden_NC.split(POSITIONS), ids_Nk.split(POSITIONS), logprobs_Nk.split(POSITIONS), strict=True)
    return torch.cat([checkpoint(loss, *piece, use_reentrant=False) for piece in pieces])


def cross_entropy(student_Nk: Tensor, teacher_Nk: Tensor) -> Tensor:
    """`loss_N`: cross-entropy between two distributions over k named tokens and all others as one outcome.

    Args:
        student_Nk: log-probabilities of the named tokens.
        teacher_Nk: those of the teacher.
    """
    teacher_p_Nk = teacher_Nk.exp()
    others_N = (1 - teacher_p_Nk.sum(-1)).clamp(min=0)
    left_N = (1 - student_Nk.exp().sum(-1)).clamp(min=LEAST)
    return -((teacher_p_Nk * student_Nk).sum(-1) + others_N * left_N.log())
