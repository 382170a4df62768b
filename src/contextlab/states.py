"""States: what methods keep between calls, as values and in files.

A file says what its state belongs to, and is read only where that fits.

Legend: B rows, C width of the model, S slots of a cache.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from contextlab import files, tensors
from contextlab.config import Config
from contextlab.errors import UserError

MOST = 2**36
"""More tokens than anything reads."""
PLAIN = (int, float, complex, str, frozenset, enum.Enum, torch.dtype, torch.device)
"""What a state may hold beside tensors, to say how to understand them."""


class Misfit(Exception):
    """A file holds no state of the method; the text says what is wrong, and `load` in which file."""


class Weights(Protocol):
    """The properties of a backbone that files of states and the checks of calls depend on."""

    @property
    def digest(self) -> str:
        """sha256 of the weights."""

    @property
    def vocab_size(self) -> int:
        """Ids of tokens are smaller than this."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Use the model in no other thread for the duration of a block."""


@runtime_checkable
class Padded(Protocol):
    """A part of a state whose rows have slots, as many as the longest."""

    def unpadded(self) -> Self:
        """The part without slots that no row uses, as views."""


class Owner(Protocol):
    """The properties of a method that files of states and the checks of calls depend on."""

    called_by: int | None

    @property
    def backbone(self) -> Weights:
        """The model beside which it works."""

    @property
    def config(self) -> Config:
        """Its settings."""

    @property
    def weights_digest(self) -> str | None:
        """sha256 of what it has learned."""


