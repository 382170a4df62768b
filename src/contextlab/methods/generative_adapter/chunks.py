"""All chunks of a context at once, as in training: what streaming gives, for more memory and in one forward pass.

Legend: B rows, n chunks, N = B n, T tokens of a chunk, C width of the model, L adapted layers, R = d_r.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.attention import Layout
from contextlab.methods.generative_adapter.generator import Generator
from contextlab.methods.parts.targets import Pair, adapted


def read_chunks(generator: Generator, tokens_BnT: Tensor, lengths_Bn: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Read chunk i of every row with the weights that the chunks before it make (section 3.2), block by block.

    Differentiable in the generator's parameters. Positions start at 0 in every chunk, which sees itself only.

    Args:
        generator: of the backbone that reads.
        tokens_BnT: chunks in order, right-padded.
        lengths_Bn: tokens of each chunk that count; all of them when None.

    Returns:
        `hidden_BnTC` after the final norm, and `S_BnLRR` of every chunk and those before it.
    """
    backbone = generator.backbone
    rows, count, length = tokens_BnT.shape
    steps = torch.arange(length, device=tokens_BnT.device)
    real_NT = None if lengths_Bn is None else steps < lengths_Bn.flatten()[:, None]
    chunk_n = torch.arange(count, device=tokens_BnT.device)
    age_nn = (chunk_n[:, None] - chunk_n).clamp(min=0)
    weight_nn = torch.tril(torch.as_tensor(generator.config.decay, dtype=torch.float64) ** age_nn)
    sums: list[Tensor] = []
    pairs: list[Pair] = []

    def enter(i: int, hidden_NTC: Tensor) -> None:
        gram_BnRR = generator.layer(i).gram(hidden_NTC, real_NT).unflatten(0, (rows, count))
        sum_BnRR = torch.einsum("im,bmrs->birs", weight_nn.to(gram_BnRR.dtype), gram_BnRR)
        before_BnRR = torch.cat((torch.zeros_like(sum_BnRR[:, :1]), sum_BnRR[:, :-1]), dim=1)
        sums.append(sum_BnRR)
        pairs.append(generator.pair(i, before_BnRR.flatten(0, 1)))

    position_NT = steps.expand(rows * count, -1)
    with adapted(generator.targets, pairs.__getitem__, enter):
        hidden_NTC = backbone.forward(
            tokens_BnT.flatten(0, 1), position_NT, backbone.reader(rows * count, Layout(position_NT))
        )
    return hidden_NTC.unflatten(0, (rows, count)), torch.stack(sums, dim=2)
