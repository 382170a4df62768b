"""The generator (section 3.2): it turns the states of a context into a change of weights, layer by layer.

Legend: B rows, T tokens, C width of the model, L adapted layers, R = d_r, r rank, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from contextlab.backbone import Backbone, weights_digest
from contextlab.methods.generative_adapter import normalise
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.parts import targets
from contextlab.methods.parts.targets import Pair, Target
from contextlab.tensors import require

EPS = 1e-6


class LayerGenerator(nn.Module):
    """A1, A2, B1, B2 of one adapted layer, named as in the paper, and the gain of the norm before A2 and B1.

    A1 starts at zero, so that the adapted layer starts as it was; the others at N(0, 1 / (3 fan_in)).
    """

    def __init__(self, width: int, d_r: int, target: Target, *, gain: bool, random: torch.Generator) -> None:
        super().__init__()
        self.A1 = nn.Parameter(torch.zeros(target.outputs, d_r))
        self.A2 = nn.Parameter(torch.randn(d_r, width, generator=random) / (3 * width) ** 0.5)
        self.B1 = nn.Parameter(torch.randn(width, d_r, generator=random) / (3 * width) ** 0.5)
        self.B2 = nn.Parameter(torch.randn(d_r, target.inputs, generator=random) / (3 * target.inputs) ** 0.5)
        self.gain = nn.Parameter(torch.ones(width)) if gain else None

    def gram(self, hidden_BTC: Tensor, real_BT: Tensor | None = None) -> Tensor:
        """`S_BRR` = A2 H^T H B1 of the tokens that are real, in float32 at least."""
        if real_BT is not None:
            hidden_BTC = hidden_BTC.masked_fill(~real_BT[..., None], 0.0)
        if self.gain is not None:
            hidden_BTC = rms_norm(hidden_BTC, hidden_BTC.shape[-1:], self.gain, EPS)
        a_BTR, b_BTR = (_wide(hidden_BTC @ weight) for weight in (self.A2.mT, self.B1))
        return a_BTR.mT @ b_BTR


class Generator(nn.Module):
    """One `LayerGenerator` per adapted layer of a backbone.

    Attributes:
        targets: the adapted layers.
        d_r: width of S.
        rank: of the pairs.
        scale: alpha / d_r.

    Raises:
        UserError: when the configuration does not fit the backbone.
    """

    def __init__(self, backbone: Backbone, config: GenerativeAdapterConfig) -> None:
        super().__init__()
        self.backbone, self.config = backbone, config
        self.targets = targets.find(backbone, config.modules)
        self.d_r, self.rank = config.widths(backbone.width)
        self.scale = config.alpha / self.d_r if config.alpha is not None else 1 / 16
        random = torch.Generator().manual_seed(config.seed)
        self.layers = nn.ModuleDict(
            {
                key(target.name): LayerGenerator(backbone.width, self.d_r, target, gain=config.rms_norm, random=random)
                for target in self.targets
            }
        ).to(backbone.device, backbone.dtype)

    def layer(self, i: int) -> LayerGenerator:
        """The generator of the i-th adapted layer."""
        layer: LayerGenerator = self.layers[key(self.targets[i].name)]  # type: ignore[assignment]
        return layer

    def pair(self, i: int, S_BRR: Tensor) -> Pair:
        """The change s A1 norm(S) B2 of the i-th adapted layer.

        Raises:
            UserError: when S is not finite.
        """
        finite = S_BRR.isfinite().all()
        require(finite, "The context's hidden states are not finite: load the backbone with --dtype float32.")
        layer = self.layer(i)
        left_BRr, right_BrR = normalise.factors(S_BRR, self.rank, self.config)
        down_RI = _wide(layer.B2)
        down_BrI = down_RI.expand(len(S_BRR), -1, -1) if right_BrR is None else right_BrR @ down_RI
        return Pair(self.scale * _wide(layer.A1) @ left_BRr, down_BrI)

    def pairs(self, S_BLRR: Tensor) -> tuple[Pair, ...]:
        """The changes of all adapted layers."""
        return tuple(self.pair(i, S_BRR) for i, S_BRR in enumerate(S_BLRR.unbind(1)))

    def no_pairs(self, rows: int) -> tuple[Pair, ...]:
        """No change of any layer."""
        none = _wide(self.layer(0).A1.new_zeros(1, 1, 1))
        return tuple(
            Pair(none.expand(rows, target.outputs, self.rank), none.expand(rows, self.rank, target.inputs))
            for target in self.targets
        )

    def empty(self, rows: int) -> Tensor:
        """`S_BLRR` of an empty context."""
        like = _wide(self.layer(0).A1)
        return like.new_zeros(rows, len(self.targets), self.d_r, self.d_r)

    @property
    def untrained(self) -> bool:
        """Whether every A1 is zero, so that no context changes anything."""
        return not any(bool(self.layer(i).A1.any()) for i in range(len(self.targets)))

    def origin(self) -> dict[str, str]:
        """The origin of an S: digests of the backbone and of this generator, and the adapted layers in order."""
        modules = json.dumps([target.name for target in self.targets])
        return {"backbone": self.backbone.digest, "generator": weights_digest(self), "modules": modules}


def key(name: str) -> str:
    """A layer's name as part of a parameter's name."""
    return name.replace(".", "/")


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
