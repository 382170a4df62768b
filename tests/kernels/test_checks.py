from __future__ import annotations

import pytest
import torch
from kernel_cases import case

from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.joint_memory_attention import joint_memory_attention, local_attention

NAMES = ("q_BHTD", "k_BKSD", "v_BKSD", "q_memory", "k_BKncD", "v_BKncD", "gate_H", "ids_BHTm", "found_BHTm")


def call(**changed):
    given = case(3, 5, heads=4, kv_heads=2)
    arguments = dict(zip(NAMES, (*given.leaves, given.ids, given.found), strict=True))
    for name, change in changed.items():
        arguments[name] = change(arguments[name])
    *tensors, gate, ids, found = arguments.values()
    return joint_memory_attention(*tensors, ids, found, gate, scale=1.0)


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
        ("found_BHTm", lambda x: x.long(), TypeError, "found_BHTm is torch.int64: give it as torch.bool."),
        ("gate_H", lambda x: x.to("meta"), ValueError, "gate_H is on meta and local_BHTD on cpu: move one of them."),
    ],
)
def test_a_mistake_is_one_sentence(name, change, error, sentence):
    call()
    with pytest.raises(error, match=sentence) as raised:
        call(**{name: change})
    assert str(raised.value).endswith(".")


def test_heads_and_lengths_must_fit():
    q = torch.randn(1, 3, 4, 8)
    with pytest.raises(ValueError, match=r"3 query heads cannot share 2 key heads: give a multiple."):
        local_attention(q, *[torch.randn(1, 2, 4, 8)] * 2, scale=1.0)
    with pytest.raises(ValueError, match=r"There are 4 queries but 3 keys: give every query its own key."):
        local_attention(q, *[torch.randn(1, 1, 3, 8)] * 2, scale=1.0)
    with pytest.raises(ValueError, match=r"take = -1 chunks cannot be found: give 0 or more."):
        chunk_topk(q, torch.randn(1, 3, 4, 8), torch.tensor([1]), -1)
    with pytest.raises(TypeError, match=r"count_B is torch.float32: give it as torch.int64."):
        chunk_topk(q, torch.randn(1, 3, 4, 8), torch.tensor([1.0]), 1)
