"""Tensors to and from files; those that are read lie in aligned memory.

The safetensors library returns tensors at any multiple of 8 bytes, and matrix kernels of some processors round
differently where memory is not aligned: what was saved and loaded would have another future than what stayed in memory.
Every tensor that is loaded passes through here.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from contextlab.errors import UserError

R = TypeVar("R")

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
        reason = str(error).strip().partition("\n")[0].removesuffix(f": {path}")
        raise UserError(f"{path} cannot be read ({reason}): give an intact safetensors file.") from error


def write(path: Path | str, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata as one safetensors file, which is there as a whole or not at all.

    Raises:
        UserError: when it cannot be written.
    """
    target = Path(path).expanduser()
    # Tensors may share memory, which the format does not.
    whole = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
            fresh = Path(scratch, "file")
            save_file(whole, fresh, metadata=dict(about or {}))
            os.replace(fresh, target)
    except (OSError, SafetensorError) as error:
        reason = ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()
        raise UserError(f"{target} cannot be written ({reason}): name another file.") from error


def load_into(module: nn.Module, weights: Mapping[str, Tensor], *, unbounded: Collection[str] = ()) -> str | None:
    """Take over parameters and buffers, all or none; None when it was done, else what does not fit.

    Args:
        module: receives the weights in its own types.
        weights: by the names of `state_dict`.
        unbounded: last parts of names whose values may be minus infinity.
    """
    own = module.state_dict()
    for name in own.keys() ^ weights.keys():
        return f"{name} is {'missing' if name in own else 'unknown'}"
    cast = {}
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            return f"{name} has the shape {tuple(tensor.shape)} and not {tuple(own[name].shape)}"
        if tensor.is_floating_point() != own[name].is_floating_point() or tensor.is_complex():
            return f"{name} holds {str(tensor.dtype).removeprefix('torch.')}"
        cast[name] = tensor.to(own[name].dtype)
        free = name.rpartition(".")[2] in unbounded
        if not bool((cast[name].isfinite() | (cast[name].isneginf() if free else False)).all()):
            return f"{name} is not finite in {str(own[name].dtype).removeprefix('torch.')}"
    module.load_state_dict(cast)
    return None


def dtype_named(name: str) -> torch.dtype:
    """The number type of a name that a configuration has checked, such as `float16`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def narrowed(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor in a narrower type of floating-point numbers; as it is where that type cannot hold its numbers."""
    if dtype is None or not tensor.is_floating_point() or dtype.itemsize >= tensor.element_size():
        return tensor
    narrow = tensor.to(dtype)
    return narrow if torch.equal(narrow.isfinite(), tensor.isfinite()) else tensor


def align(module: nn.Module) -> None:
    """Move the parameters and buffers of a module that are not aligned, in place; ties between them stay."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where the parameters and buffers lie and how often each was written: another value means other weights."""
    return tuple(
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in (*module.parameters(), *module.buffers())
    )


class Derived(Generic[R]):
    """A value that follows from weights: computed when it is first needed, and again when they have changed."""

    def __init__(self) -> None:
        self._computed: tuple[object, R] | None = None

    def of(self, compute: Callable[[], R], *modules: nn.Module) -> R:
        """The value.

        Args:
            compute: gives the value from the weights as they are.
            modules: all those whose weights it follows from.
        """
        now = tuple(map(versions, modules))
        if self._computed is None or self._computed[0] != now:
            self._computed = now, compute()
        return self._computed[1]


def weights_digest(module: nn.Module) -> str:
    """sha256 over names, types and bytes of all parameters and buffers that are saved."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _fresh(tensor: Tensor, device: torch.device | str) -> Tensor:
    moved = tensor.to(device)
    return moved.clone() if moved is tensor else moved
