"""Names of the authors' released checkpoint, translated to ours."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

PARTS = (
    ("layers.", "blocks."),
    ("self_attn.", "attn."),
    ("fc1.", "mlp.fc_in."),
    ("fc2.", "mlp.fc_out."),
    ("layer_norm.", "norm."),
)
GATE = ".memory_bias"


def side_weights(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The released side network's parameters under the names of `SideNetwork`."""
    renamed = {}
    for name, tensor in released.items():
        if name.endswith(GATE):
            renamed["gate_H"] = tensor
            continue
        for theirs, ours in PARTS:
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed
