"""Tensors to and from files; those that are read lie in aligned memory.

The safetensors library returns tensors at any multiple of 8 bytes, and matrix kernels of some processors round
differently where memory is not aligned: what was saved and loaded would have another future than what stayed in memory.
Every tensor that is loaded passes through here.

A file that is written here has its seal in its metadata: the sha256 over names, types, shapes and bytes of all tensors
and over the other metadata. It is checked wherever a file has one. Equal tensors and metadata give equal files.

A matrix may be stored in 8 bits (`compact`): as integers from -127 to 127, and under its name with `:scale` the
factor of every output channel (row) in bfloat16. `read` multiplies them, so that nothing else has to know it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from contextlab import files
from contextlab.errors import UserError

R = TypeVar("R")

Stored = tuple[dict[str, Tensor], dict[str, str]]
"""Tensors by name, and metadata."""

ALIGNMENT = 64
"""Bytes; what torch's own allocator gives on a CPU, and the width of the widest vector registers."""


SEAL, SCHEME = "seal", "sha256:"
"""The field of the metadata that has the seal, and how the seal begins."""
TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip
"""Names of the format for the types of numbers."""
SCALE = ":scale"
"""Ends the name of the scales of a matrix in 8 bits; names in modules have no colon."""
LEVELS = 127
"""The largest integer of 8 bits whose negative has 8 bits too."""
FEWEST = 1024
"""Numbers of the smallest matrix that is stored in 8 bits: smaller ones save little, and may be sensitive."""


def require(holds: Tensor, otherwise: str) -> None:
    """Refuse to go on where a condition on tensors does not hold. No call waits for a device: there it is the device
    that refuses, in words of its own.

    Raises:
        UserError: on a CPU.
    """
    if not holds.is_cpu:
        torch._assert_async(holds, otherwise)
    elif not bool(holds):
        raise UserError(otherwise)


def read(path: Path | str, device: torch.device | str = "cpu", *, sealed: Collection[str] = ()) -> Stored:
    """The tensors of a safetensors file by name, each in memory of its own, and the file's metadata.

    Matrices in 8 bits are returned in float32.

    Args:
        path: of the file.
        device: for the tensors.
        sealed: kinds, by the `kind` in their metadata, of which a file without a seal is refused.

    Raises:
        UserError: when the file is missing, broken, or not what was sealed.
    """
    try:
        with safe_open(path, "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about: dict[str, str] = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        reason = str(error).strip().partition("\n")[0].removesuffix(f": {path}")
        raise UserError(f"{path} cannot be read ({reason}): give an intact safetensors file.") from error
    # A seal under another name is one whose name is damaged.
    has_seal = any(value.startswith(SCHEME) for value in about.values()) or SEAL in about
    if about.get("kind") in sealed and not has_seal:
        raise UserError(f"{path} has no seal, so nothing says whether it is whole: write it again.")
    if has_seal and about.pop(SEAL, None) != _seal(stored, about):
        raise UserError(f"{path} is damaged (its seal is broken: it changed since it was written): write it again.")
    if wrong := _expand(stored):
        raise UserError(f"{path} is damaged ({wrong}): write it again.")
    return {name: _fresh(tensor, device) for name, tensor in stored.items()}, about


def write(path: Path | str, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata as one sealed safetensors file, which is there as a whole or not at all.

    Raises:
        UserError: when it cannot be written.
    """
    target = Path(path).expanduser()
    with files.writing(target, "name another file"):
        store(target, tensors, about)


def store(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """As `write`, for callers that say themselves what to do.

    Raises:
        OSError: when it cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    _write(path, plain, {**(about or {}), SEAL: _seal(plain, about or {})})


def _write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """The format of safetensors: length of the header, header, and the tensors, the widest numbers first."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(sorted(about.items()))}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        kind, shape = TYPES[tensors[name].dtype], list(tensors[name].shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    files.write(path, (len(text).to_bytes(8, "little"), text, *(_bytes(tensors[name]) for name in names)))


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, as a view where it is contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _seal(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """The seal of tensors on the CPU with their metadata."""
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return SCHEME + digest.hexdigest()


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


def compact(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Tensors as they are stored in a type, for `write`.

    Args:
        tensors: by name.
        dtype: floating-point, as for `narrowed`; or int8, for finite matrices of at least `FEWEST` numbers in 8 bits
            and all other tensors in float16. An error of 8 bits is at most half of the scale of its row.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if dtype == torch.int8 and _has_8_bits(tensor):
            stored[name], stored[name + SCALE] = _in_8_bits(tensor)
        else:
            stored[name] = narrowed(tensor, torch.float16 if dtype == torch.int8 else dtype)
    return stored


def _has_8_bits(tensor: Tensor) -> bool:
    matrix = tensor.is_floating_point() and tensor.ndim >= 2 and tensor.numel() >= FEWEST
    return matrix and bool(tensor.float().isfinite().all())


def _in_8_bits(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Integers, and the scale of every row; that of a row of zeros is 0."""
    wide = tensor.detach().double()
    largest = wide.abs().amax(-1)
    scale = (largest / LEVELS).to(torch.bfloat16)
    # Rounded up, so that the largest number of a row is at most LEVELS times its scale.
    above = (scale.view(torch.int16) + 1).view(torch.bfloat16)
    scale = torch.where(scale.double() * LEVELS < largest, above, scale)
    steps = scale.double().where(scale > 0, 1.0)
    return (wide / steps[..., None]).round().to(torch.int8), scale


def _expand(stored: dict[str, Tensor]) -> str | None:
    """Replace integers and scales by the matrices that they stand for; what is wrong with them where that fails."""
    for name in [name for name in stored if name.endswith(SCALE)]:
        scale, whole = stored.pop(name), stored.get(name.removesuffix(SCALE))
        if whole is None or whole.dtype != torch.int8 or whole.shape[:-1] != scale.shape or not whole.ndim:
            return f"{name} is beside no integers that it fits"
        if not scale.is_floating_point() or not bool((scale.isfinite() & (scale >= 0)).all()):
            return f"{name} is not finite and positive"
        stored[name.removesuffix(SCALE)] = whole.float() * scale.float()[..., None]
    return None


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
        digest.update(_bytes(tensor.detach().cpu()))
    return digest.hexdigest()


def _fresh(tensor: Tensor, device: torch.device | str) -> Tensor:
    moved = tensor.to(device)
    return moved.clone() if moved is tensor else moved
