"""One part of a softmax in plain torch."""

from __future__ import annotations

import pytest
import torch

from contextlab.kernels import part


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_narrow_queries_and_keys_are_not_rounded(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (4 * torch.randn(1, heads, length, 32) for heads, length in ((4, 9), (2, 40), (2, 40)))
    q, k, v = (x.to(dtype) for x in (q, k, v))
    out_BHTD, lse_BHT = part.tiled_forward(q, k, v, None, 0.2, causal=False)
    wide_k, wide_v = (x.double().repeat_interleave(2, dim=1) for x in (k, v))
    logits = q.double() @ wide_k.mT * 0.2
    assert logits.abs().max() > 16
    torch.testing.assert_close(lse_BHT.double(), logits.logsumexp(-1), atol=1e-4, rtol=1e-5)
    # The weights are rounded once to the type of the values.
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(out_BHTD.double(), logits.softmax(-1) @ wide_v, atol=16 * step, rtol=2 * step)
