"""Kinds of rotary positions: methods compute with them what transformers does, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.h2o import H2O, H2OConfig
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig

POSITIONS = 128
KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "yarn, scaled": {"factor": 4.0, "original_max_position_embeddings": 32, "attention_factor": 1.7},
}
METHODS: dict[str, Callable[[Backbone], AnyMethod]] = {
    "sliding": lambda b: Sliding(b, SlidingConfig(N=32, sinks=2)),
    "sinks": lambda b: Sinks(b, SinksConfig(sinks=2, recent=30)),
    "h2o": lambda b: H2O(b, H2OConfig(N=32, keep=32)),
    "longmem": lambda b: LongMem(b, LongMemConfig(N=32, K=8)),
    "longmem, joint": lambda b: LongMem(
        b, LongMemConfig(N=32, K=8, softmax="joint", init="difference", reduction=1, memory_layers="1-3")
    ),
    "retrieval": lambda b: Retrieval(b, RetrievalConfig(N=24, K=8)),
    "evalm": lambda b: EVALM(b, EVALMConfig(W=32, c=8, remote_bias=0.0)),
}


def llama(kind: str, **settings: Any) -> Any:
    rope = {"rope_type": kind.partition(",")[0], "rope_theta": 10000.0, **KINDS.get(kind, {}), **settings}
    build: Any = transformers.LlamaConfig
    config = build(
        vocab_size=257,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=256,
        rope_parameters=rope,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make: Any = transformers.LlamaForCausalLM
        return make(config)


def text(length: int) -> torch.Tensor:
    return torch.randint(0, 256, (1, length), generator=torch.Generator().manual_seed(0))


def logprobs(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        every = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
    picked: torch.Tensor = every[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
    return picked


@pytest.mark.parametrize("kind", KINDS)
def test_full_attention_is_the_models_own(kind: str) -> None:
    model, tokens = llama(kind), text(POSITIONS)
    backbone = backbones.wrap(model)
    assert (backbone.rotary_scale != 1) == kind.startswith("yarn")
    method = Full(backbone)
    state, read = method.start(), []
    for piece in tokens.split(37, dim=1):
        state, part = method.read(state, piece)
        assert part is not None
        read.append(part)
    torch.testing.assert_close(torch.cat(read, 1)[:, 1:], logprobs(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_local_view_is_the_models_own(name: str) -> None:
    """Where nothing has left the view, and in a second window behind sinks that have moved."""
    model, tokens = llama("yarn"), text(POSITIONS)
    method = METHODS[name](backbones.wrap(model))
    read = method.read(method.start(), tokens[:, :32])[1]
    assert read is not None
    torch.testing.assert_close(read[:, 1:], logprobs(model, tokens[:, :32]), atol=1e-4, rtol=1e-4)


def test_a_cache_that_is_cut_keeps_the_scale_of_its_keys() -> None:
    """In one layer keys depend on their own tokens alone: sinks and the last window are a text of their own."""
    model, tokens = llama("yarn"), text(100)
    del model.model.layers[1:]
    model.config.num_hidden_layers = 1
    method = Sliding(backbones.wrap(model), SlidingConfig(N=32, sinks=2))
    read = method.read(method.start(), tokens)[1]
    assert read is not None
    seen = torch.cat((tokens[:, :2], tokens[:, 32:96]), dim=1)
    torch.testing.assert_close(read[0, 65:96], logprobs(model, seen)[0, -31:], atol=1e-4, rtol=1e-4)


def test_a_model_that_attends_like_a_method_computes_what_the_method_reads() -> None:
    model, tokens = llama("yarn"), text(100)
    method = EVALM(backbones.wrap(model), EVALMConfig(W=32, c=8, remote_bias=0.0))
    read = method.read(method.start(), tokens)[1]
    assert read is not None
    with method.as_attention():
        torch.testing.assert_close(read[:, 1:], logprobs(model, tokens), atol=1e-4, rtol=1e-4)


def test_methods_that_change_what_they_cache_start_as_the_model() -> None:
    model, tokens = llama("yarn"), text(20)
    backbone = backbones.wrap(model)
    for method in (HSO(backbone, HSOConfig(k=25, context=60)), MemTRM(backbone, MemTRMConfig(N=32, K=8, M=70))):
        read = method.read(method.start(), tokens)[1]
        assert read is not None
        torch.testing.assert_close(read[:, 1:], logprobs(model, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("dynamic", {"factor": 4.0}),
        ("longrope", {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32}),
    ],
)
def test_positions_that_depend_on_the_length_are_refused_with_their_name(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"change with the length of the text .rope_type={kind}."):
        backbones.wrap(llama(kind, **settings))
