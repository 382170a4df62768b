"""States in files: written with what they belong to, and read only where they fit.

Legend: B rows, S slots of a cache.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from contextlab import tensors
from contextlab.errors import UserError

MOST = 2**36
"""More tokens than anything reads."""


class Misfit(Exception):
    """What a file holds is no state of the method; the text says what is wrong, and `load` in which file."""


def origin(method: Any) -> dict[str, str]:
    """What a state of a method belongs to: the method, its settings, and digests of its and the backbone's weights.

    Files that the settings name count by what was read from them, not by where they are.
    """
    named = method.config.as_dict().items()
    settings = {name: value for name, value in named if name != "weights" and not isinstance(value, Path)}
    return {
        "kind": "contextlab state",
        "method": type(method).__qualname__,
        "settings": json.dumps(settings, sort_keys=True, default=str),
        "backbone": str(getattr(method.backbone, "digest", None)),
        "weights": str(method.weights_digest),
        "cache": "keys after rotation",
    }


def load(path: Path | str, like: Mapping[str, Tensor], wanted: Mapping[str, str] | None) -> dict[str, Tensor]:
    """The tensors of a file, on the device of those they must be like.

    Args:
        path: what `State.save` wrote.
        like: the tensors of an empty state; where one has no slots yet, any number of them fits.
        wanted: the state's `origin`; None does not ask for it.

    Raises:
        UserError: when the file is broken, or holds the state of another method, backbone or settings.
    """
    device = next(iter(like.values())).device
    stored, about = tensors.read(path, device)
    for part, value in (wanted or {}).items():
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
    return stored


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
    wanted = [rows, *like.shape[1:]]
    fits = tensor.dim() == like.dim() and all(
        size == want or (dim and not want) for dim, (size, want) in enumerate(zip(tensor.shape, wanted, strict=True))
    )
    if not fits or not rows:
        raise Misfit(f"{name} has the shape {tuple(tensor.shape)}")
