"""Every operation with random arguments of any shape and any strides, with expected results in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.chunk_topk import reference as plain_search
from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_attention import reference as plain_eva
from contextlab.kernels.eva_chunk_compress import eva_chunk_compress, pool_chunks
from contextlab.kernels.eva_chunk_compress import reference as plain_pooling
from contextlab.kernels.joint_memory_attention import fuse_memory, local_attention
from contextlab.kernels.joint_memory_attention import reference as plain_memory
from contextlab.kernels.retrieval_attention import Inputs, retrieval_attention
from contextlab.kernels.retrieval_attention import reference as plain_retrieval
from contextlab.kernels.sink_attention import sink_attention

NOWHERE = (10**12, -1, -(10**12))
SCALE = 0.3
Arguments = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes by letter: T queries behind `older` keys, n chunks of c tokens, m of them taken."""

    B: int = 2
    H: int = 4
    K: int = 2
    T: int = 5
    older: int = 4
    D: int = 8
    n: int = 7
    c: int = 3
    m: int = 3


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        arguments: random ones in order, from sizes, a generator and whether its options are used.
        function: the public one.
        truth: the same in plain torch, without checks.
        leaves: arguments that get a gradient.
        paired: arguments that speak of the same elements, and so are stored alike.
    """

    arguments: Callable[[Sizes, torch.Generator, bool], Arguments]
    function: Callable[..., Any]
    truth: Callable[..., Any]
    leaves: tuple[str, ...] = ()
    paired: tuple[str, ...] = ()

    def run(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """Results of the public function."""
        return _tuple(self.function(*arguments.values()))

    def expected(self, arguments: Arguments) -> tuple[Tensor, ...]:
        """Expected results."""
        return _tuple(self.truth(*arguments.values()))

    def with_gradients(self, arguments: Arguments) -> Arguments:
        """The arguments; leaves require gradients."""
        return {name: x.detach().requires_grad_() if name in self.leaves else x for name, x in arguments.items()}

    def leaves_of(self, arguments: Arguments) -> list[Tensor]:
        """The leaves among the arguments, in order."""
        return [arguments[name] for name in self.leaves]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The strides and the type of a tensor in memory.

    Attributes:
        order: which of the orders of its dimensions, counted around.
        step: every how manieth element of the memory it has.
        along: in which dimension of the memory, counted around; in all when None.
        offset: elements of the memory before it, in every dimension.
        repeated: dimension along which there is one element only, counted around.
    """

    order: int = 0
    step: int = 1
    along: int | None = None
    offset: int = 0
    repeated: int | None = None

    def of(self, x: Tensor) -> Tensor:
        """The tensor with this layout, among numbers that must not be read; constant along `repeated`."""
        if x.numel() == 0:
            return x
        single = x if self.repeated is None else x.narrow(self.repeated % x.dim(), 0, 1)
        orders = list(itertools.permutations(range(x.dim())))
        order = orders[self.order % len(orders)]
        steps = [self.step if self.along is None or self.along % x.dim() == i else 1 for i in range(x.dim())]
        room = [single.shape[i] * step + self.offset for i, step in zip(order, steps, strict=True)]
        memory = torch.full(room, _foreign(x.dtype), dtype=x.dtype, device=x.device)
        stored = memory[tuple(slice(self.offset, None, step) for step in steps)]
        stored.copy_(single.permute(order))
        return stored.permute([order.index(i) for i in range(x.dim())]).expand(x.shape)


def sizes() -> st.SearchStrategy[Sizes]:
    """Any sizes, including 0 and 1."""
    return st.builds(
        lambda heads, **others: Sizes(H=heads[0], K=heads[1], **others),
        heads=st.sampled_from([(4, 2), (1, 1), (3, 1), (2, 2), (0, 1)]),
        B=st.sampled_from([2, 1, 0]),
        D=st.sampled_from([8, 1, 3, 0]),
        c=st.integers(1, 3),
        m=st.sampled_from([3, 1, 0]),
        **dict.fromkeys(("T", "older", "n"), st.sampled_from([2, 1, 5, 9, 0])),
    )


LAYOUTS = st.one_of(
    st.just(Layout()),
    st.builds(Layout, order=st.integers(0, 119)),
    st.builds(Layout, step=st.integers(2, 3), along=st.integers(0, 4)),
    st.builds(
        Layout,
        *(st.integers(0, 119), st.integers(1, 3), st.none() | st.integers(0, 4), st.integers(0, 1)),
        st.none() | st.integers(0, 4),
    ),
)


