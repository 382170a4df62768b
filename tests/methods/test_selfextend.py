"""SelfExtend against its definition: two scores for every pair of tokens, and one softmax over those that count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import PARTS, broken
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.attention import per_head, rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.full import Full
from contextlab.methods.selfextend import SelfExtend, SelfExtendConfig
from contextlab.testing import laws


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(length: int) -> Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))


def read(method: Any, tokens: Tensor, *cuts: int) -> Tensor:
    state, parts = method.start(), []
    for part in tokens.tensor_split(cuts, dim=1):
        state, logprobs = method.read(state, part)
        parts.append(logprobs)
    return torch.cat(parts, dim=1)


def defined(backbone: Backbone, tokens: Tensor, G: int, W: int) -> Tensor:
    """Log-probabilities from the second token on, from the whole matrix of scores."""
    i = torch.arange(tokens.shape[1])
    distance = i[:, None] - i

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        at = lambda x, position: rotate(x, per_head(backbone, position[None]))  # noqa: E731
        near = at(q, i) @ at(k, i).mT
        far = at(q, i // G + W - W // G) @ at(k, i // G).mT
        scores = scale * torch.where(distance < W, near, far)
        return scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ v

    with torch.no_grad():
        hidden = backbone.forward(tokens, i[None], attend)
        return backbone.logprobs(hidden[:, :-1], tokens[:, 1:])


@settings(max_examples=20, deadline=None)
@given(G=st.integers(1, 9), W=st.integers(1, 60), cuts=st.lists(st.integers(0, 200), max_size=3).map(sorted))
def test_scores_are_those_of_the_definition(llama: Backbone, G: int, W: int, cuts: list[int]) -> None:
    method = SelfExtend(llama, SelfExtendConfig(G=G, W=W))
    tokens = text(min(200, method.local.segment))
    torch.testing.assert_close(read(method, tokens, *cuts)[:, 1:], defined(llama, tokens, G, W), atol=1e-5, rtol=1e-5)


def test_it_is_full_attention_as_long_as_all_is_near(llama: Backbone) -> None:
    method, tokens = SelfExtend(llama), text(100)
    assert torch.equal(read(method, tokens[:, :64]), read(Full(llama), tokens[:, :64]))
    assert not torch.allclose(read(method, tokens), read(Full(llama), tokens))


def test_groups_of_one_token_are_full_attention(llama: Backbone) -> None:
    method, tokens = SelfExtend(llama, SelfExtendConfig(G=1, W=10)), text(128)
    assert method.capabilities.max_context == 128
    torch.testing.assert_close(read(method, tokens), read(Full(llama), tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("G", "W"), [(8, 64), (4, 20), (3, 20), (1, 128), (16, 1)])
def test_positions_fill_the_models_and_no_more(llama: Backbone, G: int, W: int) -> None:
    length = SelfExtend(llama, SelfExtendConfig(G=G, W=W)).capabilities.max_context
    assert length is not None
    shift = W - W // G
    assert (length - 1) // G + shift == llama.max_positions - 1
    assert length // G + shift == llama.max_positions
    assert W % G or length == (llama.max_positions - W) * G + W


@pytest.mark.parametrize("around", PARTS)
def test_short_groups_keep_the_laws(around: bool) -> None:
    assert broken(lambda b: SelfExtend(b, SelfExtendConfig(G=4, W=20)), "tiny-llama", around=around) == {}


@pytest.mark.parametrize("form", [{"cache": "int4"}, {"rank": 2}])
@pytest.mark.parametrize("law", ["streaming", "rows", "formula"])
def test_it_goes_with_other_settings(form: dict[str, Any], law: str) -> None:
    config = SelfExtendConfig(G=4, W=20, **form)
    assert laws.Case(law, "tiny-mistral", "float32").broken(lambda b: SelfExtend(b, config)) is None


@pytest.mark.parametrize(
    ("backbone", "W", "message"),
    [("tiny-gpt2", None, "has no rotary positions"), ("tiny-llama", 129, "more than the model's 128 positions")],
)
def test_what_has_no_positions_for_it_is_refused(backbone: str, W: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        SelfExtend(backbones.load(backbone, device="cpu"), SelfExtendConfig(W=W))
