"""The law of threads, for every method.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from contextlab.method import AnyMethod, State
from contextlab.testing.parts import LENGTH, Broken, texts_for

THREADS = 4
PARTS = (100, 60, LENGTH - 160)
CANDIDATES = ([5, 6, 7], [8])


def threads(method: AnyMethod) -> None:
    """Threads that share a method have bitwise the numbers of a single thread, and the model is what it was."""
    text = texts_for(method, THREADS)
    model, setting = method.backbone.model, method.backbone.config._attn_implementation
    with torch.no_grad():
        before = model(input_ids=text[:, :20], use_cache=False).logits
    alone = [_numbers(method, text[row : row + 1]) for row in range(THREADS)]
    together = in_threads(method, text)
    if any(not torch.equal(a, b) for rows in zip(alone, together, strict=True) for a, b in zip(*rows, strict=True)):
        raise Broken(f"{THREADS} threads have other numbers than one")
    if method.backbone.config._attn_implementation != setting:
        raise Broken(f"the model's attention is '{method.backbone.config._attn_implementation}' afterwards")
    with torch.no_grad():
        if not torch.equal(before, model(input_ids=text[:, :20], use_cache=False).logits):
            raise Broken("the model computes other numbers afterwards")


def in_threads(method: AnyMethod, text_BT: Tensor) -> list[list[Tensor]]:
    """Log-probabilities of every row, each read by a separate thread, in parts that all threads begin together."""
    barrier = threading.Barrier(len(text_BT))
    with ThreadPoolExecutor(len(text_BT)) as pool:
        futures = [pool.submit(_numbers, method, text_BT[row : row + 1], barrier) for row in range(len(text_BT))]
    return [future.result() for future in sorted(futures, key=_waited_in_vain)]


def _waited_in_vain(future: Future[list[Tensor]]) -> bool:
    """Whether a thread failed only because another one did, which is said first."""
    return isinstance(future.exception(), threading.BrokenBarrierError)


def _numbers(method: AnyMethod, text_1T: Tensor, barrier: threading.Barrier | None = None) -> list[Tensor]:
    state: State = method.start()
    numbers = []
    try:
        for part in text_1T.split(PARTS, dim=1):
            if barrier is not None:
                barrier.wait()
            state, logprobs = method.read(state, part)
            assert logprobs is not None
            numbers += [logprobs.detach(), method.score(state, CANDIDATES).detach()]
    except BaseException:
        if barrier is not None:
            barrier.abort()
        raise
    return numbers
