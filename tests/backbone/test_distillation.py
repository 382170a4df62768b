"""The cross-entropy to a teacher's most probable tokens.

Legend: N places, V vocabulary, k tokens kept.
"""

from __future__ import annotations

import pytest
import torch

from contextlab.backbone.distillation import cross_entropy


@pytest.mark.parametrize("k", [1, 5, 40])
def test_the_cross_entropy_is_least_where_the_distributions_agree(k: int) -> None:
    random = torch.Generator().manual_seed(k)
    teacher_NV = torch.randn(7, 40, generator=random, dtype=torch.float64).log_softmax(-1)
    top = teacher_NV.topk(k)
    least = cross_entropy(top.values, top.values).sum()
    for scale in (0.01, 0.3, 2.0):
        moved = (teacher_NV + scale * torch.randn(7, 40, generator=random, dtype=torch.float64)).log_softmax(-1)
        assert cross_entropy(moved.gather(1, top.indices), top.values).sum() > least


def test_with_all_tokens_kept_it_is_the_cross_entropy_of_the_distributions() -> None:
    teacher, student = (torch.randn(3, 257).log_softmax(-1) for _ in range(2))
    expected = -(teacher.exp() * student).sum()
    torch.testing.assert_close(cross_entropy(student, teacher).sum(), expected, atol=1e-3, rtol=1e-4)
