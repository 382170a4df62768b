"""Local attention and attention over retrieved chunks, fused per head (LongMem, section 2.3)."""

from __future__ import annotations

from contextlab.kernels.joint_memory_attention.reference import fuse, joint_memory_attention, memory_attention

__all__ = ["fuse", "joint_memory_attention", "memory_attention"]
