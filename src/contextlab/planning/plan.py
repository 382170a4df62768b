"""The plan: for every method and length what it needs on a GPU, what it costs there, and whether it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from contextlab.accounting.memory import storage_bytes
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import AnyMethod, Lengths
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.naming import NamedMethod
from contextlab.planning.arithmetic import Arithmetic
from contextlab.planning.dry_run import weights
from contextlab.planning.gpus import GPU
from contextlab.planning.needs import Needs
from contextlab.planning.profile import Profile
from contextlab.planning.roofline import Bound
from contextlab.planning.row import PlannedRow
from contextlab.planning.shaped import ShapedMethod, changed

REMEDIES: tuple[dict[str, Any], ...] = ({"storage_dtype": "int8"}, {"storage_dtype": "int4"}, {"stored_in": "host"})
"""Settings that make a method smaller, in the order in which they are tried.

`cache` is none of them: every pass brings the whole view back into the model's own type, so that the peak rises.
"""


class Planner:
    """Plans methods on one backbone and one GPU.

    Args:
        backbone: of `shapes`.
        gpu: the GPU.
        rows: texts side by side.
        began: is told of every method, with its settings, before its dry runs.
    """

    def __init__(self, backbone: Backbone, gpu: GPU, rows: int, began: Callable[[str], None]) -> None:
        self.backbone, self.gpu, self.rows, self.began = backbone, gpu, rows, began
        self._model_bytes = storage_bytes([*backbone.model.parameters(), *backbone.model.buffers()])

    def rows_of(self, named: NamedMethod, lengths: Sequence[int], *, refuse: bool = True) -> list[PlannedRow]:
        """A row for every length.

        Args:
            named: the method, as it is meant on the backbone.
            lengths: tokens of a text.
            refuse: whether a method that does not fit the backbone is an error; else its rows say why.

        Raises:
            UserError: for settings that do not fit the backbone.
        """
        self.began(named.label)
        try:
            shaped = ShapedMethod.of(named, self.backbone)
            profile, reason = self._profile(shaped.plain)
        except (NotImplementedError, UserError) as error:
            if refuse and isinstance(error, UserError):
                raise
            why = str(error) if isinstance(error, UserError) else "it computes with the weights when it is made"
            note = f"{named.label}: nothing is known, because {why}"
            return [PlannedRow(named.label, length, notes=(note,)) for length in lengths]
        notes = tuple(f"{named.label}: {note}" for note in _notes(shaped, profile, reason))
        return [self._row(shaped, profile, PlannedRow(named.label, length, notes=notes)) for length in lengths]

    def _row(self, shaped: ShapedMethod, profile: Profile | None, row: PlannedRow) -> PlannedRow:
        whole = storage_bytes(weights(shaped.method))
        row = dataclasses.replace(row, weights_bytes=whole, added_bytes=whole - self._model_bytes)
        text = self._arithmetic(shaped.method, row.length)
        if text is None:
            return dataclasses.replace(row, notes=(*row.notes, f"{row.method}: it has no formula with these settings"))
        row = dataclasses.replace(
            row, state_bytes=text.state, read_flops=text.read_flops, decoded_flops=text.decoded_flops
        )
        most = shaped.method.capabilities.max_context
        if most is not None and row.length > most:
            again = f"{row.method}: it starts again after {most:,} tokens, as far as the model's positions go"
            row = dataclasses.replace(row, notes=(*row.notes, again))
        needs = None if profile is None else self._needs(shaped, profile, row.length)
        if needs is None:
            too_large = text.state is not None and not shaped.on_host and whole + text.state > self.gpu.usable
            return dataclasses.replace(row, fits=False if too_large else None)
        return self._fitted(self._timed(row, text, needs), shaped, needs)

    def _timed(self, row: PlannedRow, text: Arithmetic, needs: Needs) -> PlannedRow:
        item, read, decoded = (
            self.backbone.dtype.itemsize,
            needs.profile.launches(row.length),
            needs.profile.long.decoded,
        )
        row = dataclasses.replace(
            row, read_launches=read * BLOCK_TOKENS / row.length, decoded_launches=decoded.launches
        )
        if text.read_flops is None or text.decoded_flops is None:
            return row
        bounds = [
            Bound.of(self.gpu, item, flops=flops, moved_bytes=moved, launches=launches)
            for flops, moved, launches in (
                (text.read_flops, needs.read_bytes, read),
                (text.decoded_flops, needs.decoded_bytes, decoded.launches),
            )
        ]
        return dataclasses.replace(
            row,
            read_speed=bounds[0].speed(self.rows * row.length),
            read_limit=bounds[0].limit,
            decoded_speed=bounds[1].speed(self.rows),
            decoded_limit=bounds[1].limit,
        )

    def _fitted(self, row: PlannedRow, shaped: ShapedMethod, needs: Needs) -> PlannedRow:
        row = dataclasses.replace(row, peak_bytes=needs.peak, fits=needs.peak <= self.gpu.usable)
        return row if row.fits else dataclasses.replace(row, advice=self._advice(shaped, needs))

    def _advice(self, shaped: ShapedMethod, needs: Needs) -> str:
        if needs.weights > self.gpu.usable:
            return "weights alone do not fit"
        for settings in REMEDIES:
            if self._helps(settings, shaped, needs):
                return ", ".join(f"{key}={value}" for key, value in settings.items()) + " fits"
        longest = needs.longest(self.gpu.usable)
        return f"{longest:,} tokens fit" if longest else f"not even {BLOCK_TOKENS:,} tokens fit"

    def _helps(self, settings: dict[str, Any], shaped: ShapedMethod, needs: Needs) -> bool:
        """Whether a method fits with other settings, where it has them."""
        config = shaped.named.config.as_dict()
        if not settings.keys() <= config.keys() or settings.items() <= config.items():
            return False
        try:
            other = ShapedMethod.of(changed(shaped.named, settings), self.backbone)
        except UserError:  # a method may know other types only
            return False
        profile: Profile | None = needs.profile
        if not (other.packed or other.on_host):
            self.began(other.named.label)
            profile, _ = self._profile(other.plain)
        smaller = None if profile is None else self._needs(other, profile, needs.text.length)
        return smaller is not None and smaller.peak <= self.gpu.usable

    def _needs(self, shaped: ShapedMethod, profile: Profile, length: int) -> Needs | None:
        text = self._arithmetic(shaped.plain, length)
        packed = self._arithmetic(shaped.method, length) if shaped.packed else None
        if text is None or text.states is None:
            return None
        return Needs(shaped.plain, profile, text, storage_bytes(weights(shaped.method)), packed, shaped.on_host)

    def _arithmetic(self, method: AnyMethod, length: int) -> Arithmetic | None:
        formula = method.formula(Lengths(length))
        return None if formula is None else Arithmetic(formula, length, self.rows)

    def _profile(self, method: AnyMethod) -> tuple[Profile | None, str]:
        """The profile of a method; None where it cannot be run on shapes, and why."""
        if method.capabilities.needs_gradients:
            return None, "it needs gradients"
        try:
            return Profile.of(method, self.rows), ""
        except RuntimeError:
            return None, "what it does depends on numbers"


def _notes(shaped: ShapedMethod, profile: Profile | None, reason: str) -> list[str]:
    """What is to be said of all rows of a method."""
    if profile is None:
        return [f"peak, launches and speed are missing, because {reason}"]
    notes = list[str]()
    if shaped.packed or shaped.on_host:
        where = "copying chunks from the host" if shaped.on_host else "unpacking chunks"
        notes.append(f"{where} is not in launches and speeds, and all chunks of one layer are in the peak")
    return notes
