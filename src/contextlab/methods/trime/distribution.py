"""TRIME's distribution: a softmax over the vocabulary's logits and those of memory, which count for their next tokens.

P(y) = (exp z_y + sum of exp s_j over pairs j whose next token is y) / (sum of exp z_v + sum of exp s_j), with the
logits z of the language model and s_j = f . f_j / (sqrt(C) temperature) (section 3.1, equation 3).

Legend: B rows, T predictions, J pairs of a representation and a next token, W width of the model, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = float("-inf")


def memory_logits(f_BTW: Tensor, f_BJW: Tensor, temperature: float) -> Tensor:
    """`s_BTJ`, in float32 at least."""
    query, keys = (f.to(torch.promote_types(f.dtype, torch.float32)) for f in (f_BTW, f_BJW))
    s_BTJ: Tensor = query @ keys.mT / (f_BTW.shape[-1] ** 0.5 * temperature)
    return s_BTJ


def logprobs_of(
    model_logprobs_BT: Tensor, normaliser_BT: Tensor, s_BTJ: Tensor, seen_BTJ: Tensor, same_BTJ: Tensor
) -> Tensor:
    """`logprobs_BT` of one token for each prediction.

    Args:
        model_logprobs_BT: the language model's log-probability of the token.
        normaliser_BT: log-sum-exp of the language model's logits.
        s_BTJ: logits of the pairs.
        seen_BTJ: which pairs are in a prediction's memory.
        same_BTJ: which pairs have the token as their next one.
    """
    s_BTJ = s_BTJ - normaliser_BT[..., None]
    model_BT1 = model_logprobs_BT[..., None]
    token_BT = torch.cat((model_BT1, s_BTJ.masked_fill(~(seen_BTJ & same_BTJ), NEVER)), dim=-1).logsumexp(-1)
    all_BT = torch.cat((torch.zeros_like(model_BT1), s_BTJ.masked_fill(~seen_BTJ, NEVER)), dim=-1).logsumexp(-1)
    return (token_BT - all_BT).clamp(max=0)  # rounding leaves a little more than 0 where all agree


def logprobs_of_all(logits_BV: Tensor, s_BJ: Tensor, seen_BJ: Tensor, token_BJ: Tensor) -> Tensor:
    """`logprobs_BV`: the whole distribution, given the language model's logits and the pairs of memory."""
    s_BJ = s_BJ.masked_fill(~seen_BJ, NEVER)
    highest_BV = torch.full_like(logits_BV, NEVER).scatter_reduce(1, token_BJ, s_BJ, "amax")
    floor_BV = highest_BV.clamp(min=torch.finfo(logits_BV.dtype).min)
    sum_BV = torch.zeros_like(logits_BV).scatter_add(1, token_BJ, (s_BJ - floor_BV.gather(1, token_BJ)).exp())
    return torch.logaddexp(logits_BV, sum_BV.log() + floor_BV).log_softmax(-1)
