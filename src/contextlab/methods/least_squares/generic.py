"""The inverse covariance of a layer's inputs over generic text, once for every backbone and from then on in the cache.

Legend: T tokens, I inputs of a layer.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from importlib.resources import files as resources
from pathlib import Path

import torch
from torch import Tensor

from contextlab import files, locks, tensors
from contextlab.attention import Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.parts.targets import Target, observed
from contextlab.paths import cache_dir

LENGTH = 768
"""The most tokens of one text."""
SMALLEST = 0.01
"""Added to the diagonal of the covariance, in units of its mean."""


def inverses(backbone: Backbone, targets: list[Target], path: Path | None) -> list[Tensor]:
    """`inverse_II` of every layer, in float32 at least.

    Args:
        backbone: that reads the text.
        targets: the layers.
        path: of the text; that of the package when None.

    Raises:
        UserError: when the text cannot be read or has no token, or the cache cannot be written.
    """
    text = _text(path)
    parts = [backbone.digest, str(backbone.dtype), [target.name for target in targets], LENGTH, SMALLEST]
    key = hashlib.sha256(json.dumps([*parts, hashlib.sha256(text.encode()).hexdigest()]).encode()).hexdigest()
    file = cache_dir() / "inverses" / f"{key[:20]}.safetensors"
    stored = _stored(file, backbone.device)
    if not stored:
        with files.writing(file, "set CONTEXTLAB_CACHE"), locks.held("inverses"):
            file.parent.mkdir(parents=True, exist_ok=True)
            stored = _stored(file, backbone.device) or _inverses(backbone, targets, text)
            tensors.store(file, stored, {"key": key})
    return [stored[str(i)] for i in range(len(targets))]


def _stored(file: Path, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a file of the cache; none where it is not there or damaged."""
    try:
        return tensors.read(file, device)[0]
    except UserError:
        return {}


def _text(path: Path | None) -> str:
    if path is None:
        packed = resources("contextlab.methods.least_squares").joinpath("generic.txt.xz").read_bytes()
        return lzma.decompress(packed).decode()
    try:
        return path.expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"generic={path} is no text that can be read: give a file in UTF-8.") from error


@torch.no_grad()
def _inverses(backbone: Backbone, targets: list[Target], text: str) -> dict[str, Tensor]:
    pieces = [backbone.encode(piece.strip())[: min(LENGTH, backbone.max_positions)] for piece in text.split("\f")]
    pieces = [piece for piece in pieces if piece]
    if not pieces:
        raise UserError("The file of generic= has no text: give one of some pages, or leave generic= out.")
    sums = [torch.zeros(t.inputs, t.inputs, dtype=torch.float64, device=backbone.device) for t in targets]

    def leave(i: int, x_1TI: Tensor, _hidden_1TC: Tensor) -> None:
        x_TI = x_1TI[0].double()
        sums[i].addmm_(x_TI.mT, x_TI)

    with observed(targets, leave):
        for piece in pieces:
            tokens_1T = torch.tensor([piece], device=backbone.device)
            position_1T = torch.arange(len(piece), device=backbone.device)[None]
            backbone.forward(tokens_1T, position_1T, backbone.reader(1, Layout(position_1T)))
    count = sum(map(len, pieces))
    return {str(i): _inverse(sum_II / count, backbone.dtype) for i, sum_II in enumerate(sums)}


def _inverse(covariance_II: Tensor, dtype: torch.dtype) -> Tensor:
    covariance_II.diagonal().add_(SMALLEST * covariance_II.diagonal().mean())
    inverse_II = torch.cholesky_inverse(torch.linalg.cholesky(covariance_II))
    return inverse_II.to(torch.promote_types(dtype, torch.float32)).contiguous()
