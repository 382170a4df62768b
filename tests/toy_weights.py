"""Trained weights of a small method, made by hand."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from contextlab import backbone as backbones
from contextlab import cards, registry
from contextlab.method import AnyMethod

BACKBONE = backbones.load("tiny-gpt2", device="cpu")


def method(name: str = "longmem", backbone: Any = BACKBONE, **settings: Any) -> AnyMethod:
    kind = registry.method_class(name)
    return kind(backbone, kind.Config.parse(settings))


def write(folder: Path, learner: AnyMethod, tokens: int = 5, **changed: Any) -> Path:
    """Trained weights with their card, as a run leaves them."""
    folder.mkdir(parents=True)
    path = folder / cards.FILE
    learner.save_weights(path)
    card = {
        "schema": 1,
        "method": "longmem",
        "kind": type(learner).__name__,
        "label": "longmem",
        "settings": {key: value for key, value in learner.config.as_dict().items() if key != "weights"},
        "backbone": {"name": "tiny-gpt2", "digest": learner.backbone.digest},
        "weights": {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
            "digest": learner.weights_digest,
        },
        "cost": {"flops": 7, "peak_bytes": None, "seconds": 2.5, "tokens": tokens},
        **changed,
    }
    (folder / cards.CARD).write_text(json.dumps(card))
    return path


def moved(learner: AnyMethod, by: float) -> AnyMethod:
    assert learner.learned is not None
    with torch.no_grad():
        for parameter in learner.learned.parameters():
            parameter.add_(by)
    return learner


def smaller(folder: Path, before: Path, difference: float = 2e-4) -> Path:
    """Trained weights in 8 bits, made from those in a file, with a card that says so."""
    settings = json.loads((before.parent / cards.CARD).read_text())["settings"]
    learner = method(**{**settings, "weights": str(before)})
    digest = learner.weights_digest
    small = before.with_name("small.safetensors")
    learner.save_weights(small, dtype=torch.int8)
    learner.load_weights(small)
    small.unlink()
    assert learner.weights_digest != digest
    sha256, size = hashlib.sha256(before.read_bytes()).hexdigest(), before.stat().st_size
    file = {"sha256": sha256, "digest": digest, "bytes": size, "dtype": "float16", "difference": difference}
    path = write(folder, learner, earlier=[file])
    card = json.loads((folder / cards.CARD).read_text())
    (folder / cards.CARD).write_text(json.dumps({**card, "weights": {**card["weights"], "dtype": "int8"}}))
    return path
