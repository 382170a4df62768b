"""The card of trained weights: what was trained, on what, for how long, and what it gained."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from contextlab import cards, files, grammar
from contextlab.harness import code
from contextlab.harness.identity import command, commit, hardware
from contextlab.harness.store import digest
from contextlab.method import AnyMethod
from contextlab.training.corpus import Corpus
from contextlab.training.loop import Trainer
from contextlab.training.options import TrainConfig
from contextlab.training.streams import Streams
from contextlab.training.validation import Validation
from contextlab.version import __version__

POINTS = 40
"""Losses in a card, each the mean over an equal part of the steps."""
WORKS = 200
"""The most documents that a card names."""


def of(
    name: str,
    method: AnyMethod,
    corpus: Corpus,
    held_back: Corpus,
    settings: TrainConfig,
    trainer: Trainer,
    validations: Sequence[tuple[int, Validation]],
    lines: Sequence[dict[str, Any]],
    weights: Path,
    parts: Sequence[dict[str, Any]],
    earlier: cards.Card | None = None,
) -> dict[str, Any]:
    """The card of a finished run.

    Args:
        name: of the method, as the user wrote it.
        method: with the weights that were written.
        corpus: that it was trained on.
        held_back: of the documents that validation has read.
        settings: of the run.
        trainer: at its end.
        validations: each with the tokens trained until then, the last one of the weights that were written.
        lines: of the curve.
        weights: their file.
        parts: of the run, each with the tokens at its beginning and its `surroundings`, one at least.
        earlier: card of the weights that the run began with, whose cost is part of the cost.
    """
    backbone = method.backbone
    steps = [line for line in lines if "loss" in line]
    return {
        "schema": 2,
        "method": name,
        "kind": type(method).__name__,
        "label": grammar.spelled(name, None, {k: v for k, v in method.config.changed().items() if k != "weights"}),
        "settings": {k: v for k, v in method.config.as_dict().items() if k != "weights"},
        "free": sorted(method.config.free_at_test),
        "backbone": {"name": backbone.name, "digest": backbone.digest},
        "weights": {
            "sha256": files.sha256(weights),
            "digest": method.weights_digest,
            "bytes": weights.stat().st_size,
            "parameters": method.added_parameters,
            "dtype": settings.storage,
        },
        "corpus": {**_corpus(corpus, settings.licence), "read": _read(corpus, trainer.streams)},
        **({} if held_back is corpus else {"validation_corpus": _corpus(held_back, "")}),
        "training": {**settings.as_dict(), "segment": trainer.streams.segment, "processes": trainer.processes.count},
        "cost": _cost(trainer, earlier),
        "begun_with": earlier
        and {
            "label": earlier.label,
            "sha256": earlier.weights.sha256,
            "cost": earlier.cost.model_dump(),
        },
        "gains": validations[-1][1].line(),
        "curve": [{"tokens": tokens, **validation.line()} for tokens, validation in validations],
        "losses": [{"tokens": part[-1]["tokens"], "loss": _mean(part, "loss")} for part in _parts(steps)],
        "provenance": {
            **{name: value for name, value in parts[-1].items() if name != "tokens"},
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(),
            "parts": list(parts),
        },
    }


def surroundings(trainer: Trainer) -> dict[str, Any]:
    """What a training runs on, beside its settings: versions, a digest of the code, device, threads and products."""
    backbone = trainer.method.backbone
    return {
        "contextlab": __version__,
        "commit": commit(),
        "code": digest(code.modules([type(trainer.method), type(backbone), Trainer])),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": hardware(backbone.device),
        "threads": torch.get_num_threads(),
        "products": "bfloat16" if trainer.narrow else "float32",
    }


def _cost(trainer: Trainer, earlier: cards.Card | None) -> dict[str, Any]:
    """The cost of the weights, that of the weights they began with included."""
    progress = trainer.progress
    flops: int | None = progress.flops
    seconds, tokens = progress.seconds, progress.tokens
    if earlier is not None:
        before = earlier.cost
        # Of a sum one part of which is not known nothing is known.
        flops = None if before.flops is None else progress.flops + before.flops
        seconds, tokens = seconds + before.seconds, tokens + before.tokens
    device = trainer.method.backbone.device
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"flops": flops, "peak_bytes": peak, "seconds": seconds, "tokens": tokens}


def _corpus(corpus: Corpus, licence: str = "") -> dict[str, Any]:
    """The corpus of the training, with its works and licences; the user's licence where the corpus names none."""
    held_back = set(corpus.held_back)
    # A document whose end is held back is there as two parts.
    documents = [(n, entry) for n, entry in enumerate(corpus.documents) if entry.part != "end"]
    works = [{**entry.about, "held_back": n in held_back} for n, entry in documents if entry.about]
    licences = {entry.about.get("licence") or entry.about.get("license") for _, entry in documents}
    return {
        "name": corpus.name,
        "sha256": corpus.key,
        "files": dict(corpus.files),
        "documents": len(documents),
        "held_back": [corpus.documents[n].name for n in corpus.held_back],
        "tokens": sum(entry.tokens for entry in corpus.documents),
        "licences": sorted(filter(None, licences)) or [licence] * bool(licence),
        "works": works[:WORKS],
    }


def _read(corpus: Corpus, streams: Streams) -> list[dict[str, Any]]:
    """The documents that were learned from, and how many tokens of each; of several processes those of the first."""
    return [{"document": corpus.documents[n].name, "tokens": tokens} for n, tokens in sorted(streams.read().items())]


def _parts(steps: Sequence[dict[str, Any]]) -> list[Sequence[dict[str, Any]]]:
    """The steps in at most `POINTS` parts of equal length."""
    length = max(-(-len(steps) // POINTS), 1)
    return [steps[begin : begin + length] for begin in range(0, len(steps), length)]


def _mean(steps: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.fmean(step[name] for step in steps)
