"""The teacher objective: predict what full attention predicts over the same text.

Full attention is computed once per block of the model's positions, as the method `full` reads a document; the most
probable tokens of every position are kept on the disk.

Legend: B rows, T tokens of a segment, N positions of many segments, C width of the model, k tokens kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab import files, tensors
from contextlab.accounting.products import ProductCounter
from contextlab.backbone.distillation import best, cross_entropies
from contextlab.config import Config
from contextlab.errors import UserError
from contextlab.method import AnyMethod, Prediction, State
from contextlab.methods.full import Full
from contextlab.paths import cache_dir
from contextlab.training.corpus import Corpus
from contextlab.training.objectives import Objective, ObjectiveConfig, Outcome
from contextlab.training.streams import Batch

KIND = "contextlab teacher"
NEAR = 16
"""Blocks that are kept in memory."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TeacherConfig(ObjectiveConfig):
    """Settings of the teacher objective.

    Attributes:
        k: most probable tokens of every position that are kept.
    """

    k: pydantic.PositiveInt = 64


class Teacher(Objective):
    """Cross-entropy to full attention's most probable tokens, all others together being one more outcome."""

    Config: ClassVar[type[Config]] = TeacherConfig

    def __init__(self, method: AnyMethod, corpus: Corpus, config: Any) -> None:
        super().__init__(method, corpus, config)
        backbone = method.backbone
        self.full, self.block = Full(backbone), backbone.max_positions
        self.k = min(config.k, backbone.vocab_size)
        # Parts of documents have numbers of their own.
        spans = str([(entry.start, entry.tokens) for entry in corpus.documents])
        parts = ("flops", corpus.key, spans, backbone.digest, str(self.k), str(self.block), str(backbone.dtype))
        self.folder = cache_dir() / "teachers" / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
        self._near: OrderedDict[tuple[int, int], dict[str, Tensor]] = OrderedDict()

    def prepare(self, batch: Batch) -> int:
        """Compute the blocks of the batch that nobody has computed yet.

        A block that is kept costs what it cost when it was computed: the cost of a training does not depend on those
        before it.

        Returns:
            FLOPs of the blocks, each in the part of it that the batch has.
        """
        return sum(
            int(stored["flops"]) * (places.stop - places.start) // len(stored["ids"])
            for stored, places in self._blocks(batch)
        )

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """The cross-entropy to the teacher, of the tokens that count."""
        state, predicted = self.method.learn(state, batch.tokens_BT, batch.lengths_B)
        hidden_NC = _hidden(predicted, self.method)[batch.real_BT]
        ids_Nk, logprobs_Nk = self._targets(batch)
        loss_N = cross_entropies(self.method.backbone, hidden_NC, ids_Nk, logprobs_Nk)
        loss = (loss_N * batch.counted_BT[batch.real_BT]).sum() * batch.scale
        return Outcome(state, loss, -(predicted.logprobs_BT.detach() * batch.counted_BT).sum() * batch.scale)

    def _targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """`ids_Nk` and `logprobs_Nk` of the batch's real tokens, row after row."""
        device, blocks = self.method.backbone.device, self._blocks(batch)
        ids_Nk, logprobs_Nk = (
            torch.cat([stored[name][places] for stored, places in blocks]) for name in ("ids", "logprobs")
        )
        return ids_Nk.to(device, torch.int64), logprobs_Nk.to(device, torch.float32)

    def _blocks(self, batch: Batch) -> list[tuple[dict[str, Tensor], slice]]:
        """The stored blocks of a batch, row after row, each with the places in it that the batch has."""
        blocks = []
        for document, begin, length in zip(batch.documents, batch.begins, batch.lengths_B.tolist(), strict=True):
            for number in range(begin // self.block, (begin + length - 1) // self.block + 1):
                start = number * self.block
                places = slice(max(begin - start, 0), min(begin + length - start, self.block))
                blocks.append((self._stored(document, number), places))
        return blocks

    def _stored(self, document: int, number: int) -> dict[str, Tensor]:
        """The stored teacher of a block: from memory, else from the disk, else computed."""
        key = document, number
        if key not in self._near:
            stored = block(self._path(document, number))
            if stored is None:
                for missing in range(self._first_missing(document, number), number + 1):
                    self._compute(document, missing)
                stored, _ = tensors.read(self._path(document, number))
            self._near[key] = stored
            while len(self._near) > NEAR:
                self._near.popitem(last=False)
        return self._near[key]

    def _path(self, document: int, number: int) -> Path:
        return self.folder / f"{document:06d}-{number:06d}.safetensors"

    def _first_missing(self, document: int, number: int) -> int:
        """The first of the blocks up to a missing one that are all missing."""
        while number and block(self._path(document, number - 1)) is None:
            number -= 1
        return number

    @torch.no_grad()
    def _compute(self, document: int, number: int) -> None:
        """Compute a block after the one before it, which is stored."""
        path = self._path(document, number)
        text_T = self.corpus.piece(document, number * self.block, (number + 1) * self.block)
        tokens_BT = text_T[None].to(self.method.backbone.device)
        state = self.full.start()
        if number:
            # A block's first token is predicted from the end of the block before it.
            before_C = self._stored(document, number - 1)["pending"].to(state.pending_BC)
            state = dataclasses.replace(state, pending_BC=before_C[None])
        with ProductCounter() as products:
            state, predicted = self.full.predict(state, tokens_BT)
            ids_Nk, logprobs_Nk = best(self.method.backbone, _hidden(predicted, self.full)[0], self.k)
        with files.writing(path.parent, "set CONTEXTLAB_CACHE"):
            path.parent.mkdir(parents=True, exist_ok=True)
        stored = {
            "ids": ids_Nk.int().cpu(),
            "logprobs": logprobs_Nk.half().cpu(),
            "pending": state.pending_BC[0].cpu(),
            "flops": torch.tensor(products.flops),
        }
        tensors.write(path, stored, _about(path))


def _about(path: Path) -> dict[str, str]:
    """The description in the file of a block: its texts, its teacher and its number."""
    return {"kind": KIND, "block": f"{path.parent.name}/{path.stem}"}


def block(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a block's file; None where there is none, or it is not whole: it can be computed again."""
    try:
        stored, about = tensors.read(path, sealed=(KIND,))
    except UserError:
        return None
    return stored if about == _about(path) else None


def _hidden(predicted: Prediction, method: AnyMethod) -> Tensor:
    """`hidden_BTC` of a prediction."""
    if predicted.hidden_BTC is None:
        raise UserError(
            f"{type(method).__name__} has a distribution that is not its head's alone, which no teacher can be "
            "compared with: use --objective lm."
        )
    return predicted.hidden_BTC
