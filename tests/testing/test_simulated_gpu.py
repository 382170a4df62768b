"""A simulated GPU keeps devices apart and counts; on it every method keeps its laws."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from installed import MISSING
from torch import nn
from torch.nn import functional

from contextlab import registry
from contextlab.accounting.flops import FlopCounter
from contextlab.kernels.dispatch import LAUNCHES
from contextlab.kernels.joint_memory_attention import local_attention
from contextlab.planning.shaped import built_in
from contextlab.testing import laws
from contextlab.testing.simulated_gpu import DeviceCounts, SimulatedGPU

BUILT_IN = [name for name in built_in() if name not in MISSING]
SHORTER: dict[str, dict[str, Any]] = {
    "least-squares": {"study_tokens": 4},
    "dense": {"stride": 48, "chunk": 16, "k": 1},
    # What torch computes a second time in a backward pass, as with self-study, does not know the simulated device.
    "cartridge": {"p": 8, "N": 24, "context": 40, "objective": "lm", "steps": 1},
}
ONE_THREAD = "threads"
"""The law that cannot be simulated: torch's modes, which the simulation consists of, are those of one thread."""
DECISIVE = ("causality", "streaming", "rows", "forks", "normalised")
FEWER = dict.fromkeys(
    ("hso", "dynamic-eval", "finetune", "cartridge", "least-squares", "bm25", "dense"), ("forks", "normalised")
)
"""The same for methods with minutes of passes in the others."""


@pytest.fixture
def gpu() -> Iterator[SimulatedGPU]:
    with SimulatedGPU() as simulated:
        yield simulated


def test_a_tensor_of_the_device_says_so_and_one_of_the_host_does_not(gpu: SimulatedGPU) -> None:
    on_gpu, on_host = torch.ones(3, device="cuda"), torch.ones(3)
    assert (on_gpu.device, on_gpu.is_cuda, on_gpu.is_cpu) == (torch.device("cuda:0"), True, False)
    assert (on_host.device.type, on_host.is_cuda, on_host.is_cpu) == ("cpu", False, True)
    assert on_host.to("cuda").device == on_host.cuda().device == on_host.to(on_gpu).device == on_gpu.device
    assert on_gpu.cpu().device == on_gpu.to("cpu").device == on_host.device
    assert on_gpu.to(torch.float64).dtype == torch.float64


def test_results_views_and_copies_lie_where_their_tensors_do(gpu: SimulatedGPU) -> None:
    x = torch.ones(3, 4, device="cuda")
    tensors = (
        x + 1,
        x[1:],
        x.new_zeros(2),
        torch.zeros_like(x),
        copy.deepcopy(x),
        nn.Parameter(x),
        functional.softmax(x, 0),
    )
    assert {y.device.type for y in tensors} == {"cuda"}
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"
    assert nn.Linear(4, 4).to("cuda").weight.device.type == "cuda"


def test_an_operation_on_both_devices_is_refused(gpu: SimulatedGPU) -> None:
    x, y = torch.ones(3, device="cuda"), torch.ones(3)
    for mixed in (lambda: x + y, lambda: torch.cat((x, y)), lambda: y.add_(x), lambda: torch.where(x > 0, x, y)):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    q, k = torch.ones(1, 1, 4, 8, device="cuda"), torch.ones(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="same device"):
        functional.scaled_dot_product_attention(q, k, k)
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]


def test_what_waits_copies_and_is_launched_is_counted(gpu: SimulatedGPU) -> None:
    x, host = torch.ones(4, device="cuda"), torch.ones(4)

    def counted(call: Any) -> tuple[int, int, int]:
        gpu.counts = DeviceCounts()
        call()
        return gpu.counts.launches, gpu.counts.waits, gpu.counts.copies

    assert counted(lambda: (x[1:], x.view(2, 2), torch.empty_like(x))) == (0, 0, 0)
    assert counted(lambda: (x + 1, x.add_(1))) == (2, 0, 0)
    assert counted(lambda: torch.zeros(3, device="cuda")) == (1, 0, 0)
    assert counted(lambda: (host + 1, host.sum().item(), torch.zeros(3))) == (0, 0, 0)
    assert counted(lambda: host.to("cuda")) == counted(lambda: torch.tensor([1], device="cuda")) == (0, 0, 1)
    assert counted(lambda: x.copy_(host)) == (0, 0, 1)
    assert counted(lambda: host.copy_(x)) == counted(lambda: x.cpu()) == counted(lambda: x.tolist()) == (0, 1, 0)
    assert counted(lambda: x[0].item()) == counted(lambda: float(x[0])) == (0, 1, 0)
    assert counted(lambda: x[torch.tensor([1])]) == (1, 0, 1)
    assert counted(lambda: x[x > 0]) == (2, 1, 0)
    assert counted(lambda: x.nonzero())[1] == counted(lambda: torch.equal(x, x))[1] == 1


def test_attention_is_one_launch_and_an_operation_of_the_package_as_many_as_it_says(gpu: SimulatedGPU) -> None:
    q = torch.ones(1, 4, 64, 16, device="cuda")
    gpu.counts = DeviceCounts()
    functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert gpu.counts == DeviceCounts(launches=1)
    with FlopCounter() as counter:
        local_attention(q, q, q, scale=0.25)
    assert gpu.counts == DeviceCounts(launches=1 + LAUNCHES["local_attention"])
    assert counter.flops == 4 * (64 * 65 // 2) * 4 * 16


def test_gradients_lie_beside_their_tensors(gpu: SimulatedGPU) -> None:
    layer, x = nn.Linear(4, 4).to("cuda"), torch.ones(2, 4, requires_grad=True)
    layer(x.to("cuda")).square().sum().cpu().backward()
    assert layer.weight.grad is not None
    assert x.grad is not None
    assert (layer.weight.grad.device.type, x.grad.device.type) == ("cuda", "cpu")


def test_nothing_of_a_simulation_stays() -> None:
    with SimulatedGPU():
        x = torch.ones(3, device="cuda")
    assert x.device.type == "cpu"
    assert (x + torch.ones(3)).tolist() == [2, 2, 2]
    assert isinstance(torch.Generator(), torch.Generator)


def broken(name: str, family: str, *, decisive: bool) -> dict[str, str]:
    """The laws that a method does not keep on the simulated device."""
    kind = registry.method_class(name)
    config = kind.Config.parse(SHORTER.get(name, {}))
    details = {}
    for case in laws.cases((family,), "cuda"):
        of_decisive = case.law in FEWER.get(name, DECISIVE) and family == laws.FAMILIES[0]
        if case.law == ONE_THREAD or of_decisive != decisive:
            continue
        with SimulatedGPU():
            detail = case.broken(lambda backbone: kind(backbone, config))
        if detail is not None:
            details[f"{case.law} ({case.label})"] = detail
    return details


@pytest.mark.parametrize("name", BUILT_IN)
def test_methods_keep_the_decisive_laws_on_a_device(name: str) -> None:
    assert broken(name, laws.FAMILIES[0], decisive=True) == {}


@pytest.mark.slow
@pytest.mark.parametrize("family", laws.FAMILIES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_methods_keep_all_laws_on_a_device(name: str, family: str) -> None:
    assert broken(name, family, decisive=False) == {}
