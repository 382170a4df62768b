"""GPUs by what their makers publish."""

from __future__ import annotations

import dataclasses

from contextlab.errors import check_known

USABLE = 0.94
"""Share of a GPU's memory for tensors; CUDA's context, libraries and gaps between tensors take the rest."""
LAUNCH_SECONDS = 5e-6
"""Seconds that one launch of a kernel takes when nothing else does."""


@dataclasses.dataclass(frozen=True)
class GPU:
    """One GPU.

    Attributes:
        about: its full name.
        memory: bytes.
        bandwidth: bytes per second between memory and processors.
        half_flops: FLOPs per second in bfloat16 or float16, of dense products in tensor cores.
        single_flops: FLOPs per second in float32, without tensor cores, as torch multiplies by default.
    """

    about: str
    memory: int
    bandwidth: float
    half_flops: float
    single_flops: float

    @property
    def usable(self) -> int:
        """Bytes for tensors."""
        return int(USABLE * self.memory)

    def flops(self, item_bytes: int) -> float:
        """FLOPs per second with numbers of so many bytes."""
        return self.half_flops if item_bytes <= 2 else self.single_flops


GPUS = {
    "h100": GPU("NVIDIA H100 SXM, 80 GB", 80 * 10**9, 3.35e12, 989e12, 67e12),
    "h200": GPU("NVIDIA H200 SXM, 141 GB", 141 * 10**9, 4.8e12, 989e12, 67e12),
    "a100": GPU("NVIDIA A100 SXM, 80 GB", 80 * 10**9, 2.039e12, 312e12, 19.5e12),
    "rtx4090": GPU("NVIDIA GeForce RTX 4090, 24 GB", 24 * 10**9, 1.008e12, 165e12, 82.6e12),
}


def gpu(name: str) -> GPU:
    """A GPU by its name.

    Raises:
        UserError: for an unknown name, with the nearest known one.
    """
    check_known("GPU", [name], GPUS)
    return GPUS[name]
