"""Laws of every operation in every form: any shape, any layout in memory, torch's rules, FLOPs without data."""

from __future__ import annotations

from importlib import util
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_cases import TOLERANCE
from operations import LAYOUTS, OPERATIONS, Arguments, Layout, Sizes, in_float64, laid_out, names, sizes
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from contextlab.kernels import part, retrieved
from contextlab.kernels.chunk_topk import blocked as blocked_search
from contextlab.kernels.dispatch import forced
from contextlab.kernels.eva_attention import blocked as blocked_eva
from contextlab.kernels.eva_chunk_compress import blocked as blocked_pooling
from contextlab.kernels.joint_memory_attention import blocked as blocked_memory

EXAMPLES = {"reference": 30, "torch": 40, "torch in small blocks": 40, "triton": 1}
BLOCKS = {
    blocked_search: {"SCORES": 9, "GROUP": 2, "QUERIES": 1, "CHUNKS": 2},
    blocked_eva: {"QUERIES_AT_ONCE": 3},
    part: {"QUERIES_AT_ONCE": 2},
    blocked_pooling: {"ELEMENTS": 20},
    blocked_memory: {"BIAS_ELEMENTS": 20, "LEAST_QUERIES": 1},
    retrieved: {"GATHERED_ELEMENTS": 20},
}
DIFFERENTIABLE = {
    f"contextlab::{name}"
    for name in ("local_attention", "fuse_memory", "eva_attention", "pool_chunks", "retrieval_attention")
} | {"contextlab::sink_attention"}
FEW = Sizes(H=2, K=1, T=2, older=1, D=3, n=2, c=2, m=1)


