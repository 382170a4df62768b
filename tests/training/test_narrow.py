"""Products in bfloat16: those of linear layers and no others, and nothing is left behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy_corpus import tiny

from contextlab.training.narrow import narrow_products


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-opt"])
def test_a_model_computes_nearly_the_same_and_then_again_exactly(name: str) -> None:
    model = tiny(name).model
    tokens = torch.arange(20)[None]
    before = model(tokens).logits
    with narrow_products([model]):
        narrow = model(tokens).logits
    assert narrow.dtype == torch.float32
    assert not torch.equal(narrow, before)
    torch.testing.assert_close(narrow, before, atol=0.1, rtol=0.1)
    assert torch.equal(model(tokens).logits, before)


def test_weights_and_gradients_stay_wide() -> None:
    layer = nn.Linear(4, 3)
    with narrow_products([nn.Sequential(layer), layer]):
        y = layer(torch.randn(2, 4, requires_grad=True))
        y.sum().backward()
    assert (y.dtype, layer.weight.dtype, layer.weight.grad.dtype) == (torch.float32,) * 3
    assert torch.equal(y.detach(), y.detach().bfloat16().float())


def test_an_error_leaves_nothing_behind() -> None:
    layer = nn.Linear(4, 3)
    with pytest.raises(RuntimeError), narrow_products([layer]):
        layer(torch.zeros(2, 5))
    assert "forward" not in vars(layer)


def test_what_is_no_linear_layer_computes_as_it_did() -> None:
    norm = nn.LayerNorm(4)
    x = torch.randn(2, 4)
    before = norm(x)
    with narrow_products([norm]):
        assert torch.equal(norm(x), before)
        assert torch.equal(x @ x.T, x @ x.T)
        assert not torch.is_autocast_enabled("cpu")
