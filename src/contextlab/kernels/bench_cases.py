"""The cases that the kernels are measured on: every operation at sizes for a CPU, a GPU and a test, with its reference.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved, W tokens of a window or band.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from importlib import util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab.kernels import dispatch
from contextlab.kernels.bench import KernelCase, Run, Size
from contextlab.kernels.chunk_topk import chunk_topk, chunk_topk_flops
from contextlab.kernels.chunk_topk import reference as plain_search
from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_attention import ops as eva_ops
from contextlab.kernels.eva_attention import reference as plain_eva
from contextlab.kernels.eva_chunk_compress import eva_chunk_compress
from contextlab.kernels.eva_chunk_compress import ops as pooling_ops
from contextlab.kernels.eva_chunk_compress import reference as plain_pooling
from contextlab.kernels.joint_memory_attention import joint_memory_attention, local_attention, ops, reference
from contextlab.kernels.retrieval_attention import Inputs, retrieval_attention, retrieval_attention_flops
from contextlab.kernels.retrieval_attention import reference as plain_retrieval
from contextlab.kernels.sink_attention import reference as plain_sinks
from contextlab.kernels.sink_attention import sink_attention, sink_attention_flops

AT_ONCE = 32
MOST_SCORES = 2**30
SINKS = 4


def attention_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """Joint memory attention, forward and backward, with a full bank."""
    q, k, v, q_memory = _local_inputs(size, device)
    bank_k, bank_v = (
        torch.randn(1, size.n, size.K, size.c, size.D, device=device).to(size.bank_dtype).transpose(1, 2)
        for _ in range(2)
    )
    ids = torch.randint(size.n, (1, size.H, size.T, size.m), device=device)
    retrieved, gate = torch.ones_like(ids, dtype=torch.bool), torch.zeros(size.H, device=device, requires_grad=True)
    scale = size.D**-0.5
    memory = (bank_k, bank_v, ids, retrieved, gate)

    def run() -> Tensor:
        return joint_memory_attention(q, k, v, q_memory, *memory, scale=scale)

    def gathered() -> Tensor:
        return _gather_and_sdpa(q, k, v, q_memory, *memory, scale)

    retrieved_bytes = 2 * ids.numel() * size.c * size.D * bank_k.element_size()
    flops = ops.local_flops(q, k) + ops.memory_flops(bank_k, retrieved)
    traffic = retrieved_bytes + 5 * q.nbytes + k.nbytes + v.nbytes
    truth = functools.cache(lambda: _joint_truth(q, k, v, q_memory, *memory, scale))
    runs = {**_forms(run, device), "gather + SDPA": gathered}
    case = KernelCase("joint_memory_attention", size, runs, _relative_to(truth), traffic, flops)
    yield case
    yield _with_gradients(case, (q, k, v, q_memory, gate))


def local_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """The local part alone, against torch's fused attention."""
    q, k, v, _ = _local_inputs(size, device)
    scale = size.D**-0.5

    def run() -> Tensor:
        return local_attention(q, k, v, scale=scale)

    def sdpa() -> Tensor:
        return _sdpa(q, k, v, scale)

    truth = functools.cache(lambda: _local_truth(q, k, v, scale))
    runs = {**_forms(run, device), "SDPA": sdpa}
    traffic, flops = 2 * q.nbytes + k.nbytes + v.nbytes, ops.local_flops(q, k)

    case = KernelCase("local_attention", size, runs, _relative_to(truth), traffic, flops)
    yield case
    yield _with_gradients(case, (q, k, v))