@dataclasses.dataclass(frozen=True)
class State:
    """All that a method keeps between calls: a value made of tensors, every one with the batch rows first.

    Subclasses add fields that are tensors, tuples of tensors, or further such dataclasses; whatever else these hold
    (`PLAIN`) says how to understand the tensors, and is the same in every state of a method. Lists, dicts and other
    objects are refused, because their tensors would be neither counted nor copied. No state sees a change of another,
    so forks share memory until they are read.

    Attributes:
        length_B: tokens read so far, int64, on the host as all such counts (`is_count`).
        pending_BC: the hidden state that predicts the next token; projected onto the vocabulary when needed.
    """

    length_B: Tensor
    pending_BC: Tensor

    owner: ClassVar[Owner | None] = None
    """The method that made the state, where that is known; it is no part of the value."""

    def own(self, method: Owner | None) -> Self:
        """The same state, marked as made by a method."""
        object.__setattr__(self, "owner", method)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """The fields for copies and pickles, without the method, which holds a whole model."""
        return {name: value for name, value in vars(self).items() if name != "owner"}

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under the dotted name of its field."""
        by_name: dict[str, Tensor] = {}
        _walk(self, "", lambda name, tensor: by_name.setdefault(name, tensor))
        return by_name

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The state with every tensor replaced by `change(tensor)`."""
        changed: Self = _walk(self, "", lambda _, tensor: change(tensor))
        return changed.own(self.owner)

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return self.length_B.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as stored."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    @property
    def floats(self) -> int:
        """Floating-point numbers held, whatever their width."""
        return sum(tensor.numel() for tensor in self.tensors().values() if tensor.is_floating_point())

    @property
    def cached(self) -> int:
        """Keys to which a question attends in every layer, over all rows; a summary of many tokens counts as one."""
        return 0

    def fork(self, n: int) -> Self:
        """`n` copies of every row, next to each other: row b becomes rows b*n .. b*n+n-1."""
        return self.map(lambda tensor: tensor.repeat_interleave(n, dim=0))

    def index(self, rows: Sequence[int]) -> Self:
        """The rows of these numbers, in this order."""
        return self.map(lambda tensor: tensor[torch.as_tensor(rows, device=tensor.device)])

    def row(self, number: int) -> Self:
        """One row as views, without slots that only other rows use: what a state of this text alone holds."""
        return self.map(lambda tensor: tensor[number : number + 1]).unpadded()

    def unpadded(self) -> Self:
        """The state without slots that no row uses, as views."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        cut: Any = {name: part.unpadded() for name, part in parts.items() if isinstance(part, Padded)}
        return dataclasses.replace(self, **cut).own(self.owner)

    def detach(self) -> Self:
        """The same numbers without their graph."""
        return self.map(Tensor.detach)

    def where(self, rows_B: Tensor, other: Self) -> Self:
        """The rows of this state where `rows_B` (bool) is true, and those of another of the method elsewhere.

        What one of them has fewer slots of is filled up with zeros, which its counts do not include.
        """
        others = other.tensors()
        chosen: Self = _walk(self, "", lambda name, tensor: _rows_of(rows_B, tensor, others[name]))
        return chosen.own(self.owner)

    @property
    def device(self) -> torch.device:
        """Where its numbers are; counts of rows are on the host."""
        return self.pending_BC.device

    def to(self, device: torch.device | str) -> Self:
        """The state on another device; counts of rows stay on the host."""
        return self.map(lambda tensor: tensor if is_count(tensor) else tensor.to(device))

    def save(self, path: Path | str) -> None:
        """Write all tensors to one safetensors file, with what the state belongs to.

        Raises:
            UserError: when it cannot be written.
        """
        tensors.write(path, self.tensors(), None if self.owner is None else origin(self.owner))

    def load(self, path: Path | str, belongs_to: Mapping[str, str] | None = None) -> Self:
        """A state of this one's structure with the tensors of a file that `save` wrote, on this one's device.

        Args:
            path: of the file.
            belongs_to: origin that the state must have; None leaves it unchecked.

        Raises:
            UserError: when the file is broken, or holds the state of another method, backbone or settings.
        """
        stored = load(path, self.tensors(), belongs_to)
        loaded: Self = _walk(self, "", lambda name, _: stored[name])
        return loaded.own(self.owner)


def is_count(tensor: Tensor) -> bool:
    """Whether a tensor of a state has one whole number for every row: how far it has read, how many slots it uses.

    What a call does next depends on these numbers, so that they are on the host: no call waits for a device.
    """
    return tensor.dim() == 1 and tensor.dtype == torch.int64


S = TypeVar("S", bound=State)


def joined(parts: Sequence[S]) -> S:
    """States of one method as rows of one state; what one of them has fewer slots of is filled up with zeros."""
    tensors_of = [part.tensors() for part in parts]
    together: S = _walk(parts[0], "", lambda name, _: _stacked([own[name] for own in tensors_of]))
    return together.own(parts[0].owner)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    shape = [max(sizes) for sizes in zip(*(row.shape[1:] for row in rows), strict=True)]
    return torch.cat([_filled_up(row, [len(row), *shape]) for row in rows])


def _rows_of(rows_B: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Rows of the first tensor where the condition holds, of the second elsewhere, in the larger of the two shapes."""
    shape = [max(sizes) for sizes in zip(first.shape, second.shape, strict=True)]
    first, second = (_filled_up(tensor, shape) for tensor in (first, second))
    # A state may keep some of its tensors on another device.
    return torch.where(rows_B.to(first.device).view(-1, *[1] * (first.dim() - 1)), first, second)


