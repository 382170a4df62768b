from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import case
from torch import Tensor

from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_chunk_compress import chunk_means, eva_chunk_compress, pool_chunks
from contextlab.kernels.joint_memory_attention import joint_memory_attention, local_attention

NAMES = ("q_BHTD", "k_BKSD", "v_BKSD", "q_memory", "k_BKncD", "v_BKncD", "gate_H", "ids_BHTm", "retrieved_BHTm")


def call(**changed: Any) -> Any:
    example = case(3, 5, heads=4, kv_heads=2)
    arguments = dict(zip(NAMES, (*example.leaves, example.ids, example.retrieved), strict=True))
    for name, change in changed.items():
        arguments[name] = change(arguments[name])
    *tensors, gate, ids, retrieved = arguments.values()
    return joint_memory_attention(*tensors, ids, retrieved, gate, scale=1.0)


@pytest.mark.parametrize(
    ("name", "change", "error", "sentence"),
    [
        ("q_BHTD", lambda x: x[0], ValueError, "q_BHTD has 3 dimensions: give it 4, one for each letter."),
        ("k_BKSD", lambda x: x[..., 1:], ValueError, "k_BKSD has D = 15 where D = 16 before: make them equal."),
        ("v_BKSD", lambda x: x[:, :, 1:], ValueError, "v_BKSD has S = 4 where S = 5 before: make them equal."),
        ("v_BKSD", lambda x: x.double(), TypeError, "v_BKSD is torch.float64 beside q_BHTD of torch.float32"),
        ("q_memory", lambda x: x.half(), TypeError, "q_BHTD is torch.float16 beside local_BHTD of torch.float32"),
        ("v_BKncD", lambda x: x.half(), TypeError, "v_BKncD is torch.float16 beside k_BKncD of torch.float32"),
        ("gate_H", lambda x: x[:3], ValueError, "gate_H has H = 3 where H = 4 before: make them equal."),
        ("gate_H", lambda x: x.long(), TypeError, "gate_H is torch.int64 .* use one float type."),
        ("ids_BHTm", lambda x: x.int(), TypeError, "ids_BHTm is torch.int32: give it as torch.int64."),
        ("retrieved_BHTm", lambda x: x.long(), TypeError, "retrieved_BHTm is torch.int64: give it as torch.bool."),
        ("gate_H", lambda x: x.to("meta"), ValueError, "gate_H is on meta and local_BHTD on cpu: move one of them."),
    ],
)
def test_a_mistake_is_one_sentence(name: str, change: Callable[..., Any], error: type[Any], sentence: str) -> None:
    call()
    with pytest.raises(error, match=sentence) as raised:
        call(**{name: change})
    assert str(raised.value).endswith(".")


def test_heads_and_lengths_must_fit() -> None:
    q = torch.randn(1, 3, 4, 8)
    with pytest.raises(ValueError, match=r"3 query heads cannot share 2 key heads: give a multiple."):
        local_attention(q, *[torch.randn(1, 2, 4, 8)] * 2, scale=1.0)
    with pytest.raises(ValueError, match=r"There are 4 queries but 3 keys: give every query its own key."):
        local_attention(q, *[torch.randn(1, 1, 3, 8)] * 2, scale=1.0)
    with pytest.raises(ValueError, match=r"take = -1 chunks cannot be retrieved: give 0 or more."):
        chunk_topk(q, torch.randn(1, 3, 4, 8), torch.tensor([1]), -1)
    with pytest.raises(TypeError, match=r"count_B is torch.float32: give it as torch.int64."):
        chunk_topk(q, torch.randn(1, 3, 4, 8), torch.tensor([1.0]), 1)


