"""What reading on must leave as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab import backbone as backbones


def check_reading_leaves(method: Any, state: Any, tokens_BT: Tensor) -> Any:
    """The state after more tokens; the one before and the backbone are as they were, without gradients."""
    digest = backbones.weights_digest(method.backbone.model)
    before = {name: tensor.clone() for name, tensor in state.tensors().items()}
    after = method.read(state, tokens_BT)[0]
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, before[name]), name
        assert not tensor.requires_grad
    assert backbones.weights_digest(method.backbone.model) == digest
    return after
