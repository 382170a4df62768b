"""How much of what a layer lacks without a chunk a linear memory of the chunk can give back.

What a layer lacks (y) is what the states after its block are when a chunk comes again after itself, less what they are
when it comes first, in units of the state's size. A memory is a sum over the chunk's tokens, value times key; its
queries are the layer's inputs (x). Keys are the directions in which x varies most, whitened. Values are what enters the
block with the token (`own`, GenerativeAdapter's) or with the next one (`next`), or y itself (`lacking`, what least
squares solves for). The sum is taken as it is (`sum`), with its singular values set to one (`svd`,
GenerativeAdapter's), or solved for, so that keys do not interfere (`ridge`).

A linear map from what the memory answers to y is fitted over chunks of the corpus, and every number is the share of
|y|^2 that it explains in chunks of held-back documents; its penalty is chosen on chunks of neither. `constant` and
`static` (a map of x) know nothing of the chunk. Layers are looked at one by one, lower ones as they were.

Legend: B chunks, T tokens of a chunk, C width of the model, I inputs of a layer, k keys, F features, N rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from contextlab.attention import Layout
from contextlab.backbone import Backbone, load
from contextlab.harness.identity import hardware
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter.normalise import polar_factors
from contextlab.methods.least_squares.config import DOWN_PROJECTIONS
from contextlab.methods.least_squares.regression import sizes
from contextlab.methods.parts.targets import Pair, Target, adapted, find, observed
from contextlab.training.corpus import Corpus, prepare

Memory: TypeAlias = tuple[str, int | None, str | None]
"""Its values, the number of its keys, and the form of the sum."""
RIDGE = 0.03
"""Of the solved sum, in units of the mean square of a chunk's keys."""
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Of the fitted maps, in units of the mean square of their features."""


def chunks_of(corpus: Corpus, documents: list[int], count: int, length: int) -> Tensor:
    """`tokens_BT` from documents in turn, each time from further inside."""
    rounds = -(-count // len(documents))
    pieces = []
    for number in range(count):
        document, part = documents[number % len(documents)], number // len(documents)
        begin = (corpus.documents[document].tokens - length) * (part + 1) // (rounds + 1)
        pieces.append(corpus.piece(document, begin, begin + length))
    return torch.stack(pieces)


@torch.no_grad()
def states_of(backbone: Backbone, targets: list[Target], tokens_BT: Tensor) -> list[tuple[Tensor, ...]]:
    """Of every layer h_BTC, and x_BTI and y_BTC in units of the state's size; without the first token."""
    full, rows = Full(backbone), len(tokens_BT)
    entered, first, again = list[Tensor](), list[tuple[Tensor, Tensor]](), list[Tensor]()
    none = [Pair(torch.zeros(rows, t.outputs, 1), torch.zeros(rows, 1, t.inputs)) for t in targets]
    position_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    with (
        adapted(targets, none.__getitem__, lambda _, h_BTC: entered.append(h_BTC)),
        observed(targets, lambda _, x_BTI, hidden_BTC: first.append((x_BTI, hidden_BTC))),
    ):
        backbone.forward(tokens_BT, position_BT, backbone.reader(rows, Layout(position_BT)))
    state, _ = full.read(full.start(rows), tokens_BT, logprobs=False)
    with observed(targets, lambda _, _x, hidden_BTC: again.append(hidden_BTC)):
        full.forward(state, tokens_BT, full.local.layout(state, tokens_BT.shape[1]))
    tensors = list[tuple[Tensor, ...]]()
    for h_BTC, (x_BTI, cold_BTC), wanted_BTC in zip(entered, first, again, strict=True):
        size_BT1 = sizes(wanted_BTC.flatten(0, 1), cold_BTC.flatten(0, 1)).view(*h_BTC.shape[:2], 1)
        h_BTC = torch.nn.functional.rms_norm(h_BTC, h_BTC.shape[-1:])
        tensors.append((h_BTC[:, 1:], (x_BTI / size_BT1)[:, 1:], ((wanted_BTC - cold_BTC) / size_BT1)[:, 1:]))
    return tensors


def whitening(x_BTF: Tensor, width: int) -> Tensor:
    """`basis_Fk`: the directions of largest variance, each divided by its standard deviation."""
    x_NF = x_BTF.flatten(0, 1).double()
    values_F, vectors_FF = torch.linalg.eigh(x_NF.mT @ x_NF / len(x_NF))
    basis_Fk: Tensor = vectors_FF[:, -width:] / values_F[-width:].clamp(min=1e-9).sqrt()
    return basis_Fk.to(x_BTF.dtype)


