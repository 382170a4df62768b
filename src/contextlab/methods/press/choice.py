"""Which presses of kvpress can be used here, and why the others cannot.

Facts about single presses follow the sources of kvpress 0.5.5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from contextlab.errors import UserError, short, unknown


@dataclasses.dataclass(frozen=True)
class PressNeeds:
    """What a press takes beside keys and values.

    Attributes:
        inputs: of how many last tokens it reads what enters attention; of all tokens in view when None.
        beyond: tokens of which more must be in view, or it has nothing to choose from.
        queries: how many queries it multiplies with all keys; None where it computes other products.
    """

    inputs: int | None = 0
    beyond: int = 0
    queries: int | None = 0


SINGLE: dict[str, Callable[[Any], PressNeeds]] = {
    "CUR": lambda _: PressNeeds(),
    "KeyDiff": lambda _: PressNeeds(),
    "Knorm": lambda _: PressNeeds(),
    "LagKV": lambda _: PressNeeds(),
    "Random": lambda _: PressNeeds(),
    "StreamingLLM": lambda press: PressNeeds(beyond=press.n_sink),
    "SnapKV": lambda press: PressNeeds(press.window_size + 1, press.window_size, press.window_size),
    "TOVA": lambda _: PressNeeds(1, 1, 1),
    "Cap": lambda press: PressNeeds(None, press.n_sink, None),
    "ExpectedAttention": lambda press: PressNeeds(None, press.n_sink, None),
    "NonCausalAttn": lambda _: PressNeeds(None, 0, None),
}
"""Presses that choose by themselves; SnapKV refuses to look at no more inputs than its window has."""
AROUND: dict[str, Callable[[PressNeeds, float], PressNeeds]] = {
    "Block": lambda needs, ratio: PressNeeds(
        None, math.ceil(needs.beyond / (1 - ratio)), 0 if needs.queries == 0 else None
    ),
    "CriticalKV": lambda needs, _: dataclasses.replace(needs, queries=None),
    "EntropyGatedChunkKV": lambda needs, _: needs,
}
"""Presses that choose by the scores of another, by what that one needs and the share that is dropped."""

PER_HEAD = "gives heads unequal budgets by masking: nothing is removed, so that neither memory nor time is saved"
PER_LAYER = "keeps unequally many tokens in the layers"
FILES = "loads learned or measured files from the hub"
PASSES = "reads the text again in passes of its own"
DECODING = "drops tokens while an answer is written, token by token, not when a context ends"
CHANGES = "changes keys or values instead of leaving some out"
GENERATOR = "draws from torch's global generator, so that what stays would not follow from the text"

REFUSED: dict[str, str] = {
    "AdaKV": PER_HEAD,
    "CriticalAdaKV": PER_HEAD,
    "DuoAttention": PER_HEAD,
    "LUKV": PER_HEAD,
    "DMS": PER_HEAD,
    "ChunkKV": f"{PER_LAYER}, where the last chunk is shorter",
    "PerLayerCompression": PER_LAYER,
    "PyramidKV": PER_LAYER,
    "SimLayerKV": PER_LAYER,
    "ExpectedAttentionStats": FILES,
    "FastKVzip": FILES,
    "KVzap": FILES,
    "QFilter": FILES,
    "RestoreKV": FILES,
    "KVCompose": PASSES,
    "KVgrad": PASSES,
    "KVzip": PASSES,
    "CAM": DECODING,
    "CompressionRatioDecoding": DECODING,
    "Decoding": DECODING,
    "PrefillDecoding": DECODING,
    "Merging": CHANGES,
    "ThinK": CHANGES,
    "Compactor": GENERATOR,
    "LeverageScore": GENERATOR,
    "Chunk": "needs more tokens in the last chunk than there may be",
    "Composed": "is a list of presses",
    "Finch": "needs a token between the context and its question",
    "KeyRerotation": "moves kept keys up to positions without gaps, which when=window does with every press",
    "ObservedAttention": "needs the weights of all attention, which are never in memory: h2o sums them as it reads",
}
"""Why a press of kvpress cannot be used, by its name."""


def parts(name: str) -> tuple[str | None, str]:
    """The press around another, where there is one, and the press that scores.

    Raises:
        UserError: when there is no such press, or it cannot be used.
    """
    outer, bracket, rest = name.partition("(")
    inner = rest.removesuffix(")") if bracket else outer
    for part in (outer, inner):
        if part in REFUSED:
            raise UserError(f"{part} {REFUSED[part]}: choose one of {', '.join(SINGLE)}.")
    if bracket and (outer not in AROUND or not rest.endswith(")")):
        raise unknown("press around another", outer, AROUND)
    if not bracket and outer in AROUND:
        raise UserError(f"{outer} chooses by the scores of another press: name it as in name={outer}(KeyDiff).")
    if inner not in SINGLE:
        raise unknown("press", short(inner), SINGLE)
    return (outer if bracket else None), inner
