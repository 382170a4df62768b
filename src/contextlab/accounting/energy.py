"""Energy of calls on NVIDIA GPUs, as NVML counts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

MILLI = 1e-3


def meter(device: torch.device | str) -> Callable[[], float] | None:
    """Reads the energy that a GPU has used since its driver was loaded, in joules.

    None where nothing counts it: on other devices, without `nvidia-ml-py`, on GPUs before Volta, and on a part of a GPU
    (MIG), whose counter is that of all parts. GPUs renew the counter every 20 to 100 ms, so that sums over many calls
    are meaningful and single short ones are not.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        # The number of a device is another one in NVML where CUDA_VISIBLE_DEVICES hides some.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        if _is_divided(pynvml, handle):
            return None
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * MILLI


def _is_divided(pynvml: Any, handle: Any) -> bool:
    """Whether a GPU is divided into parts; those that cannot be are not."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:
        return False