def attend(**changed: Any) -> Any:
    shapes = {"q_BHTD": (1, 4, 3, 8), "k_BKSD": (1, 2, 5, 8), "v_BKSD": (1, 2, 5, 8)}
    shapes |= {"chunk_k_BKnD": (1, 2, 6, 8), "chunk_v_BKnD": (1, 2, 6, 8)}
    arguments = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return eva_attention(**{**arguments, "scale": 1.0, **changed})


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"q_BHTD": torch.zeros(1, 3, 3, 8)}, ValueError, "3 query heads cannot share 2 key heads: give a multiple."),
        ({"q_BHTD": torch.zeros(1, 4, 6, 8)}, ValueError, "There are 6 queries but 5 keys: give every query its own"),
        ({"chunk_v_BKnD": torch.zeros(1, 2, 5, 8)}, ValueError, "chunk_v_BKnD has n = 5 where n = 6 before"),
        ({"chunk_k_BKnD": torch.zeros(1, 2, 6, 8).half()}, TypeError, "chunk_k_BKnD is torch.float16 beside q_BHTD"),
        ({"counts_BT": torch.zeros(1, 3)}, TypeError, "counts_BT is torch.float32: give it as torch.int64."),
        ({"counts_BT": torch.zeros(1, 2).long()}, ValueError, "counts_BT has T = 2 where T = 3 before"),
        ({"chunk_bias_H": torch.zeros(2)}, ValueError, "chunk_bias_H has H = 2 where H = 4 before"),
        ({"chunk_bias_H": torch.zeros(4).long()}, TypeError, "chunk_bias_H is torch.int64 .* use one float type."),
        ({"bias": torch.zeros(2, 5)}, ValueError, r"A bias of \[2, 5\] does not broadcast to BHTS = \[1, 4, 3, 5\]"),
        ({"bias": torch.zeros(1, 1, 1, 3, 5)}, ValueError, "does not broadcast to BHTS"),
        ({"bias": torch.zeros(3, 5).bool()}, TypeError, "bias is torch.bool .* use one float type."),
        ({"bias": torch.zeros(3, 5), "window": 2}, ValueError, "give either bias or window."),
        ({"window": 0}, ValueError, "A window of 0 tokens holds no query: give 1 or more."),
        ({"overlap": True}, ValueError, "Nothing overlaps without windows: give window= too."),
    ],
)
def test_a_mistake_in_eva_attention_is_one_sentence(changed: dict[str, Any], error: type[Any], sentence: str) -> None:
    assert attend().shape == (1, 4, 3, 8)
    with pytest.raises(error, match=sentence) as raised:
        attend(**changed)
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"v_BKTD": torch.zeros(1, 2, 9, 8)}, ValueError, "v_BKTD has T = 9 where T = 10 before: make them equal."),
        ({"k_BKTD": torch.zeros(1, 2, 10, 8).half()}, TypeError, "v_BKTD is torch.float32 beside k_BKTD of torch.f"),
        ({"w_BKnD": torch.zeros(1, 2, 2, 8)}, ValueError, "10 tokens make 3 chunks of 4, not 2: give one mean each."),
        ({"chunk": 0}, ValueError, "A chunk of 0 tokens holds none: give 1 or more."),
    ],
)
def test_a_mistake_in_pooling_is_one_sentence(
    changed: dict[str, Tensor | int], error: type[Any], sentence: str
) -> None:
    inputs = {"k_BKTD": torch.zeros(1, 2, 10, 8), "v_BKTD": torch.zeros(1, 2, 10, 8), "chunk": 4, "scale": 1.0}
    w = torch.zeros(1, 2, 3, 8)
    pool_chunks(w, **inputs)
    with pytest.raises(error, match=sentence) as raised:
        pool_chunks(**{"w_BKnD": w, **inputs, **changed})
    assert str(raised.value).endswith(".")
    with pytest.raises(ValueError, match="noise_BKnD has n = 4 where n = 3 before"):
        eva_chunk_compress(w, w, **inputs, noise_BKnD=torch.zeros(1, 2, 4, 8))


@pytest.mark.parametrize(
    ("chunk", "kv_heads", "sentence"),
    [
        (0, 2, "A chunk of 0 tokens holds none: give 1 or more."),
        (3, 3, "4 query heads cannot share 3 key heads: give a multiple."),
        (3, 0, "4 query heads cannot share 0 key heads: give a multiple."),
    ],
)
def test_a_mistake_in_means_is_one_sentence(chunk: int, kv_heads: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        chunk_means(torch.zeros(1, 4, 6, 8), chunk, kv_heads)
    with pytest.raises(ValueError, match="x_BHTD has 3 dimensions: give it 4"):
        chunk_means(torch.zeros(4, 6, 8), 3, 2)
