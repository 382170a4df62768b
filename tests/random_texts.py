"""Random texts, and what a method says of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.method import ContextMethod
from contextlab.testing import parts


def text(length: int, rows: int = 1, seed: int = 0) -> Tensor:
    """`tokens_BT` of any bytes."""
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def read(method: ContextMethod[Any, Any], tokens_BT: Tensor) -> Tensor:
    """`logprobs_BT` of a text from an empty state."""
    return parts.read(method, tokens_BT)[1]
