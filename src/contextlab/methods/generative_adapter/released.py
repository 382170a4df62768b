"""Names of the authors' released checkpoint, translated to ours.

The released code keeps S transposed, so that its A1, A2, A3 and B are the paper's B2, B1 (transposed), A2 and A1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from contextlab.methods.generative_adapter.generator import key

NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.fastlora_(A1|A2|A3|B|hidden_state_norm)(?:\.default)?\.weight")
PARTS = {"A1": "B2", "A2": "B1", "A3": "A2", "B": "A1", "hidden_state_norm": "gain"}


def is_released(weights: Mapping[str, Tensor]) -> bool:
    """Whether parameters have the released checkpoint's names."""
    return any(NAME.fullmatch(name) for name in weights)


def generator_weights(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The released generator's parameters under the names of `Generator`; whatever else there is, is left out."""
    renamed = {}
    for name, tensor in released.items():
        if match := NAME.fullmatch(name):
            module, part = match.groups()
            renamed[f"layers.{key(module)}.{PARTS[part]}"] = tensor.mT.contiguous() if part == "A2" else tensor
    return renamed