def _filled_up(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    missing = [size - own for size, own in zip(shape, tensor.shape, strict=True)]
    return (
        functional.pad(tensor, [width for gap in reversed(missing) for width in (0, gap)]) if any(missing) else tensor
    )


def _walk(value: Any, name: str, visit: Callable[[str, Tensor], Any], whole: str = "") -> Any:
    """Rebuild a nest of dataclasses and tuples, of type `whole`, with `visit(name, tensor)` in place of every tensor.

    Raises:
        UserError: for a part in which tensors would stay unseen.
    """
    if isinstance(value, Tensor):
        return visit(name, value)
    prefix, whole = f"{name}." if name else "", whole or type(value).__qualname__
    if isinstance(value, tuple):
        return tuple(_walk(item, f"{prefix}{i}", visit, whole) for i, item in enumerate(value))
    if value is None or isinstance(value, PLAIN):
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise UserError(
            f"Field {name} of {whole} is of type {type(value).__qualname__}, whose content would not be counted: keep "
            "tensors in tuples or dataclasses."
        )
    parts = [field.name for field in dataclasses.fields(value) if field.init]
    changed = {part: _walk(getattr(value, part), prefix + part, visit, whole) for part in parts}
    return dataclasses.replace(value, **changed)


def origin(method: Owner) -> dict[str, str]:
    """The origin of a state: the method, its settings, and digests of its and the backbone's weights.

    Files that the settings name count by their content, not by where they are; the weights have a digest of their own.

    Raises:
        UserError: when such a file cannot be read.
    """
    named = {name: value for name, value in method.config.as_dict().items() if name != "weights"}
    settings = {
        name: sorted(files.digests_of(value).values()) if isinstance(value, Path) else value
        for name, value in named.items()
    }
    return {
        "kind": "contextlab state",
        "method": type(method).__qualname__,
        "settings": json.dumps(settings, sort_keys=True, default=str),
        "backbone": method.backbone.digest,
        "weights": str(method.weights_digest),
        "cache": "keys after rotation",
    }


def load(path: Path | str, like: Mapping[str, Tensor], belongs_to: Mapping[str, str] | None) -> dict[str, Tensor]:
    """The tensors of a file, on the device of those they must be like.

    Args:
        path: what `State.save` wrote.
        like: the tensors of an empty state; where one has no slots yet, any number of them fits.
        belongs_to: origin that the state must have; None leaves it unchecked.

    Raises:
        UserError: when the file is broken, or holds the state of another method, backbone or settings.
    """
    stored, about = tensors.read(path)
    for part, value in (belongs_to or {}).items():
        if about.get(part) != value:
            what = "no state" if part == "kind" else f"the state of another method or backbone (its {part} differ)"
            raise UserError(f"{path} holds {what}: load what State.save wrote with the method that it belongs to.")
    if stored.keys() != like.keys():
        raise UserError(f"{path} holds the state of another method or backbone: load it with the one that saved it.")
    try:
        rows = len(stored["length_B"]) if stored["length_B"].dim() else 0
        for name, tensor in stored.items():
            _fits(name, tensor, like[name], rows)
    except Misfit as misfit:
        raise unfit(path, misfit) from None
    return {name: tensor.to(like[name].device) for name, tensor in stored.items()}


def unfit(path: Path | str, misfit: Misfit) -> UserError:
    """The sentence for a file that holds no state of the method."""
    return UserError(f"{path} does not fit this method ({misfit}): load an intact file that State.save wrote.")


def finite(state: Mapping[str, Tensor]) -> None:
    """Refuse numbers that are not finite.

    Raises:
        Misfit: naming the tensor.
    """
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise Misfit(f"{name} is not finite")


def within(name: str, values: Tensor, least: Tensor | int, most: Tensor | int) -> None:
    """Refuse values outside of a range, bounds included.

    Raises:
        Misfit: naming the tensor.
    """
    if bool(((values < least) | (values > most)).any()):
        raise Misfit(f"{name} is out of range")


def same_slots(name: str, parts: Iterable[Tensor], used_B: Tensor, most: int = MOST) -> None:
    """Refuse caches `x_BKSD` that differ in their slots, or have fewer than are in use.

    Raises:
        Misfit: naming the cache.
    """
    slots = {part.shape[2] for part in parts}
    if len(slots) != 1:
        raise Misfit(f"the layers of {name} differ in length")
    within(f"slots of {name} in use", used_B, 0, min(slots.pop(), most))


def _fits(name: str, tensor: Tensor, like: Tensor, rows: int) -> None:
    if tensor.dtype != like.dtype:
        raise Misfit(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}")
    shape = [rows, *like.shape[1:]]
    fits = tensor.dim() == like.dim() and all(
        size == want or (dim and not want) for dim, (size, want) in enumerate(zip(tensor.shape, shape, strict=True))
    )
    if not fits or not rows:
        raise Misfit(f"{name} has the shape {tuple(tensor.shape)}")
