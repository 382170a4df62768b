"""Memory of tensors on the host, for a model on another device that needs few of them at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.attention import KV, Buffers

HOST = torch.device("cpu")


def allocate(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uninitialised memory of a shape on the host, for numbers of a tensor's type; pinned where there is a GPU, which
    copies faster from there.
    """
    return torch.empty(shape, dtype=like.dtype, device=HOST, pin_memory=torch.cuda.is_available())


def moved(kv: KV) -> KV:
    """A cache on the host; itself where it is there."""
    if kv.k[0].device == HOST:
        return kv
    k, v = (tuple(x.to(HOST) for x in layers) for layers in (kv.k, kv.v))
    return kv.replace(k, v, kv.used_B)


def taken(x_BKncD: Tensor, chunks_n: Tensor, device: torch.device) -> Tensor:
    """Some chunks of a tensor on the host, on another device."""
    if torch.is_grad_enabled() and x_BKncD.requires_grad:
        return x_BKncD.index_select(2, chunks_n).to(device)
    shape = (*x_BKncD.shape[:2], len(chunks_n), *x_BKncD.shape[3:])
    pieces = torch.index_select(x_BKncD.detach(), 2, chunks_n, out=allocate(x_BKncD, shape))
    return pieces.to(device, non_blocking=True)


def pin(kv: KV) -> None:
    """Move a cache on the host into pinned memory where there is a GPU and it is not there yet."""
    if torch.cuda.is_available() and kv.buffers is None and kv.slots:
        Buffers.under(kv, kv.slots, allocate)
