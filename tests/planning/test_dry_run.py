"""What a run on shapes notes, beside real runs on a CPU in which attention is computed as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from bench_modules import bench_module
from small_models import METHODS, method, real, shapes
from torch import Tensor
from torch.nn import functional

from contextlab.kernels import dispatch
from contextlab.method import AnyMethod, Lengths
from contextlab.planning import dry_run as runs
from contextlab.planning.dry_run import AHEAD, FusedAttention, Observed, dry_run, launches_of
from contextlab.planning.profile import Profile

LENGTH = 4096
PLAN = bench_module("plan")


@pytest.fixture
def as_on_a_gpu() -> Iterator[None]:
    """Attention in one piece with repeated keys: on a CPU it is computed in blocks of queries, which need no more."""
    with PLAN.one_pass():
        yield


def measured(on_shapes: AnyMethod, rows: int = 1) -> tuple[int, int]:
    """The peak of a real reading, without weights, and the bytes of the state that it leaves."""
    tokens_BT = torch.zeros(rows, LENGTH - AHEAD, dtype=torch.int64)
    with torch.inference_mode():
        state = on_shapes.start(rows, ahead=Lengths(LENGTH))
        with PLAN.WholeOperations() as memory:
            after, _ = on_shapes.read(state, tokens_BT, logprobs=False)
    return memory.peak_bytes, after.nbytes


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", METHODS)
def test_the_peak_on_shapes_is_that_of_a_real_run(name: str) -> None:
    peak, state = measured(method(name, real()))
    run = dry_run(method(name, shapes()), LENGTH, 1)
    assert run.state_bytes == state
    # Weights, which are equal, are left out: they would hide a difference.
    assert max(run.read.live) == pytest.approx(peak, rel=0.05)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_rows_side_by_side_need_as_much_as_in_a_real_run() -> None:
    peak, state = measured(method("retrieval", real()), rows=2)
    run = dry_run(method("retrieval", shapes()), LENGTH, 2)
    assert (run.state_bytes, max(run.read.live)) == (state, pytest.approx(peak, rel=0.05))


@pytest.mark.parametrize("name", METHODS)
def test_the_formula_knows_the_state_exactly(name: str) -> None:
    on_shapes = method(name, shapes())
    formula = on_shapes.formula(Lengths(LENGTH))
    assert formula is not None
    assert formula.state_bytes(LENGTH - AHEAD) == dry_run(on_shapes, LENGTH, 1).state_bytes


def observed(*tensors: Tensor, call: Any, backbone: Any = None) -> runs.NotedCall:
    on_shapes = method("full", backbone or shapes(1))
    with torch.inference_mode(), Observed(on_shapes, on_shapes.start()) as seen:
        call(*tensors)
    return seen.call


def test_views_memory_and_counts_on_the_host_are_no_launches() -> None:
    x, counts = torch.ones(4, 4, device="meta"), torch.ones(4)
    assert observed(x, call=lambda x: (x[1:], x.t(), x.view(-1), x.expand(2, 4, 4), x.detach())).launches == 0
    assert observed(x, call=lambda x: (torch.empty_like(x), x.new_empty(3))).launches == 0
    assert observed(counts, call=lambda c: (c + 1, c.sum(), torch.zeros(3))).launches == 0


def test_what_is_computed_written_or_copied_is_a_launch() -> None:
    x, counts = torch.ones(4, 4, device="meta"), torch.ones(4)
    assert observed(x, call=lambda x: x + 1).launches == 1
    assert observed(x, call=lambda x: x.add_(1)).launches == 1
    assert observed(x, call=lambda x: x[1:].copy_(x[:3])).launches == 1
    assert observed(counts, call=lambda c: c.to("meta")).launches == 1
    assert observed(x, call=lambda x: functional.linear(x, x, x[0])).launches == 1


def test_attention_is_one_launch_that_allocates_its_output() -> None:
    q = torch.ones(1, 3, 64, 32, device="meta")
    with FusedAttention():
        call = observed(q, call=lambda q: functional.scaled_dot_product_attention(q, q, q[..., :16]))
    assert call.launches == 1
    assert max(call.live) - call.live[0] == 3 * 64 * 16 * 4


def test_every_operation_without_gradients_has_its_launches() -> None:
    operations = [op for op in dir(torch.ops.contextlab) if not op.startswith("_") and op != "name"]
    assert {op for op in operations if not op.endswith("_backward")} == dispatch.LAUNCHES.keys()
    assert launches_of(torch.ops.contextlab.chunk_topk.default) == 9


def test_weights_are_read_once_by_a_token_and_embeddings_by_rows() -> None:
    backbone = shapes()
    run = dry_run(method("full", backbone), LENGTH, 1)
    whole = sum(x.nbytes for x in backbone.model.parameters())
    # The head is the embedding again; rotary frequencies are a buffer.
    assert run.decoded.weight_bytes == pytest.approx(whole, rel=0.001)


def test_a_state_that_moves_into_larger_memory_is_given_back() -> None:
    run = dry_run(method("full", shapes(12)), LENGTH, 1)
    assert run.decoded.live[0] == pytest.approx(run.state_bytes, rel=0.001)
    # A sixteenth of free slots, and the keys and values of one layer for each of three query heads.
    assert max(run.decoded.live) < (1 + 1 / 16 + 3 / 12 + 0.1) * run.state_bytes


def test_a_view_in_few_bits_does_not_lower_the_peak_of_a_deep_model() -> None:
    """Every pass brings all of the view back into the model's type, or `cache` would be among `plan.REMEDIES`."""
    plain, packed = (method(name, shapes(12)) for name in ("full", "full(cache=int8)"))
    states = [form.formula().state_bytes(30000) for form in (plain, packed)]
    assert states[1] < states[0]
    assert Profile.of(packed, 1).peak(states[1]) > Profile.of(plain, 1).peak(states[0])