def search_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """Chunk search over a full bank."""
    q = torch.randn(1, size.H, size.T, size.D, device=device).to(size.dtype)
    mean = torch.randn(1, size.K, size.n, size.D, device=device).to(size.dtype)
    count = torch.full((1,), size.n, device=device)
    group = size.H // size.K

    def by_matmul() -> Any:
        scores = q.view(1, size.K, -1, size.D) @ mean.transpose(-1, -2)
        best = scores.view(1, size.H, size.T, -1).topk(size.m, dim=-1)
        return best.indices, best.values.float()

    runs: dict[str, Run] = {
        **_forms(lambda: chunk_topk(q, mean, count, size.m), device),
        "matmul + topk": by_matmul,
    }
    if util.find_spec("faiss") is not None and device.type == "cpu":
        runs["faiss"] = lambda: chunk_topk(q, mean, count, size.m, index="faiss")

    def error(result: tuple[Tensor, Tensor]) -> float:
        ids, score = result
        own = torch.zeros_like(score, dtype=torch.float64)
        for span in _blocks(size.T):
            heads = torch.arange(size.H, device=device)[:, None, None] // group
            own[:, :, span] = (mean[0, heads, ids[0, :, span]].double() @ q[0, :, span, :, None].double())[None, ..., 0]
        best = torch.cat([plain_search.chunk_topk(q[:, :, s], mean, count, size.m)[1] for s in _blocks(size.T)], 2)
        if any(len(row.unique()) != len(row) for row in ids.flatten(0, 2)[:: max(1, ids[..., 0].numel() // 64)]):
            return float("inf")
        return max(_relative(own, best), _relative(score, best))

    traffic = q.nbytes + mean.nbytes + size.H * size.T * size.m * 12
    yield KernelCase("chunk_topk", size, runs, error, traffic, chunk_topk_flops(q, mean, count))


def eva_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """EVA attention over a whole sequence, beside fused attention over equally many pairs and over all tokens."""
    q, k, v, _ = _local_inputs(size, device)
    positions = torch.arange(size.T, device=device)
    chunk_k, chunk_v = (
        torch.randn(1, size.K, size.T // size.c, size.D, device=device).to(size.dtype).requires_grad_()
        for _ in range(2)
    )
    leaves, counts, scale = (q, k, v, chunk_k, chunk_v), (positions // size.c)[None], size.D**-0.5
    flops = eva_ops.flops(q, k, chunk_k, None, counts, size.W, 0)
    mean_pairs = flops // (4 * size.D * size.H * size.T)
    fewer_k, fewer_v = (x.detach()[:, :, :mean_pairs].contiguous() for x in (k, v))
    grouped = size.H != size.K

    def run() -> Tensor:
        return eva_attention(*leaves, scale=scale, counts_BT=counts, window=size.W)

    def on_as_many() -> Tensor:
        return F.scaled_dot_product_attention(q.detach(), fewer_k, fewer_v, scale=scale, enable_gqa=grouped)

    def over_all() -> Tensor:
        return _sdpa(q.detach(), k.detach(), v.detach(), scale)

    runs = _forms(run, device)
    if size.H * size.T**2 > MOST_SCORES:
        del runs["reference"]
    beside = {"SDPA, equal work": (on_as_many, flops), "SDPA, causal over all": (over_all, ops.local_flops(q, k))}
    truth = functools.cache(lambda: torch.cat([out.detach() for _, out in _eva_parts(leaves, counts, size)], 2))
    traffic = 2 * q.nbytes + 2 * k.nbytes + 2 * chunk_k.nbytes
    case = KernelCase("eva_attention", size, runs, _relative_to(truth), traffic, flops, beside)
    yield case

    def true_gradients(dout: Tensor) -> Tensor:
        exact = [x.detach().double().requires_grad_() for x in leaves]
        for span, out in _eva_parts(exact, counts, size):
            out.backward(dout[:, :, span].double())
        return torch.cat([x.grad.flatten() for x in exact if x.grad is not None])

    yield _with_gradients(case, leaves, true_gradients)


def compress_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """Chunk compression, without the computation of the means."""
    _, k, v, _ = _local_inputs(size, device)
    q_mean, k_mean = (
        torch.randn(1, size.K, -(-size.T // size.c), size.D, device=device).to(size.dtype).requires_grad_()
        for _ in range(2)
    )
    sizes, scale = (size.c, size.D**-0.5), size.D**-0.5

    def run() -> Tensor:
        return eva_chunk_compress(q_mean, k_mean, k, v, chunk=size.c, scale=scale)

    def exact(leaves: Sequence[Tensor]) -> Tensor:
        q_mean_, k_, v_ = leaves
        return plain_pooling.pool_chunks(q_mean_ + k_mean.detach().double(), k_, v_, *sizes, True)[1]

    def true_gradients(dout: Tensor) -> Tensor:
        leaves = [x.detach().double().requires_grad_() for x in (q_mean, k, v)]
        return torch.cat([x.flatten() for x in torch.autograd.grad(exact(leaves), leaves, dout.double())])

    truth = functools.cache(lambda: exact([x.detach().double() for x in (q_mean, k, v)]))
    traffic, flops = 2 * k.nbytes + 3 * q_mean.nbytes, pooling_ops.flops(k, True)
    case = KernelCase("eva_chunk_compress", size, _forms(run, device), _relative_to(truth), traffic, flops)
    yield case
    yield _with_gradients(case, (q_mean, k, v), true_gradients)


def sink_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """Sink attention of the last T queries of a full cache: each sees the first 4 keys and the last W; both ways."""
    keys = size.W + size.T
    shapes = ((1, size.H, size.T, size.D),) * 2 + ((1, size.K, keys, size.D),) * 2
    q, q_sink, k, v = (torch.randn(shape, device=device).to(size.dtype).requires_grad_() for shape in shapes)
    key = torch.arange(keys, device=device)
    distance = key[-size.T :, None] - key
    visible = (((distance >= 0) & (distance < size.W)) | (key < SINKS))[None]
    inputs, scale = (q, q_sink, k, v, visible, SINKS), size.D**-0.5

    def run() -> Tensor:
        return sink_attention(*inputs, scale)

    def truth() -> Tensor:
        exact_q, exact_q_sink, exact_k, exact_v = (x.detach().double() for x in (q, q_sink, k, v))
        return plain_sinks.sink_attention(exact_q, exact_q_sink, exact_k, exact_v, visible, SINKS, scale)

    traffic, flops = 3 * q.nbytes + 2 * k.nbytes, sink_attention_flops(q, q_sink, k, v, visible)
    case = KernelCase("sink_attention", size, _forms(run, device), _relative_to(functools.cache(truth)), traffic, flops)
    yield case
    yield _with_gradients(case, (q, q_sink, k, v))


def retrieval_cases(size: Size, device: torch.device) -> Iterator[KernelCase]:
    """W tokens after T queries in view, and chunks of a full bank in the same softmax, forward and backward."""
    q, k_new, v_new, q_memory = _local_inputs(size, device)
    older = (torch.randn(1, size.K, size.W, size.D, device=device).to(size.dtype) for _ in range(2))
    k, v = (torch.cat((x, new.detach()), dim=2).requires_grad_() for x, new in zip(older, (k_new, v_new), strict=True))
    bank_k, bank_v = (
        torch.randn(1, size.K, size.n, size.c, size.D, device=device).to(size.bank_dtype) for _ in range(2)
    )
    ids = torch.randint(size.n, (1, size.H, size.T, size.m), device=device)
    retrieved, bias = torch.ones_like(ids, dtype=torch.bool), torch.zeros(size.H, device=device, requires_grad=True)
    key = torch.arange(size.W + size.T, device=device)
    mask = torch.zeros(1, size.T, len(key), device=device, dtype=size.dtype)
    mask.masked_fill_(key > key[size.W :, None], float("-inf"))
    inputs = Inputs(q, k, v, mask, q_memory, bank_k, bank_v, ids, retrieved, bias)
    scale = size.D**-0.5

    def run() -> Tensor:
        return retrieval_attention(inputs, scale=scale)

    @functools.cache
    def truth() -> Tensor:
        exact = Inputs(*(x.detach().double() if x.is_floating_point() else x for x in inputs))
        return plain_retrieval.retrieval_attention(exact, scale)

    flops = retrieval_attention_flops(*inputs)
    traffic = 2 * ids.numel() * size.c * size.D * bank_k.element_size() + 4 * q.nbytes + k.nbytes + v.nbytes
    case = KernelCase("retrieval_attention", size, _forms(run, device), _relative_to(truth), traffic, flops)
    yield case
    yield _with_gradients(case, (q, k, v, q_memory, bias))


CASES: dict[str, Callable[[Size, torch.device], Iterator[KernelCase]]] = {
    "joint_memory_attention": attention_cases,
    "local_attention": local_cases,
    "chunk_topk": search_cases,
    "eva_attention": eva_cases,
    "eva_chunk_compress": compress_cases,
    "sink_attention": sink_cases,
    "retrieval_attention": retrieval_cases,
}
_BF16: dict[str, Any] = {"dtype": torch.bfloat16, "bank_dtype": torch.bfloat16}
SIZES: dict[str, dict[str, Sequence[Size]]] = {
    "toy": dict.fromkeys(CASES, (Size(H=2, K=1, T=9, D=16, n=40, m=3, W=4),)),
    "cpu": {
        "joint_memory_attention": (Size(H=16, K=16, T=256, D=64, n=16384, bank_dtype=torch.float16),),
        "local_attention": (Size(H=16, K=16, T=512, D=64),),
        "chunk_topk": (Size(H=16, K=16, T=256, D=64, n=16384),),
        "eva_attention": (Size(H=4, K=4, T=2048, D=64, c=16, W=256),),
        "eva_chunk_compress": (Size(H=16, K=16, T=8192, D=64, c=16),),
        "sink_attention": (Size(H=12, K=12, T=256, D=64, W=1020), Size(H=9, K=3, T=1, D=64, W=1020)),
        "retrieval_attention": (
            Size(H=9, K=3, T=1024, D=64, W=1028, n=1536),
            Size(H=9, K=3, T=1, D=64, W=1028, n=1536),
        ),
    },
    "cuda": {
        "joint_memory_attention": (
            Size(H=16, K=16, T=1024, D=64, n=16384, **_BF16),
            Size(H=32, K=8, T=1024, D=128, n=16384, **_BF16),
            Size(H=16, K=16, T=1, D=64, n=16384, **_BF16),
        ),
        "local_attention": (Size(H=16, K=16, T=4096, D=128, **_BF16), Size(H=16, K=16, T=1024, D=64, **_BF16)),
        "chunk_topk": (
            Size(H=16, K=16, T=1024, D=64, n=16384, **_BF16),
            Size(H=16, K=16, T=1024, D=64, n=16384),
            Size(H=16, K=16, T=1, D=64, n=16384, **_BF16),
        ),
        "eva_attention": (
            Size(H=16, K=16, T=65536, D=64, c=64, W=512, **_BF16),
            Size(H=32, K=8, T=16384, D=128, c=16, W=1024, **_BF16),
            Size(H=16, K=16, T=4096, D=64, c=64, W=512, **_BF16),
        ),
        "eva_chunk_compress": (
            Size(H=16, K=16, T=65536, D=64, c=64, **_BF16),
            Size(H=32, K=8, T=65536, D=128, c=16, **_BF16),
        ),
        "sink_attention": tuple(Size(H=32, K=8, T=length, D=128, W=1020, **_BF16) for length in (256, 1)),
        "retrieval_attention": tuple(
            Size(H=32, K=8, T=length, D=128, W=1028, n=16384, **_BF16) for length in (1024, 1)
        ),
    },
}


def _forms(run: Run, device: torch.device) -> dict[str, Run]:
    return {"reference": run, ("triton" if device.type == "cuda" else "torch"): run}


def _local_inputs(size: Size, device: torch.device) -> Iterator[Tensor]:
    for heads in (size.H, size.K, size.K, size.H):
        yield torch.randn(1, heads, size.T, size.D, device=device).to(size.dtype).requires_grad_()


def _sdpa(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float) -> Tensor:
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    return F.scaled_dot_product_attention(q_BHTD, k_BKTD, v_BKTD, is_causal=True, scale=scale, enable_gqa=grouped)


def _gather_and_sdpa(
    q: Tensor, k: Tensor, v: Tensor, q_memory: Tensor, bank_k: Tensor, bank_v: Tensor, ids: Tensor, *rest: Any
) -> Tensor:
    """The same operation with torch's own parts: a copy of the retrieved tokens and two calls of fused attention."""
    _, gate, scale = rest
    retrieved_k, retrieved_v = (reference.gather(x, ids).to(q.dtype).flatten(0, 2)[:, None] for x in (bank_k, bank_v))
    q_flat = q_memory.flatten(0, 2)[:, None, None]
    memory = F.scaled_dot_product_attention(q_flat, retrieved_k, retrieved_v, scale=scale).view_as(q)
    return torch.lerp(_sdpa(q, k, v, scale), memory, torch.sigmoid(gate)[:, None, None].to(q.dtype))


def _with_gradients(
    case: KernelCase, leaves: Sequence[Tensor], truth: Callable[[Tensor], Tensor] | None = None
) -> KernelCase:
    """The same case, forward and backward; the result is the concatenation of all gradients.

    `truth` computes them from the output's gradient; the reference does when it is None.
    """
    dout = torch.randn_like(leaves[0])

    def gradients_of(forward: Run) -> Run:
        @torch.enable_grad()
        def both() -> Tensor:
            gradients = torch.autograd.grad(forward(), leaves, dout)
            return torch.cat([x.flatten().to(dout.dtype) for x in gradients])

        return both

    runs = {name: gradients_of(forward) for name, forward in case.runs.items()}

    @functools.cache
    @torch.enable_grad()
    def expected() -> Tensor:
        with dispatch.forced("reference"):
            result: Tensor = runs["reference"]() if truth is None else truth(dout)
            return result

    def error(result: Tensor) -> float:
        return _relative(result, expected())

    return KernelCase(f"{case.op} with gradients", case.size, runs, error, 3 * case.bytes, 3 * case.flops)


def _eva_parts(leaves: Sequence[Tensor], counts: Tensor, size: Size) -> Iterator[tuple[slice, Tensor]]:
    """The reference in float64, window by window."""
    q, k, v, chunk_k, chunk_v = (x.double() for x in leaves)
    for begin in range(0, size.T, size.W):
        span = slice(begin, min(begin + size.W, size.T))
        chunks = int(counts[0, span.stop - 1])
        visible = (q[:, :, span], k[:, :, span], v[:, :, span], chunk_k[:, :, :chunks], chunk_v[:, :, :chunks])
        yield span, plain_eva.eva_attention(*visible, None, counts[:, span], None, size.D**-0.5, size.W, 0)


def _local_truth(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The reference in float64, some queries at a time."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    parts = [
        reference.local_attention(q[:, :, s], k[:, :, : s.stop], v[:, :, : s.stop], None, scale)
        for s in _blocks(q.shape[2])
    ]
    return torch.cat(parts, 2)


def _joint_truth(
    q: Tensor, k: Tensor, v: Tensor, q_memory: Tensor, bank_k: Tensor, bank_v: Tensor, *rest: Any
) -> Tensor:
    ids, retrieved, gate, scale = rest
    local = _local_truth(q, k, v, scale)
    q_memory, gate = q_memory.detach().double(), gate.detach().double()
    parts = [
        reference.fuse_memory(
            local[:, :, s], q_memory[:, :, s], bank_k, bank_v, ids[:, :, s], retrieved[:, :, s], gate, scale
        )
        for s in _blocks(q.shape[2])
    ]
    return torch.cat(parts, 2)


def _relative_to(truth: Callable[[], Tensor]) -> Callable[[Tensor], float]:
    return lambda result: _relative(result, truth())


def _relative(result: Tensor, expected: Tensor) -> float:
    result, expected = result.detach().double(), expected.detach().double()
    error = (result - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()
    return float(error) if error.isfinite() else float("inf")


def _blocks(length: int) -> Iterator[slice]:
    return (slice(begin, min(begin + AT_ONCE, length)) for begin in range(0, length, AT_ONCE))