@pytest.mark.parametrize("form", EXAMPLES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_any_shape_in_any_layout_equals_float64(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _needs_form(form)
    if form == "torch in small blocks":
        for module, constants in BLOCKS.items():
            for constant, value in constants.items():
                monkeypatch.setattr(module, constant, value)

    @settings(max_examples=EXAMPLES[form], deadline=None)
    @given(
        sizes(), st.fixed_dictionaries(dict.fromkeys(names(name), LAYOUTS)), st.booleans(), st.integers(0, 99),
        st.booleans(),
    )  # fmt: skip
    @example(Sizes(), dict.fromkeys(names(name), Layout(order=9, step=2, offset=1)), True, 0, False)
    @example(Sizes(), dict.fromkeys(names(name), Layout(step=2, along=-2, repeated=0)), False, 0, False)
    def law(size: Sizes, layouts: dict[str, Layout], options: bool, seed: int, wide: bool) -> None:
        arguments = OPERATIONS[name].arguments(size, torch.Generator().manual_seed(seed), options)
        if form == "triton":
            arguments = _moved(arguments, device="cuda" if torch.cuda.is_available() else "cpu")
        elif wide:
            arguments = in_float64(arguments)
        with forced(form.split()[0]):
            _compare(name, arguments, layouts)

    law()


def _compare(name: str, arguments: Arguments, layouts: dict[str, Layout]) -> None:
    """Results and gradients of arguments in their layouts, beside those of the same numbers in float64."""
    operation = OPERATIONS[name]
    stored = operation.with_gradients(laid_out(arguments, layouts, operation.paired))
    plain = operation.with_gradients(in_float64(stored))
    results, expected = operation.run(stored), operation.expected(plain)
    for result, want in zip(results, expected, strict=True):
        _close(result, want, name)
    if operation.leaves:
        dout = layouts["dout"].of(torch.randn_like(expected[0]).to(results[0].dtype))
        grads = _gradients(results[0], operation.leaves_of(stored), dout)
        wanted = _gradients(expected[0], operation.leaves_of(plain), dout.double())
        for leaf, gradient, want in zip(operation.leaves, grads, wanted, strict=True):
            assert gradient.dtype == stored[leaf].dtype
            _close(gradient, want, f"{name}: gradient of {leaf}")


def _gradients(out: Tensor, leaves: list[Tensor], dout: Tensor) -> tuple[Tensor, ...]:
    # Without any element, or any chunk, some arguments are not read.
    return torch.autograd.grad(out, leaves, dout, allow_unused=True, materialize_grads=True)


def _close(result: Tensor, expected: Tensor, what: str) -> None:
    """Equal but for rounding."""
    allowed = 20 * TOLERANCE[result.dtype] if result.is_floating_point() else 0
    torch.testing.assert_close(
        result.double(), expected.double(), atol=allowed, rtol=allowed, msg=lambda text: f"{what}: {text}"
    )


def _moved(arguments: Arguments, device: str) -> Arguments:
    return {name: x.detach().to(device) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def _needs_form(form: str) -> None:
    if form == "triton" and util.find_spec("triton") is None:
        pytest.skip("there is no such form here")


class Calls(TorchDispatchMode):
    """Records the calls of this project's operations."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "contextlab":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _calls(name: str) -> list[tuple[Any, tuple[Any, ...]]]:
    """The registered operations of a public function, forward and backward, with their arguments."""
    operation, layout = OPERATIONS[name], Layout(order=9, step=2)
    arguments = operation.arguments(FEW, torch.Generator().manual_seed(0), True)
    # Half the width, so that a result of another type is detected.
    arguments = {n: x.half() if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in arguments.items()}
    stored = operation.with_gradients(laid_out(arguments, dict.fromkeys(names(name), layout)))
    with Calls() as seen:
        out = operation.run(stored)[0]
        if operation.leaves:
            torch.autograd.grad(out, operation.leaves_of(stored), layout.of(torch.ones_like(out)))
    return seen.calls


@pytest.mark.parametrize("form", ["torch", "triton"])
def test_every_operation_follows_torchs_rules(form: str) -> None:
    """Nothing is changed in place, gradients are registered, and shapes and strides are known without data."""
    _needs_form(form)
    checked = set()
    with forced(form):
        calls = [call for name in OPERATIONS for call in _calls(name)]
        for op, arguments in calls:
            # The trace is the same for other options and in the interpreter, which is slow: there only the
            # results' shapes and strides are tested.
            rules = ["test_faketensor"]
            if form == "torch" and op.name() not in checked:
                rules += ["test_schema", "test_autograd_registration", "test_aot_dispatch_dynamic"]
            # Backward passes and the search have no gradients, and opcheck would need those of arguments that
            # require some.
            wanted = op.name() in DIFFERENTIABLE
            detached = (x.detach() if isinstance(x, Tensor) else x for x in arguments)
            inputs = [
                x.requires_grad_(wanted) if isinstance(x, Tensor) and x.is_floating_point() else x for x in detached
            ]
            torch.library.opcheck(op, tuple(inputs), test_utils=rules)
            checked.add(op.name())
    every = {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("contextlab::")}
    assert checked == every


@pytest.mark.parametrize("options", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_flops_are_counted_without_data(name: str, options: bool) -> None:
    """They count every chunk, pair and token as seen: never less than with data, and equal where all are seen."""
    operation = OPERATIONS[name]
    arguments = operation.arguments(Sizes(), torch.Generator().manual_seed(0), options)

    def flops(arguments: Arguments) -> int:
        wanted = operation.with_gradients(arguments)
        with forced("torch"), FlopCounterMode(display=False) as counter:
            out = operation.run(wanted)[0]
            if operation.leaves:
                torch.autograd.grad(out, operation.leaves_of(wanted), torch.ones_like(out))
        return counter.get_total_flops()

    real, fake = flops(arguments), FakeTensorMode()
    shapes = {n: fake.from_tensor(x.detach()) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    with fake:
        without_data = flops(shapes)
    assert without_data >= real > 0
    assert flops(_moved(arguments, "meta")) == without_data
    if name in ("local_attention", "eva_chunk_compress", "pool_chunks"):
        assert without_data == real
