"""A backbone whose rotary positions are stretched: it reads a multiple of the positions that it was trained on.

The kinds, their arithmetic and their names are those of `rope_parameters` in transformers. Weights are shared with the
backbone, which stays as it is.

Legend: B rows, T tokens, F frequencies, D = 2 F width of a rotation.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from contextlab.attention import Positions, Rotary, signed
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError

Rope = Literal["linear", "dynamic", "yarn"]


class StretchedBackbone(Backbone):
    """A backbone with other rotary frequencies.

    Attributes:
        step: tokens after which the frequencies change (`dynamic`); None where all positions have the same.
    """

    def __init__(self, backbone: Backbone, rope: Rope, factor: float) -> None:
        """Stretch the positions of a backbone.

        Args:
            backbone: stays as it is.
            rope: `rope_type` of transformers.
            factor: how many times as many positions there are.

        Raises:
            UserError: when the backbone has no rotary positions, or stretched ones.
        """
        check_rotary(backbone, f"rope={rope}")
        own = dict(backbone.config.rope_parameters)
        if own["rope_type"] != "default":
            raise UserError(
                f"The positions of {backbone.name} are stretched already (rope_type={own['rope_type']}): leave rope "
                "out."
            )
        config = copy.deepcopy(backbone.config)
        config.rope_parameters = {**own, "rope_type": rope, "factor": factor}
        if rope == "yarn":
            config.rope_parameters["original_max_position_embeddings"] = backbone.max_positions
        self.step = backbone.max_positions if rope == "dynamic" else None
        model = backbone.model
        if rope != "dynamic":
            rotary = type(model.base_model.rotary_emb)(config).to(backbone.device)
            model = _with_rotary(model, rotary)
        super().__init__(model, backbone.tokenizer, backbone.name)
        self.max_positions, self.compiled = int(factor * backbone.max_positions), backbone.compiled
        self._stretched = config

    def positions_at(self, used_B: Tensor) -> Positions:
        """The positions of a pass over tokens after so many slots in use of every row.

        With `dynamic` they are those of a text that ends with the row's step, so that a token's prediction depends on
        what is before it and not on how far the text goes on.
        """
        if self.step is None:
            return self
        ends = [min((used // self.step + 1) * self.step, self.max_positions) for used in used_B.tolist()]
        of_length = {end: self._frequencies(end) for end in set(ends)}
        if len(of_length) == 1:
            ends = ends[:1]
        return _OfLengths(torch.stack([of_length[end] for end in ends]))

    def _frequencies(self, length: int) -> Tensor:
        """Of a text of that length."""
        frequencies_F, _ = ROPE_INIT_FUNCTIONS["dynamic"](self._stretched, self.device, seq_len=length)
        return frequencies_F


class _OfLengths:
    """Positions whose frequencies `(B, F)`, or `(1, F)` of all rows, belong to lengths of texts; see `Positions`."""

    slopes_H = None

    def __init__(self, frequencies_BF: Tensor) -> None:
        self.frequencies_BF = frequencies_BF

    def rotary(self, positions: Tensor) -> Rotary:
        """Cosine and signed sine of all rows."""
        angles_BTF = positions[..., None].float() * self.frequencies_BF[:, None]
        angles_BTD = torch.cat((angles_BTF, angles_BTF), dim=-1)
        return signed(angles_BTD.cos(), angles_BTD.sin())


def check_rotary(backbone: Backbone, what: str) -> None:
    """Refuse a backbone without rotary positions.

    Raises:
        UserError: naming what needs them.
    """
    if getattr(backbone.model.base_model, "rotary_emb", None) is None:
        raise UserError(f"{backbone.name} has no rotary positions, which {what} needs: choose a Llama-style model.")


def _with_rotary(model: Any, rotary: nn.Module) -> Any:
    """A model around the same modules, but for that of its rotary positions."""
    outer, inner = _shallow(model), _shallow(model.base_model)
    inner.rotary_emb = rotary
    setattr(outer, model.base_model_prefix, inner)
    return outer


def _shallow(module: nn.Module) -> Any:
    """A module with the same children as another, which can be exchanged."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