def names(operation: str) -> tuple[str, ...]:
    """The tensors of an operation with a layout: its arguments, and the gradient of its output."""
    return (*OPERATIONS[operation].arguments(Sizes(), torch.Generator(), True), "dout")


def laid_out(arguments: Arguments, layouts: Mapping[str, Layout], paired: tuple[str, ...] = ()) -> Arguments:
    """The arguments, each tensor in its layout; the tensors of a pair have the layout of the first."""
    if paired:
        layouts = {**layouts, **dict.fromkeys(paired, layouts[paired[0]])}
    return {name: layouts[name].of(x) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def in_float64(arguments: Arguments) -> Arguments:
    """The same numbers in float64, contiguous."""

    def wide(x: Tensor) -> Tensor:
        plain = x.detach().clone(memory_format=torch.contiguous_format)
        return plain.double() if x.is_floating_point() else plain

    return {name: wide(x) if isinstance(x, Tensor) else x for name, x in arguments.items()}


def _tuple(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def _foreign(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point:
        return math.nan
    return True if dtype == torch.bool else NOWHERE[0]


def _normal(g: torch.Generator, **shapes: tuple[int, ...]) -> Arguments:
    return {name: torch.randn(shape, generator=g) for name, shape in shapes.items()}


def _local(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    q, k = (s.B, s.H, s.T, s.D), (s.B, s.K, s.T + s.older, s.D)
    return {**_normal(g, q=q, k=k, v=k), "slopes": torch.rand(s.H, generator=g) if options else None}


def _memory(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    q, bank = (s.B, s.H, s.T, s.D), (s.B, s.K, s.n, s.c, s.D)
    inputs = _normal(g, local=q, q=q, bank_k=bank, bank_v=bank)
    if options:
        inputs |= {name: inputs[name].half() for name in ("bank_k", "bank_v")}
    ids = torch.randint(max(s.n, 1), (*q[:3], s.m), generator=g)
    retrieved = torch.rand(ids.shape, generator=g) > (0.3 if s.n else 1.0)
    nowhere = torch.tensor(NOWHERE)[torch.randint(3, ids.shape, generator=g)]
    return {**inputs, "ids": ids.where(retrieved, nowhere), "retrieved": retrieved, **_normal(g, gate=(s.H,))}


def _search(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    """Small integers: exact in every type, with many ties."""
    shapes = {"q": (s.B, s.H, s.T, s.D), "mean": (s.B, s.K, s.n, s.D)}
    inputs = {name: torch.randint(-1, 2, shape, generator=g).float() for name, shape in shapes.items()}
    return {**inputs, "count": torch.randint(s.n + 1, (s.B,), generator=g), "take": s.m}


def _eva(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    local, chunks = (s.B, s.K, s.T + s.older, s.D), (s.B, s.K, s.n, s.D)
    inputs = _normal(g, q=(s.B, s.H, s.T, s.D), k=local, v=local, chunk_k=chunks, chunk_v=chunks, chunk_bias=(s.H,))
    counts = torch.randint(-1, s.n + 2, (s.B, s.T), generator=g)
    return {**inputs, "counts": counts, "bias": None, "window": s.c if options else None, "overlap": options}


def _eva_biased(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    """A bias in which every query sees the first key, for all of them or one for each."""
    inputs = _eva(s, g, False)
    shape = (s.B, 1, s.T, s.T + s.older) if options else (1, s.H, 1, s.T + s.older)
    hidden = torch.rand(shape, generator=g) > 0.6
    hidden[..., :1] = False
    bias = torch.randn(shape, generator=g).masked_fill(hidden, float("-inf"))
    return {**inputs, "counts": None if options else inputs["counts"], "bias": bias}


def _pooling(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    tokens = (s.B, s.K, s.T + s.older, s.D)
    return {**_normal(g, w=(s.B, s.K, -(-tokens[2] // s.c), s.D), k=tokens, v=tokens), "chunk": s.c}


def _sinks(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    q, k = (s.B, s.H, s.T, s.D), (s.B, s.K, s.T + s.older, s.D)
    seen = torch.rand(1 if options else s.B, s.T, k[2], generator=g) > 0.4
    seen[..., :1] = True
    return {**_normal(g, q=q, q_sink=q, k=k, v=k), "seen": seen, "sinks": s.m}


def _retrieval(s: Sizes, g: torch.Generator, options: bool) -> Arguments:
    """Keys in view at random, the first always; a mask of its own for every row, or one for all."""
    q, k = (s.B, s.H, s.T, s.D), (s.B, s.K, s.T + s.older, s.D)
    hidden = torch.rand(1 if options else s.B, s.T, k[2], generator=g) > 0.6
    hidden[..., :1] = False
    mask = torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
    memory = _memory(s, g, options)
    bank = {name: memory[name] for name in ("bank_k", "bank_v", "ids", "retrieved")}
    return {**_normal(g, q=q, k=k, v=k), "mask": mask, "q_memory": memory["q"], **bank, **_normal(g, bias=(s.H,))}


def _run_eva(*arguments: Any) -> Tensor:
    *tensors, chunk_bias, counts, bias, window, overlap = arguments
    options = {"counts_BT": counts, "chunk_bias_H": chunk_bias, "bias": bias, "window": window, "overlap": overlap}
    return eva_attention(*tensors, scale=SCALE, **options)


def _true_eva(*arguments: Any) -> Tensor:
    *tensors, chunk_bias, counts, bias, window, overlap = arguments
    window = window or max(tensors[1].shape[2], 1)
    return plain_eva.eva_attention(*tensors, bias, counts, chunk_bias, SCALE, window, window if overlap else 0)


def _true_sinks(q: Tensor, q_sink: Tensor, k: Tensor, v: Tensor, seen: Tensor, sinks: int) -> Tensor:
    """All scores of both queries; every key uses those of its own query."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    first = torch.arange(k.shape[2], device=k.device) < sinks
    logits = torch.where(first, q_sink @ k.transpose(-1, -2), q @ k.transpose(-1, -2)) * SCALE
    return logits.masked_fill(~seen[:, None], float("-inf")).softmax(-1) @ v


EVA_LEAVES = ("q", "k", "v", "chunk_k", "chunk_v", "chunk_bias")
OPERATIONS = {
    "local_attention": Operation(
        _local,
        lambda q, k, v, slopes: local_attention(q, k, v, scale=SCALE, slopes_H=slopes),
        lambda q, k, v, slopes: plain_memory.local_attention(q, k, v, slopes, SCALE),
        ("q", "k", "v"),
    ),
    "fuse_memory": Operation(
        _memory,
        lambda *tensors: fuse_memory(*tensors, scale=SCALE),
        lambda *tensors: plain_memory.fuse_memory(*tensors, SCALE),
        ("local", "q", "bank_k", "bank_v", "gate"),
        ("ids", "retrieved"),
    ),
    "chunk_topk": Operation(_search, chunk_topk, plain_search.chunk_topk),
    "eva_attention": Operation(_eva, _run_eva, _true_eva, EVA_LEAVES),
    "eva_attention with a bias": Operation(_eva_biased, _run_eva, _true_eva, (*EVA_LEAVES, "bias")),
    "eva_chunk_compress": Operation(
        _pooling,
        lambda w, k, v, chunk: eva_chunk_compress(w, torch.zeros_like(w), k, v, chunk=chunk, scale=SCALE),
        lambda w, k, v, chunk: plain_pooling.pool_chunks(w, k, v, chunk, SCALE, True)[1],
        ("w", "k", "v"),
    ),
    "pool_chunks": Operation(
        _pooling,
        lambda w, k, v, chunk: torch.cat(pool_chunks(w, k, v, chunk=chunk, scale=SCALE), -1),
        lambda w, k, v, chunk: torch.cat(plain_pooling.pool_chunks(w, k, v, chunk, SCALE, False), -1),
        ("w", "k", "v"),
    ),
    "retrieval_attention": Operation(
        _retrieval,
        lambda *tensors: retrieval_attention(Inputs(*tensors), scale=SCALE),
        lambda *tensors: plain_retrieval.retrieval_attention(Inputs(*tensors), SCALE),
        ("q", "k", "v", "q_memory", "bank_k", "bank_v", "bias"),
        ("ids", "retrieved"),
    ),
    "sink_attention": Operation(
        _sinks, lambda *arguments: sink_attention(*arguments, SCALE), _true_sinks, ("q", "q_sink", "k", "v")
    ),
}
