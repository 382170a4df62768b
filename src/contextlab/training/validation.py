"""Validation on held-back documents: loss, what the own history gives above another's, and the share of full attention.

Every text is a history and a segment that is scored after it. After its own history the loss is that of the method;
after another document's it is what the method has learned of the domain, and the harm of that history beside none; the
difference of the two is what it got from this document. The windows of equal length that the share is measured from
start cold at the scored segment. Reconstruction scores the end of the history once more, from the memory alone, and
full attention has it in view.

Of documents with answers the answers alone count, as in training, and a text ends with one of them.

The texts of one document depend on each other, so that standard errors count documents.

Legend: B texts, R of these that are read side by side, H tokens of the histories, S tokens that are scored.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.benchmarks.metrics.intervals import mean_error
from contextlab.errors import UserError
from contextlab.method import AnyMethod, State
from contextlab.methods.full import Full
from contextlab.methods.window import Window, WindowConfig
from contextlab.training.corpus import Corpus, DocumentSpan
from contextlab.training.options import LOCAL, TrainConfig

SEGMENTS = 2
"""Segments of the histories."""
DOCUMENTS = 12
"""Most documents that are read where the settings do not say how many."""
SHARE_OF_TRAINING, READS_PER_TOKEN = 0.05, 3
"""Of a run's cost what validations may take; training on a token costs about as much as reading it three times."""


@dataclasses.dataclass(frozen=True)
class Validation:
    """Losses of a method on held-back texts, in nats per token.

    Attributes:
        loss: after the own history.
        wrong: after another document's history.
        content_gain: wrong - loss.
        content_error: standard error of the content gain over the documents; None for one document.
        share: (window - loss) / (window - full); None where full attention gains nothing.
        window: loss of the backbone's window of equal length.
        full: loss of full attention.
        seconds: it took.
        documents: different documents that were read; None in what an earlier version has written.
        none: loss after no history, of the same weights: wrong - none is the harm of another document's history; None
            in what an earlier version has written.
    """

    loss: float
    wrong: float
    content_gain: float
    content_error: float | None
    share: float | None
    window: float
    full: float
    seconds: float
    documents: int | None = None
    none: float | None = None

    def line(self) -> dict[str, Any]:
        """As a line of the curve."""
        return dataclasses.asdict(self)


class Stopped(Exception):
    """A validation has ended without a result, as the user asked."""


