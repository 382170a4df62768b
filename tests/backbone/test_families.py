"""Families of backbones: what is carried over to methods, and what is refused for which reason."""

from __future__ import annotations

import pytest
import torch
import transformers

from contextlab import backbone as backbones
from contextlab.backbone import REFUSED, TINY
from contextlab.errors import UserError
from contextlab.methods.full import Full
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.testing import laws

REASONS = {
    "tiny-gemma2": "caps its scores with a tanh",
    "tiny-gemma3": "kinds of layers have different rotary positions",
    "tiny-falcon": "does not use transformers' attention interface",
    "tiny-gpt-oss": "learned sinks in its softmax",
    "tiny-llama-dynamic": "change with the length of the text .rope_type=dynamic.",
    "tiny-phi3-longrope": "change with the length of the text .rope_type=longrope.",
}
NEW = [name for name in TINY if name not in ("tiny-llama", "tiny-gpt2", "tiny-opt")]


@pytest.mark.parametrize("name", TINY)
def test_full_attention_predicts_what_the_model_itself_does(name: str) -> None:
    backbone = backbones.load(name, device="cpu")
    tokens_BT = torch.arange(backbone.max_positions)[None] * 7 % 256
    method = Full(backbone)
    state, first = method.read(method.start(), tokens_BT[:, :45])
    _, second = method.read(state, tokens_BT[:, 45:])
    assert first is not None
    assert second is not None
    with torch.no_grad():
        own_BTV = backbone.model(tokens_BT, use_cache=False).logits.log_softmax(-1)
    own_BT = own_BTV[:, :-1].gather(-1, tokens_BT[:, 1:, None])[..., 0]
    torch.testing.assert_close(torch.cat((first, second), 1)[:, 1:], own_BT, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("law", ["causality", "rows", "score is pure"])
def test_keys_that_move_keep_the_laws(law: str, name: str) -> None:
    """Of methods that rotate cached keys on: each family with its own rotary positions and window."""
    for make in (
        lambda b: Sliding(b, SlidingConfig(N=32, sinks=2)),
        lambda b: Sinks(b, SinksConfig(sinks=2, recent=30)),
        lambda b: Retrieval(b, RetrievalConfig(N=24, K=8)),
    ):
        assert laws.Case(law, name, "float32").broken(make) is None


@pytest.mark.parametrize("init", ["identity", "memory", "difference"])
@pytest.mark.parametrize("name", ["tiny-gpt-neox", "tiny-phi3", "tiny-olmo2"])
def test_blocks_of_every_form_run_beside_the_model(name: str, init: str) -> None:
    """Layers run alone, with parallel, fused or normed parts, are those of the whole model."""
    config = LongMemConfig(N=32, K=8, M=96, init=init, reduction=1)
    for law in ("streaming", "equals its baseline"):
        assert laws.Case(law, name, "float32").broken(lambda b: LongMem(b, config)) is None


@pytest.mark.parametrize("name", ["tiny-gpt-neox", "tiny-phi3"])
def test_a_bank_of_layers_that_run_alone_is_that_of_the_whole_model(name: str) -> None:
    broken = laws.Case("silent reading", name, "float32").broken(lambda b: MemTRM(b, MemTRMConfig(N=32, K=8, M=70)))
    assert broken is None


@pytest.mark.parametrize("name", REFUSED)
def test_a_family_that_computes_more_is_refused_with_the_true_reason(name: str) -> None:
    with pytest.raises(UserError, match=REASONS[name]) as error:
        backbones.load(name, device="cpu")
    assert str(error.value).count(". ") == 0


def test_logits_with_a_cap_are_refused_however_small_they_are() -> None:
    size = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
    config = transformers.Gemma2Config(
        **size, num_key_value_heads=1, intermediate_size=16, attn_logit_softcapping=None, pad_token_id=None
    )
    with pytest.raises(UserError, match="changes its logits after the output embedding"):
        backbones.wrap(transformers.Gemma2ForCausalLM(config))
