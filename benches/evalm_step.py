"""One training step of EVALM in the shapes of its paper, counted on tensors without data: FLOPs and bytes.

The model is the paper's (350M, 1.3B; sequences of 8,192 tokens, 64 or 128 of them in a step), with all of its weights
and those of the summaries trained from random ones. Counted operations say how many FLOPs a step takes; what is saved
for the backward pass says how many bytes a sequence takes, nothing being computed again. `run_flops` is the whole
pre-training on 121 G tokens, beside the paper's own number (table 4).

    python benches/evalm_step.py > results/benches/evalm_step.json
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from contextlab.accounting.products import ProductCounter
from contextlab.backbone import PAPER_SHAPES, Backbone
from contextlab.backbone.toys import paper_shape
from contextlab.methods.evalm import EVALM, PAPER

SEQUENCES = {"evalm-350m": 64, "evalm-1.3b": 128}
RUN_TOKENS = 121_000_000_000
PUBLISHED = {"evalm-350m": 2.80e20, "evalm-1.3b": 1.03e21}
NUMBERS = 16
"""Bytes per weight in float32: the weight, its gradient, and Adam's two moments."""


class Saved:
    """Bytes that the backward pass keeps, beside weights."""

    def __init__(self, method: EVALM) -> None:
        held = (*method.backbone.model.parameters(), *method.summaries.parameters())
        self._seen = {_memory(parameter) for parameter in held}
        self.bytes = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        """Count what was not counted yet; see `saved_tensors_hooks`."""
        if _memory(tensor) not in self._seen:
            self._seen.add(_memory(tensor))
            self.bytes += tensor.untyped_storage().nbytes()
        return tensor


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def step(name: str, length: int) -> dict[str, Any]:
    """Forward and backward pass of one sequence."""
    with torch.device("meta"):
        model = paper_shape(name)
    backbone = Backbone(model, None, name)
    method = EVALM(backbone, dataclasses.replace(PAPER, weights="none"))
    saved = Saved(method)
    learned = [*model.parameters(), *method.summaries.parameters()]
    with FakeTensorMode(allow_non_fake_inputs=True), method.as_attention(), ProductCounter() as counter:
        tokens_BT = torch.zeros(1, length, dtype=torch.int64, device="meta")
        with torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor):
            loss = model(tokens_BT, labels=tokens_BT).loss
        torch.autograd.grad(loss, learned, allow_unused=True)
    weights = sum(parameter.numel() for parameter in learned)
    flops = counter.flops - unseen_flops(method, length)
    return {
        "shape": name,
        "tokens": length,
        "weights": weights,
        "flops_per_token": flops / length,
        "step_flops": flops * SEQUENCES[name],
        "run_flops": flops / length * RUN_TOKENS,
        "published_run_flops": PUBLISHED[name],
        "weight_bytes": NUMBERS * weights,
        "sequence_bytes": saved.bytes,
    }


def unseen_flops(method: EVALM, length: int) -> int:
    """What is counted too much: where there is no data, every query counts as if it saw every summary."""
    backbone, chunks = method.backbone, -(-length // method.geometry.chunk)
    whole = length // method.geometry.chunk
    seen = int(method.geometry.counts(torch.arange(length)).clamp(max=whole).sum())
    pairs = length * whole - seen
    assert chunks >= whole
    return 3 * 4 * backbone.layers * backbone.heads * backbone.head_width * pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=list(PAPER_SHAPES), choices=list(PAPER_SHAPES))
    parser.add_argument("--length", type=int, default=8192)
    options = parser.parse_args()
    print(json.dumps({"bench": "evalm_step", "steps": [step(name, options.length) for name in options.shapes]}))


if __name__ == "__main__":
    main()
