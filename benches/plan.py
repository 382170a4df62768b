"""The plan beside real readings: peak memory and state of the embedded model on a CPU, measured and planned.

Attention has the form of a GPU's in both, one pass over all keys: on a CPU it is usually computed in blocks of queries,
which need no more. Working memory of this package's own operations, which their kernels do not have, is left out.

    python benches/plan.py [--methods full,sliding] [--length 8192] [--backbone smollm2-135m]

With `--gpu` nothing is measured: the table of `contextlab plan` for one length, of all methods, is stored for a page.

    python benches/plan.py --gpu h200 --backbone llama-3.1-8b --length 131072
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from contextlab import backbone as backbones
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.attention import reader
from contextlab.harness.identity import hardware
from contextlab.kernels.visible import SeenBlock
from contextlab.method import Lengths
from contextlab.planning.arithmetic import Arithmetic
from contextlab.planning.dry_run import AHEAD, weights
from contextlab.planning.gpus import gpu
from contextlab.planning.plan import Planner
from contextlab.planning.profile import Profile
from contextlab.planning.shaped import ShapedMethod, built_in, named_on
from contextlab.planning.shapes import backbone_of
from contextlab.planning.table import HEAD, cells, title

METHODS = "full,window,sliding,sinks,retrieval,evalm"


class WholeOperations(PeakMemory):
    """Leaves out the working memory of this package's operations."""

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, inside: bool) -> None:
        if not inside:
            super()._observe(op, args, kwargs, result, inside)


def as_on_a_gpu(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention in one pass, with a copy of the keys for every query head, which float32 needs on a GPU.

    Without a mask all keys are seen: only memory is measured.
    """
    k_BHSD, v_BHSD = (x.repeat_interleave(q_BHTD.shape[1] // x.shape[1], dim=1) for x in (k_BKSD, v_BKSD))
    return functional.scaled_dot_product_attention(q_BHTD, k_BHSD, v_BHSD, attn_mask=mask, scale=scale)


@contextlib.contextmanager
def one_pass() -> Iterator[None]:
    """Attention on the CPU in the form of a GPU's: without masks where all is causal, and not in blocks of queries."""
    with (
        mock.patch.object(reader, "UNMASKED", ("cpu", *reader.UNMASKED)),
        mock.patch.object(reader, "blocks", lambda mask: [SeenBlock(slice(None), slice(None), mask)]),
        mock.patch.object(reader, "_fused", as_on_a_gpu),
    ):
        yield


def measured(shaped: ShapedMethod, length: int) -> tuple[int, int]:
    """Bytes of the peak and of the state of a real reading."""
    tokens_BT = torch.zeros(1, length - AHEAD, dtype=torch.int64)
    with torch.inference_mode():
        state = shaped.method.start(ahead=Lengths(length))
        with WholeOperations(resident_bytes=storage_bytes(weights(shaped.method))) as memory:
            after, _ = shaped.method.read(state, tokens_BT, logprobs=False)
    return memory.peak_bytes, after.nbytes


def record(name: str, backbone: str, length: int) -> dict[str, Any]:
    """One method."""
    shapes, real = backbone_of(backbone, "float32"), backbones.load(backbone, device="cpu", dtype="float32")
    (named,) = named_on(name, shapes)
    with one_pass():
        peak, state = measured(ShapedMethod.of(named, real), length)
    shaped = ShapedMethod.of(named, shapes)
    formula = shaped.method.formula(Lengths(length))
    assert formula is not None
    text = Arithmetic(formula, length, rows=1)
    assert text.state is not None
    planned = storage_bytes(weights(shaped.method)) + Profile.of(shaped.plain, rows=1).read_peak(text.state)
    return {
        "method": named.label,
        "peak_bytes": {"measured": peak, "planned": planned},
        "difference": planned / peak - 1,
        "state_bytes": {"measured": state, "planned": formula.state_bytes(length - AHEAD)},
    }


def table(methods: str, backbone: str, length: int, name: str) -> dict[str, Any]:
    """What `contextlab plan` prints for one length."""
    shapes, card = backbone_of(backbone, "bfloat16"), gpu(name)
    planner = Planner(shapes, card, 1, lambda label: print(label, file=sys.stderr, flush=True))
    rows = [row for named in named_on(methods, shapes) for row in planner.rows_of(named, [length])]
    records = [dict(zip(HEAD, cells(row), strict=True)) for row in rows]
    return {"what": title(length, 1, backbone, "bfloat16", card), "results": records}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--gpu", help="store the plan for this one, and measure nothing")
    arguments = parser.parse_args()
    if arguments.gpu:
        methods = arguments.methods or ",".join(built_in())
        print(json.dumps(table(methods, arguments.backbone, arguments.length, arguments.gpu)))
        return
    results = [record(name, arguments.backbone, arguments.length) for name in (arguments.methods or METHODS).split(",")]
    about = {"backbone": arguments.backbone, "length": arguments.length, "device": hardware(torch.device("cpu"))}
    print(json.dumps({**about, "results": results}))


if __name__ == "__main__":
    main()
