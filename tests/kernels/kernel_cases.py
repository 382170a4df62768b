"""Random arguments of joint memory attention, with expected results in float64."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab.kernels.joint_memory_attention import joint_memory_attention, reference

NOWHERE = 10**12
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@dataclasses.dataclass
class Case:
    """Leaves in the order of the arguments, and arguments without gradients."""

    leaves: list[Tensor]
    ids: Tensor
    retrieved: Tensor
    slopes: Tensor | None
    scale: float

    def run(self) -> Tensor:
        *tensors, gate = self.leaves
        return joint_memory_attention(*tensors, self.ids, self.retrieved, gate, scale=self.scale, slopes_H=self.slopes)

    def truth(self) -> Case:
        leaves = [leaf.detach().double().requires_grad_() for leaf in self.leaves]
        slopes = None if self.slopes is None else self.slopes.double()
        return dataclasses.replace(self, leaves=leaves, slopes=slopes)

    def expected(self) -> Tensor:
        q, k, v, q_memory, bank_k, bank_v, gate = self.leaves
        local = reference.local_attention(q, k, v, self.slopes, self.scale)
        return reference.fuse_memory(local, q_memory, bank_k, bank_v, self.ids, self.retrieved, gate, self.scale)


def case(
    queries: int,
    keys: int | None = None,
    *,
    rows: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    width: int = 16,
    chunks: int = 9,
    chunk: int = 4,
    take: int = 3,
    slopes: bool = True,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Case:
    """A bank with LongMem's strides (chunks before heads), and ids out of range where nothing was retrieved."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    keys = queries if keys is None else keys
    q, q_memory = normal(rows, heads, queries, width), normal(rows, heads, queries, width)
    k, v = normal(rows, kv_heads, keys, width), normal(rows, kv_heads, keys, width)
    bank = [normal(rows, chunks, kv_heads, chunk, width).transpose(1, 2) for _ in range(2)]
    ids = torch.randint(chunks, (rows, heads, queries, take), generator=generator).to(device)
    retrieved = (torch.rand(ids.shape, generator=generator) > 0.3).to(device)
    retrieved[0, :, ::5] = False
    leaves = [q, k, v, q_memory, *bank, normal(heads)]
    return Case(
        [leaf.requires_grad_() for leaf in leaves],
        ids.masked_fill(~retrieved, NOWHERE),
        retrieved,
        torch.rand(heads, generator=generator).to(device) if slopes else None,
        width**-0.5,
    )


def gradients(out: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a weighted sum over all elements."""
    weights = torch.sin(torch.arange(out.numel(), device=out.device, dtype=torch.float64)).view_as(out)
    return torch.autograd.grad((out * weights.to(out.dtype)).sum(), leaves)


def assert_close(result: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> None:
    """Close in root mean square, relative to the expected."""
    assert result.shape == expected.shape, what
    assert result.isfinite().all(), what
    if result.numel() == 0:
        return
    error = (result.double() - expected.double()).pow(2).mean().sqrt()
    assert error <= TOLERANCE[dtype] * expected.double().pow(2).mean().sqrt().clamp(min=0.1), what
