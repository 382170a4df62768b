from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch

from contextlab.accounting.energy import meter


class Refused(Exception):
    pass


def refuse(*_: object) -> object:
    raise Refused


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """NVML of a machine with one GPU, which has used 2.5 joules."""
    module = ModuleType("pynvml")
    functions: dict[str, Callable[..., object]] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-abc": "handle"}[uuid],
        "nvmlDeviceGetMigMode": lambda handle: (0, 0),
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: {"handle": 2500}[handle],
    }
    vars(module).update({**functions, "NVMLError": Refused})
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    return module


def test_a_counter_of_millijoules_is_read_in_joules(nvml: ModuleType) -> None:
    read = meter("cuda:0")
    assert read is not None
    assert read() == 2.5


def test_other_devices_count_no_energy(nvml: ModuleType) -> None:
    assert meter("cpu") is None


def test_without_the_package_there_is_no_energy(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert meter("cuda") is None


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"])
def test_what_nvml_refuses_is_no_error(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    monkeypatch.setattr(nvml, function, refuse)
    assert meter("cuda") is None


def test_a_part_of_a_gpu_has_no_energy_of_its_own(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "nvmlDeviceGetMigMode", lambda handle: (1, 1))
    assert meter("cuda") is None


def test_a_gpu_that_cannot_be_divided_is_whole(nvml: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "nvmlDeviceGetMigMode", refuse)
    assert meter("cuda") is not None
