"""Compiled passes of one token: one graph without breaks serves all lengths, with the numbers of uncompiled passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import contextlab
from contextlab.accounting.flops import FlopCounter
from contextlab.backbone import steps
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.planning.shapes import META, backbone_of

TOKENS = torch.randint(0, 250, (2, 400), generator=torch.Generator().manual_seed(0))
READ, DECODED = 300, 20
STATIC = (
    "full",
    "sliding(N=32)",
    "longmem(N=32,softmax=joint,local=sliding)",
    "retrieval(N=32)",
)
"""Methods that do the same for every token between the ends of segments and chunks."""
OTHERS = (
    "evalm",
    "longmem(N=32)",
    "window(N=32)",
    "sinks",
    "snapkv(N=32,keep=32,window=8)",
    "h2o(N=32)",
    "full(cache=int4)",
    "memtrm",
    "trime",
    "ultragist",
    "generative-adapter",
    "hso",
    "cartridge(N=32,context=40,study=1,study_tokens=4,steps=1)",
    "least-squares(chunk=32,study=1,study_tokens=4)",
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounterWithBackend]:
    """Graphs are recorded and replayed as they are, so that their numbers are those of the same operations."""
    counter = CompileCounterWithBackend("eager")  # type: ignore[no-untyped-call]

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, dynamic=True, backend=counter)

    monkeypatch.setattr(steps, "compiled", compiled)
    counters.clear()
    torch.compiler.reset()
    with config.patch(recompile_limit=steps.GRAPHS):
        yield counter
    torch.compiler.reset()


def decoded(method: AnyMethod, rows: int = 1) -> Tensor:
    """Distributions after each of some tokens that are read one by one."""
    logprobs = []
    with torch.no_grad():
        state, _ = method.read(method.start(rows), TOKENS[:rows, :READ], logprobs=False)
        for token_B1 in TOKENS[:rows, READ : READ + DECODED].split(1, dim=1):
            state, _ = method.read(state, token_B1, logprobs=False)
            logprobs.append(method.next_logprobs(state))
    return torch.stack(logprobs)


def check(name: str, recorded: CompileCounterWithBackend, graphs: int) -> None:
    logprobs = decoded(contextlab.load(name, "tiny-llama", compile=True))
    assert not counters["graph_break"]
    assert 1 <= recorded.frame_count <= graphs
    assert torch.equal(logprobs, decoded(contextlab.load(name, "tiny-llama")))


@pytest.mark.parametrize("name", STATIC)
def test_few_recorded_graphs_replay_with_equal_numbers(name: str, recorded: CompileCounterWithBackend) -> None:
    # One of a cache's first token, which is BOS, and others where a segment or a chunk ends, or a buffer is full.
    check(name, recorded, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_so_do_those_of_other_methods(name: str, recorded: CompileCounterWithBackend) -> None:
    check(name, recorded, 10)


def test_other_families_have_no_break_either(recorded: CompileCounterWithBackend) -> None:
    logprobs = decoded(contextlab.load("sliding(N=32)", "tiny-gpt2", compile=True), rows=2)
    assert not counters["graph_break"]
    assert torch.equal(logprobs, decoded(contextlab.load("sliding(N=32)", "tiny-gpt2"), rows=2))


def test_a_pass_in_the_form_of_a_gpu_has_no_break(recorded: CompileCounterWithBackend) -> None:
    method = contextlab.load("full", backbone_of("tiny-llama", "bfloat16"), compile=True)
    with torch.no_grad():
        state, _ = method.read(method.start(), TOKENS[:1, :READ].to(META), logprobs=False)
        for token_11 in TOKENS[:1, READ : READ + 4].to(META).split(1, dim=1):
            state, _ = method.read(state, token_11, logprobs=False)
    assert not counters["graph_break"]
    assert 1 <= recorded.frame_count <= 5


def test_the_default_compiler_gives_the_same_up_to_rounding() -> None:
    try:
        method = contextlab.load("full", "tiny-llama", compile=True)
    except UserError as error:
        pytest.skip(str(error))
    torch.testing.assert_close(decoded(method), decoded(contextlab.load("full", "tiny-llama")), rtol=0, atol=1e-5)


def test_operations_that_are_counted_are_not_hidden(recorded: CompileCounterWithBackend) -> None:
    flops = []
    for compile in (False, True):
        method = contextlab.load("full", "tiny-llama", compile=compile)
        state, _ = method.read(method.start(), TOKENS[:1, :READ], logprobs=False)
        frames = recorded.frame_count
        with FlopCounter() as counter:
            method.read(state, TOKENS[:1, READ : READ + 1], logprobs=False)
        assert recorded.frame_count == frames
        flops.append(counter.flops)
    assert flops[0] == flops[1] > 0


def test_passes_with_gradients_are_not_compiled(recorded: CompileCounterWithBackend) -> None:
    method = contextlab.load("full(rank=2)", "tiny-llama", compile=True)
    method.start()
    frames = recorded.frame_count
    _, prediction = method.learn(method.start(), TOKENS[:1, :1])
    assert prediction.logprobs_BT.requires_grad
    assert recorded.frame_count == frames


def test_the_backbone_that_was_given_stays_uncompiled() -> None:
    backbone = contextlab.load("full", "tiny-llama").backbone
    assert not contextlab.load("full", backbone).backbone.compiled
    assert not backbone.compiled


def test_where_nothing_can_be_compiled_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        raise RuntimeError("No compiler\nand much more")

    monkeypatch.setattr(steps, "compiled", compiled)
    with pytest.raises(UserError, match=r"^Nothing can be compiled for cpu here \(No compiler\): install"):
        contextlab.load("full", "tiny-llama", compile=True)
