from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from contextlab.accounting.watch import tensors_in, watching

MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@torch.library.custom_op("contextlab_test::halves", mutates_args=())
def halves(a: Tensor) -> Tensor:
    return a / 4 + a / 4


@torch.library.custom_op("contextlab_test::nested", mutates_args=())
def nested(a: Tensor) -> Tensor:
    return halves(a).exp()


class Seen:
    """Records the names of operations."""

    def __init__(self) -> None:
        self.ops: list[tuple[str, bool]] = []

    def __call__(self, op: Any, args: Any, kwargs: Any, result: Any, inside: bool) -> None:
        self.ops.append((op.name().split("::")[1].partition(".")[0], inside))

    @property
    def whole(self) -> list[str]:
        return [name for name, inside in self.ops if not inside]

    @property
    def parts(self) -> list[str]:
        return [name for name, inside in self.ops if inside]


def seen_in(fn: Callable[[], Any]) -> Seen:
    seen = Seen()
    with watching(seen):
        fn()
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_composite_operations_are_shown_as_their_parts_in_every_mode(mode: Any) -> None:
    x, weight = torch.rand(2, 3), torch.rand(4, 3)
    with mode():
        shown = seen_in(lambda: torch.nn.functional.linear(x, weight)).ops
    assert ("mm", False) in shown
    assert "linear" not in {name for name, _ in shown}


@pytest.mark.parametrize("mode", MODES)
def test_parts_of_an_operation_come_before_it_and_are_inside(mode: Any) -> None:
    a = torch.ones(2)
    with mode():
        seen = seen_in(lambda: halves(a).neg())
    assert seen.whole == ["halves", "neg"]
    assert seen.parts == ["div", "div", "add"]
    assert seen.ops.index(("add", True)) < seen.ops.index(("halves", False))


def test_inside_an_operation_inside_an_operation_is_inside() -> None:
    seen = seen_in(lambda: nested(torch.ones(2)).neg())
    assert seen.whole[-2:] == ["nested", "neg"]
    assert seen.parts == ["div", "div", "add", "halves", "exp"]


def test_an_operation_gives_what_it_gives_unseen() -> None:
    a = torch.rand(3)
    with watching(Seen()):
        watched = nested(a)
    assert torch.equal(watched, nested(a))


def test_two_that_watch_share_one_mode_and_see_the_same() -> None:
    inner, outer = Seen(), Seen()
    with watching(outer):
        mode = _get_current_dispatch_mode()
        with watching(inner):
            assert _get_current_dispatch_mode() is mode
            halves(torch.ones(2))
        torch.zeros(1)
    assert outer.ops[: len(inner.ops)] == inner.ops
    assert outer.ops[len(inner.ops) :] == [("zeros", False)]
    assert _get_current_dispatch_mode() is None


def test_another_mode_in_between_is_left_alone() -> None:
    class Other(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    first, second = Seen(), Seen()
    with watching(first), Other(), watching(second):
        torch.ones(2).neg()
    assert "neg" in first.whole
    assert first.whole == second.whole


def test_after_an_exception_nothing_watches_and_nothing_is_inside() -> None:
    @torch.library.custom_op("contextlab_test::fails", mutates_args=())
    def fails(a: Tensor) -> Tensor:
        raise ValueError("no")

    seen, later = Seen(), Seen()
    with watching(seen):
        with pytest.raises(ValueError, match="no"), watching(later):
            fails(torch.ones(1))
        torch.ones(2)
    assert later.ops == [("ones", False)]
    assert seen.ops == [("ones", False), ("ones", False)]


def test_tensors_are_found_in_lists_and_tuples() -> None:
    a, b, c = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [x.numel() for x in tensors_in((a, [b, (c, None)], 3, "x"))] == [1, 2, 3]
    assert list(tensors_in(None)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_operation_with_a_kernel_of_its_own_is_not_decomposed(dtype: torch.dtype) -> None:
    """silu's backward pass has a kernel and a decomposition, which rounds differently."""
    x = torch.randn(400).to(dtype).requires_grad_()

    def gradient() -> Tensor:
        return torch.autograd.grad(torch.nn.functional.silu(x).sum(), x)[0]

    expected = gradient()
    with watching(Seen()):
        assert torch.equal(gradient(), expected)
    assert "silu_backward" in seen_in(gradient).whole
