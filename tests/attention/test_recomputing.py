"""Blocks that are computed again have the same gradients and keep less."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError
from transformers.modeling_layers import GradientCheckpointingLayer

from contextlab import backbone as backbones
from contextlab import process, registry
from contextlab.accounting.memory import PeakMemory
from contextlab.attention import recomputing

TOKENS = torch.randint(0, 250, (2, 96), generator=torch.Generator().manual_seed(0))
METHODS = {
    "full": {"rank": 2},
    "sliding": {"rank": 2, "N": 32},
    "retrieval": {"rank": 2, "N": 32},
    "longmem": {"N": 32, "rank": 2, "init": "memory", "softmax": "joint", "local": "sliding"},
    "evalm": {"rank": 2},
    "memtrm": {},
    "trime": {},
    "ultragist": {},
}


def learned(name: str, family: str, again: bool) -> tuple[list[Tensor], int]:
    """Gradients of a loss over two calls, and the most bytes that were live on the way."""
    kind = registry.method_class(name)
    with process.seeded(0):
        method = kind(backbones.load(family, device="cpu"), kind.Config.parse(METHODS[name]))
    assert method.learned is not None
    with PeakMemory() as memory, recomputing() if again else contextlib.nullcontext():
        state, first = method.learn(method.start(2), TOKENS[:, :64])
        _, second = method.learn(state, TOKENS[:, 64:])
        (first.logprobs_BT.sum() + second.logprobs_BT.sum()).backward()
    return [x.grad for x in method.learned.parameters() if x.grad is not None], memory.peak_bytes


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_bitwise_the_same(name: str, family: str) -> None:
    (plain, most), (again, least) = (learned(name, family, again) for again in (False, True))
    assert plain
    assert all(map(torch.equal, plain, again))
    assert least < most


def test_what_hooks_have_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "generative-adapter", {"chunk": 32})
    with pytest.raises(CheckpointError):
        learned("generative-adapter", "tiny-llama", True)


def test_nothing_stays_after_the_block() -> None:
    own = GradientCheckpointingLayer.__call__
    with recomputing():
        assert GradientCheckpointingLayer.__call__ is not own
    assert GradientCheckpointingLayer.__call__ is own
