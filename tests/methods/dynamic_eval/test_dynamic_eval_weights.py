from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from contextlab import backbone as backbones
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.methods.dynamic_eval import DynamicEval, gradient_statistics

FAMILIES = ["tiny-llama", "tiny-gpt2"]


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def text(length: int, seed: int = 0) -> Any:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(seed))


def test_gradients_equal_backward_and_leave_no_trace(backbone: Backbone) -> None:
    tokens = text(20)
    for parameter in backbone.model.parameters():
        parameter.requires_grad_(False)
    (statistics,) = [gradient_statistics(backbone, tokens.tolist())]
    assert not any(p.requires_grad or p.grad is not None for p in backbone.model.parameters())
    model = backbones.load(backbone.name).model.requires_grad_()
    logits = model(tokens).logits[0, :-1]
    nn.functional.cross_entropy(logits, tokens[0, 1:]).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(statistics[name], parameter.grad.abs(), atol=1e-5, rtol=1e-3)


def test_statistics_are_root_mean_squares_over_segments(backbone: Backbone) -> None:
    first, second = text(20).tolist(), text(30, seed=1).tolist()
    of_first, of_second, both = (gradient_statistics(backbone, part) for part in (first, second, first + second))
    for name, ms in both.items():
        torch.testing.assert_close(ms, ((of_first[name] ** 2 + of_second[name] ** 2) / 2).sqrt())


def test_an_inference_only_backbone_is_refused() -> None:
    with torch.inference_mode():
        frozen = backbones.load("tiny-llama")
    with pytest.raises(UserError, match="quantised or made for inference only"):
        DynamicEval(frozen)


def test_a_quantised_backbone_is_refused(backbone: Backbone) -> None:
    backbone.model.register_buffer("qweight", torch.zeros(3, dtype=torch.int32))
    DynamicEval(backbone)
    backbone.model.hf_quantizer = object()
    with pytest.raises(UserError, match="quantised or made for inference only"):
        DynamicEval(backbone)


def test_integer_weights_are_refused(backbone: Backbone) -> None:
    backbone.model.packed = nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(UserError, match="quantised or made for inference only"):
        DynamicEval(backbone)


def test_segments_without_a_next_token_are_an_error(backbone: Backbone) -> None:
    with pytest.raises(UserError, match="at least 2"):
        gradient_statistics(backbone, [[5]])
