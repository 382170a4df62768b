from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.methods.full import Full
from contextlab.methods.parts.adaptable import Adaptable, logprobs_within

FAMILIES = ["tiny-llama", "tiny-gpt2"]


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def text(length: int, seed: int = 0) -> Any:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(seed))


def read(backbone: Backbone, tokens: Tensor) -> Any:
    method = Full(backbone)
    return method.read(method.start(), tokens)[1]


def test_trained_weights_are_the_backbones_own_memory(backbone: Backbone) -> None:
    own = dict(backbone.model.named_parameters())
    adaptable = Adaptable(backbone)
    assert adaptable.names == list(own)
    for name, weights in zip(adaptable.names, adaptable.trained, strict=True):
        assert weights.data_ptr() == own[name].data_ptr()


def test_running_with_other_weights_equals_loading_them_and_leaves_no_trace(backbone: Backbone) -> None:
    tokens, before = text(40), backbones.weights_digest(backbone.model)
    plain = read(backbone, tokens)
    adaptable = Adaptable(backbone)
    other = [w + 0.05 * torch.randn_like(w) for w in adaptable.trained]
    logprobs = adaptable.run(other, lambda: read(backbone, tokens))
    assert backbones.weights_digest(backbone.model) == before
    assert torch.equal(read(backbone, tokens), plain)
    assert not torch.allclose(logprobs, plain, atol=1e-2)
    changed = backbones.load(backbone.name)
    with torch.no_grad():
        for name, w in zip(adaptable.names, other, strict=True):
            changed.model.get_parameter(name).copy_(w)
    # The prediction of the first token comes from BOS, which a backbone computes once.
    assert torch.equal(logprobs[:, 1:], read(changed, tokens)[:, 1:])


def test_weights_return_when_a_run_fails(backbone: Backbone) -> None:
    before, adaptable = backbones.weights_digest(backbone.model), Adaptable(backbone)
    with pytest.raises(ZeroDivisionError):
        adaptable.run([w * 2 for w in adaptable.trained], lambda: 1 / 0)
    assert backbones.weights_digest(backbone.model) == before


def test_a_pattern_chooses_what_learns(backbone: Backbone) -> None:
    chosen = Adaptable(backbone, "*.mlp.*")
    assert chosen.names
    assert all(".mlp." in name for name in chosen.names)
    assert len(chosen.names) < len(Adaptable(backbone).names)
    with pytest.raises(UserError, match=r"parameters=\*\.lora\.\* matches nothing"):
        Adaptable(backbone, "*.lora.*")


def test_narrow_weights_learn_in_float32() -> None:
    narrow = backbones.load("tiny-llama", dtype="bfloat16")
    adaptable = Adaptable(narrow)
    assert {w.dtype for w in adaptable.trained} == {torch.float32}
    tokens = text(30)
    same = adaptable.run(adaptable.trained, lambda: read(narrow, tokens))
    assert torch.equal(same, read(narrow, tokens))


def test_tokens_within_a_text_are_predicted_from_those_before(backbone: Backbone) -> None:
    tokens = text(30)
    expected = read(backbone, tokens)[:, 1:]
    torch.testing.assert_close(logprobs_within(backbone, tokens), expected, atol=1e-5, rtol=1e-5)
    scored = torch.zeros(29, dtype=torch.bool)
    scored[[3, 17, 28]] = True
    some = logprobs_within(backbone, tokens, scored)
    torch.testing.assert_close(some, expected[:, scored], atol=1e-5, rtol=1e-5)