def answers(form: str, keys_BTk: Tensor, values_BTF: Tensor) -> Tensor:
    """What every chunk's memory answers to the keys of its own tokens."""
    sum_BFk = values_BTF.mT @ keys_BTk
    match form:
        case "svd":
            left_Bkk, right_BkF = polar_factors(sum_BFk.mT, keys_BTk.shape[-1])
            sum_BFk = (left_Bkk @ right_BkF).mT
        case "ridge":
            square_Bkk = keys_BTk.mT @ keys_BTk
            scale_B = RIDGE * square_Bkk.diagonal(dim1=-2, dim2=-1).mean(-1)
            square_Bkk.diagonal(dim1=-2, dim2=-1).add_(scale_B[:, None])
            sum_BFk = torch.linalg.solve(square_Bkk, sum_BFk.mT).mT
    return keys_BTk @ sum_BFk.mT


def explained(features_BTF: Tensor, y_BTC: Tensor, held_back: int) -> float:
    """The share of |y|^2 in the last chunks that a linear map of features explains.

    Args:
        features_BTF: of all chunks.
        y_BTC: what is explained.
        held_back: the last chunks, which the map is measured on; as many in front of them choose its penalty.
    """
    parts = [len(y_BTC) - 2 * held_back, held_back, held_back]
    (f_NF, f_choice, f_test), (y_NC, y_choice, y_test) = (
        [piece.flatten(0, 1).double() for piece in x.split(parts)] for x in (features_BTF, y_BTC)
    )
    square_FF, right_FC = f_NF.mT @ f_NF, f_NF.mT @ y_NC
    unit_FF = square_FF.diagonal().mean() * torch.eye(len(square_FF), dtype=square_FF.dtype)
    maps = [torch.linalg.solve(square_FF + penalty * unit_FF, right_FC) for penalty in PENALTIES]
    best = min(maps, key=lambda map_FC: float((y_choice - f_choice @ map_FC).square().sum()))
    return 1 - float((y_test - f_test @ best).square().sum() / y_test.square().sum())


def layer(states: tuple[Tensor, ...], widths: list[int], held_back: int) -> dict[Memory, float]:
    """What every kind of memory of a layer explains."""
    h_BTC, x_BTI, y_BTC = states
    next_BTC = torch.nn.functional.pad(h_BTC[:, 1:], (0, 0, 0, 1))
    fitted = len(y_BTC) - 2 * held_back
    known = {"constant": torch.ones_like(x_BTI[..., :1]), "static": x_BTI}
    shares: dict[Memory, float] = {
        (name, None, None): explained(features, y_BTC, held_back) for name, features in known.items()
    }
    for width in widths:
        keys_BTk = x_BTI @ whitening(x_BTI[:fitted], width)
        for name, value_BTC in {"own": h_BTC, "next": next_BTC, "lacking": y_BTC}.items():
            white_BTk = value_BTC @ whitening(value_BTC[:fitted], width)
            for form, used in (("sum", value_BTC), ("svd", white_BTk), ("ridge", value_BTC)):
                shares[name, width, form] = explained(answers(form, keys_BTk, used), y_BTC, held_back)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 16, 24])
    parser.add_argument("--widths", type=int, nargs="+", default=[40, 128], help="keys of a memory")
    parser.add_argument("--chunks", type=int, default=160, help="that maps are fitted on, and their penalties chosen")
    parser.add_argument("--held-back", type=int, default=40, help="chunks that they are measured on")
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    backbone = load(options.backbone, device="cpu", dtype="float32")
    corpus = prepare(options.corpus, backbone)
    targets = [t for t in find(backbone, DOWN_PROJECTIONS) if t.depth in options.layers]
    sets = ((corpus.training, options.chunks), (corpus.held_back, options.held_back))
    tokens_BT = torch.cat([chunks_of(corpus, list(of), count, options.length) for of, count in sets])
    parts = [states_of(backbone, targets, part) for part in tokens_BT.split(16)]
    of_layers = [tuple(torch.cat(x) for x in zip(*states, strict=True)) for states in zip(*parts, strict=True)]
    memories: dict[Memory, dict[str, Any]] = {}
    for target, states in zip(targets, of_layers, strict=True):
        for memory, share in layer(states, options.widths, options.held_back).items():
            row = memories.setdefault(memory, dict(zip(("values", "keys", "form"), memory, strict=True)))
            row[f"layer_{target.depth}"] = round(share, 3)
    about = {
        "backbone": backbone.name,
        "corpus": options.corpus.name,
        "chunks": options.chunks,
        "held_back": options.held_back,
        "length": options.length,
        "ridge": RIDGE,
        "device": hardware(torch.device("cpu")),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps({**about, "explained": list(memories.values())}))


if __name__ == "__main__":
    main()
