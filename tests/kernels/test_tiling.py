from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_cases import TOLERANCE

tiling = pytest.importorskip("contextlab.kernels.tiling")


def tf32(x: Any) -> Any:
    """Rounded to the 10 bits of mantissa that matrix units read of a float32."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def three_products(a: Any, b: Any) -> Any:
    """A float32 product from three products of tf32, summed in float32."""
    a_high, b_high = tf32(a), tf32(b)
    a_low, b_low = tf32(a - a_high), tf32(b - b_high)
    return (a_low @ b_high + a_high @ b_low) + a_high @ b_high


def error(product: Any, exact: Any) -> Any:
    return float(((product.double() - exact).pow(2).mean() / exact.pow(2).mean()).sqrt())


@pytest.mark.parametrize("width", [16, 64, 128, 256])
def test_three_products_of_tf32_are_within_what_float32_is_tested_for(width: int) -> None:
    a, b = torch.randn(200, width) * torch.rand(200, 1).exp(), torch.randn(width, 300)
    exact = a.double() @ b.double()
    assert error(three_products(a, b), exact) < TOLERANCE[torch.float32] / 5
    # A single product is not: its error is that of 11 bits.
    assert error(tf32(a) @ tf32(b), exact) > 20 * TOLERANCE[torch.float32]


def test_three_products_of_whole_numbers_are_exact() -> None:
    """The search compares equal scores, so that equal chunks must have them."""
    a, b = (torch.randint(-1000, 1000, shape).float() for shape in ((50, 16), (16, 60)))
    assert torch.equal(three_products(a, b), a @ b)


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 1), (2, 16), (16, 16), (17, 256), (256, 256), (257, 4096), (65537, 2**20)]
)
def test_lengths_share_a_bucket(length: int, bucket: int) -> None:
    assert tiling.bucket_of(length) == bucket


@pytest.mark.parametrize("width", range(1, 300, 7))
def test_padded_width_is_a_power_of_two_that_matrix_units_take(width: int) -> None:
    padded = tiling.padded_width(width)
    assert padded >= max(16, width)
    assert padded & (padded - 1) == 0
    assert padded == 16 or padded < 2 * width


class Launches:
    """In place of a kernel: the devices that were chosen when it was launched."""

    configs = ("one",)

    def __init__(self) -> None:
        self.chosen, self.during = [], []

    @contextlib.contextmanager
    def device_of(self, tensor: Any) -> Iterator[Any]:
        self.chosen.append(tensor.device)
        yield
        self.chosen.pop()

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **constants: self.during.append((grid, arguments, constants, list(self.chosen)))


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    launches, x = Launches(), torch.empty(1, device="meta")
    monkeypatch.setattr(torch.cuda, "device_of", launches.device_of)
    kernel = tiling.OnDevice(launches)
    kernel[(3,)](None, x, 2.0, WIDTH=4)
    assert launches.during == [((3,), (None, x, 2.0), {"WIDTH": 4}, [x.device])]
    assert kernel.configs == ("one",)


def test_every_kernel_is_launched_so() -> None:
    modules = [path for path in Path(tiling.__file__).parent.rglob("*.py") if "@triton.jit" in path.read_text("utf-8")]
    assert modules
    assert not any("@triton.autotune" in path.read_text("utf-8") for path in modules)