class Validator:
    """The same few texts for every validation of a run, of which as many are read side by side as a step reads rows.

    Attributes:
        references: losses of the window and of full attention; None until they are measured, and may be set to what an
            earlier run has measured.

    Args:
        method: that is trained.
        corpus: with held-back documents.
        settings: of the run.
        segment: tokens of a segment.

    Raises:
        UserError: when the held-back documents are too short to be cut in two, fewer than the settings ask for, or a
            text of a document with answers scores none of them.
    """

    def __init__(self, method: AnyMethod, corpus: Corpus, settings: TrainConfig, segment: int) -> None:
        self.method = method
        backbone = method.backbone
        lengths = {n: corpus.documents[n].tokens for n in corpus.held_back}
        # One document is two texts: each is the other memory of the other.
        texts = settings.texts if len(lengths) > 1 else max(settings.texts, 2)
        longest = sorted(lengths.values())[-2] if len(lengths) > 1 else max(lengths.values()) // texts
        history, scored = _lengths(longest, backbone.max_positions, settings, segment, corpus.name)
        long = [n for n, length in lengths.items() if length >= history + scored]
        if settings.documents is not None and settings.documents > len(long):
            fewer = settings.protocol != "fair" and len(long) > 1
            advice = f"use documents={len(long)}, or leave it out" if fewer else "give more texts, or --validation DIR"
            raise UserError(
                f"The corpus {corpus.name} holds back {len(long)} documents of at least {history + scored} tokens, and "
                f"documents={settings.documents} asks for more: {advice}."
            )
        long = long[: settings.documents or DOCUMENTS]
        # Of texts that stand one after another no two are of one document: each is the other memory of the one before.
        places = [(n, number) for number in range(texts) for n in long]
        read = history + scored
        begins = [
            _to_an_answer(corpus.documents[n], (lengths[n] - read) * (number + 1) // (texts + 1), read)
            if len(lengths) > 1
            # Texts of a single document, each other's other memory, do not overlap.
            else number * longest + (longest - read) // 2
            for n, number in places
        ]
        pieces = [corpus.piece(n, begin, begin + read) for (n, _), begin in zip(places, begins, strict=True)]
        texts_BT = torch.stack(pieces).to(backbone.device)
        self.documents, self.alone = [n for n, _ in places], settings.validation == "reconstruction"
        self._rows = settings.rows
        self.history_BH, self.scored_BS = texts_BT[:, :history], texts_BT[:, history:]
        if self.alone:
            self.scored_BS = self.history_BH[:, -scored:]
        self._counted_BS = self._counted([corpus.documents[n] for n in self.documents], [n + history for n in begins])
        self._local = min(method.capabilities.segment or min(segment, LOCAL), backbone.max_positions)
        self.references: tuple[float, float] | None = None

    @property
    def tokens(self) -> int:
        """Tokens that one validation reads."""
        return self.history_BH.numel() + 3 * self.scored_BS.numel()

    def every(self, settings: TrainConfig) -> int:
        """Tokens between two validations."""
        least = math.ceil(self.tokens / (SHARE_OF_TRAINING * READS_PER_TOKEN))
        return settings.evaluate_every or max(least, settings.tokens // 20)

    def __call__(self, stops: Callable[[], bool] = lambda: False) -> Validation:
        """Read and score all texts; draws nothing.

        Args:
            stops: asked between texts.

        Raises:
            Stopped: where it says so.
        """
        if self.references is None:
            backbone = self.method.backbone
            window = Window(backbone, WindowConfig(N=self._local))
            self.references = self._loss(window, stops, cold=True), self._loss(Full(backbone), stops)
        window_loss, full_loss = self.references
        started = time.perf_counter()
        own_B = torch.empty(len(self.documents), dtype=torch.float64)
        wrong_B = torch.empty_like(own_B)
        for text_R in self._parts(stops):
            state = self._after_own(self.method, text_R)
            state = self.method.memory_alone(state) if self.alone else state
            before_R = (text_R - 1) % len(own_B)  # texts whose other history these are
            own_B[text_R] = self._scored(self.method, state, text_R)
            wrong_B[before_R] = self._scored(self.method, state, before_R)
        none = self._loss(self.method, stops, cold=True)
        gains = (own_B - wrong_B).tolist()
        loss = -float(own_B.mean())
        return Validation(
            loss=loss,
            wrong=-float(wrong_B.mean()),
            content_gain=statistics.fmean(gains),
            content_error=mean_error(gains, [str(document) for document in self.documents]),
            share=(window_loss - loss) / (window_loss - full_loss) if window_loss > full_loss else None,
            window=window_loss,
            full=full_loss,
            seconds=time.perf_counter() - started,
            documents=len(set(self.documents)),
            none=none,
        )

    def _counted(self, documents: Sequence[DocumentSpan], begins: Sequence[int]) -> Tensor:
        """Whether what is scored counts, from these tokens of documents on; in reconstruction all of it does."""
        scored = self.scored_BS.shape[1]
        counted_BS = torch.ones(self.scored_BS.shape, dtype=torch.bool)
        if not self.alone:
            marks = [entry.marks(begin, begin + scored) for entry, begin in zip(documents, begins, strict=True)]
            counted_BS = torch.tensor(marks, dtype=torch.bool)
        # The first token is predicted from the end of the history, whatever the memory.
        if scored > 1:
            counted_BS[:, 0] = False
        for entry, counted_S in zip(documents, counted_BS, strict=True):
            if not counted_S.any():
                raise UserError(
                    f"Validation finds no answer among the tokens that it scores of {entry.name}: set scored to more."
                )
        return counted_BS.to(self.scored_BS.device)

    def _parts(self, stops: Callable[[], bool]) -> Iterator[Tensor]:
        """Numbers of the texts that are read side by side, as `text_R`, until the user asks to stop."""
        for text_R in torch.arange(len(self.documents)).split(self._rows):
            if stops():
                raise Stopped
            yield text_R

    def _loss(self, method: AnyMethod, stops: Callable[[], bool], *, cold: bool = False) -> float:
        """Nats per token of all texts, from an empty state or after their own histories."""
        logprobs = [
            self._scored(method, method.start(len(text_R)) if cold else self._after_own(method, text_R), text_R)
            for text_R in self._parts(stops)
        ]
        return -float(torch.cat(logprobs).mean())

    @torch.no_grad()
    def _after_own(self, method: AnyMethod, text_R: Tensor) -> State:
        state: State = method.read(method.start(len(text_R)), self.history_BH[text_R], logprobs=False)[0]
        return state

    @torch.no_grad()
    def _scored(self, method: AnyMethod, state: State, text_R: Tensor) -> Tensor:
        """Mean log-probability of what counts of each text after a state, float64, on the host."""
        _, logprobs_RS = method.read(state, self.scored_BS[text_R])
        assert logprobs_RS is not None
        counted_RS = self._counted_BS[text_R]
        return (logprobs_RS.double().where(counted_RS, 0).sum(1) / counted_RS.sum(1)).cpu()


def _to_an_answer(document: DocumentSpan, begin: int, length: int) -> int:
    """Where a text of so many tokens begins so that it ends with an answer; as it is where the document has none."""
    return next((end - length for _, end in document.answers if end >= begin + length), begin)


def _lengths(longest: int, positions: int, settings: TrainConfig, segment: int, corpus: str) -> tuple[int, int]:
    """Tokens of a history and of what is scored after it, which no document or model cuts short of what was asked.

    Args:
        longest: tokens of the second longest document, which has another beside it.
        positions: of the model: full attention reaches no farther.
        settings: of the run.
        segment: tokens of a segment.
        corpus: its name.

    Raises:
        UserError: when what was asked does not fit, or nothing does.
    """
    room = min(longest, positions)
    if room < 2:
        raise UserError(f"The documents held back of {corpus} have one token: give longer texts.")
    history, scored = settings.history, settings.scored
    if scored is None:
        scored = min(segment, max(room - history, 1) if history else max(room // (SEGMENTS + 1), 1))
    if history is None:
        history = min(SEGMENTS * segment, max(room - scored, 1))
    if history + scored > room:
        why = f"{positions} positions of the model" if positions < longest else f"{longest} tokens of held-back texts"
        raise UserError(
            f"A history of {history} tokens and {scored} to score do not fit the {why}: set history and scored so that "
            f"they are {room} together, or less."
        )
    return history, scored
