"""Tensors from files, in aligned memory.

The safetensors library returns tensors at any multiple of 8 bytes, and matrix kernels of some processors round
differently where memory is not aligned: what was saved and loaded would have another future than what stayed in memory.
Every tensor that is loaded passes through here.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from contextlab.errors import UserError

ALIGNMENT = 64
"""Bytes; what torch's own allocator gives on a CPU, and the width of the widest vector registers."""


def read(path: Path | str, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file by name, each in memory of its own, and the file's metadata.

    Raises:
        UserError: when the file is missing or broken.
    """
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            return {name: _fresh(file.get_tensor(name), device) for name in names}, file.metadata() or {}
    except (OSError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{path} cannot be read ({reason}): give an intact safetensors file.") from error


def align(module: nn.Module) -> None:
    """Move the parameters and buffers of a module that are not aligned, in place; ties between them stay."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def _fresh(tensor: Tensor, device: torch.device | str) -> Tensor:
    moved = tensor.to(device)
    return moved.clone() if moved is tensor else moved
