"""Joint memory attention in Triton."""

from __future__ import annotations

from contextlab.kernels.joint_memory_attention.triton_local import local_backward, local_forward
from contextlab.kernels.joint_memory_attention.triton_memory import memory_backward, memory_forward

__all__ = ["local_backward", "local_forward", "memory_backward", "memory_forward"]
