"""Random models made in code: small ones for tests, and the shapes of models that were never published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from contextlab import process

TINY = (
    "tiny-llama",
    "tiny-gpt2",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-opt",
    "tiny-qwen3",
    "tiny-phi3",
    "tiny-olmo2",
    "tiny-gpt-neox",
    "tiny-llama-linear",
    "tiny-llama-llama3",
    "tiny-llama-yarn",
)
"""Small models that methods run on; the last ones have Llama's blocks and other kinds of rotary positions."""
REFUSED = ("tiny-gemma2", "tiny-gemma3", "tiny-falcon", "tiny-gpt-oss", "tiny-llama-dynamic", "tiny-phi3-longrope")
"""Small models of families that are refused, each for a reason of its own."""
TINY_POSITIONS = 128
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 32},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
}
"""Kinds of rotary positions that were stretched to four times the length, by the name that configurations give them."""
LONGROPE: dict[str, Any] = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
# Width, heads and layers of the models in the EVALM paper, which were never published.
PAPER_SHAPES = {"evalm-350m": (1024, 16, 24), "evalm-1.3b": (2048, 32, 24)}
PAPER_POSITIONS = 8192
PAPER_VOCABULARY = 50272


def tiny(name: str) -> Any:
    """A small random model of a widespread family, the same on every machine; named in `TINY` or `REFUSED`."""
    size: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": TINY_POSITIONS,
        "bos_token_id": 256,
        "eos_token_id": 256,
        "initializer_range": 0.2,
    }
    grouped: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 64, "pad_token_id": None}
    alternating: dict[str, Any] = {
        "head_dim": 8,
        "sliding_window": 48,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
    build: dict[str, Callable[[], Any]] = {
        "tiny-llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **grouped)),
        "tiny-mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**size, **grouped, sliding_window=48)
        ),
        "tiny-qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, **grouped)),
        "tiny-gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)),
        "tiny-opt": lambda: _opt(32, 4, 4, positions=TINY_POSITIONS, vocabulary=257, deviation=0.2, special=256),
        "tiny-qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**size, **grouped, head_dim=12)),
        # A quarter of a head's width has no rotary positions, as in Phi-4-mini, which is a model of this type.
        "tiny-phi3": lambda: transformers.Phi3ForCausalLM(
            transformers.Phi3Config(**size, **grouped, rope_parameters={**ROPE, "partial_rotary_factor": 0.75})
        ),
        "tiny-olmo2": lambda: transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**size, **grouped)),
        "tiny-gpt-neox": lambda: transformers.GPTNeoXForCausalLM(
            transformers.GPTNeoXConfig(**size, intermediate_size=128)
        ),
        "tiny-gemma2": lambda: transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(**size, **grouped, **alternating, query_pre_attn_scalar=8)
        ),
        "tiny-gemma3": lambda: transformers.Gemma3ForCausalLM(
            transformers.Gemma3TextConfig(**size, **grouped, **alternating, query_pre_attn_scalar=8)
        ),
        "tiny-falcon": lambda: transformers.FalconForCausalLM(transformers.FalconConfig(**size, alibi=True)),
        "tiny-gpt-oss": lambda: transformers.GptOssForCausalLM(
            transformers.GptOssConfig(
                **size, **grouped, **alternating, num_local_experts=4, num_experts_per_tok=2, rope_parameters=ROPE
            )
        ),
        "tiny-phi3-longrope": lambda: transformers.Phi3ForCausalLM(
            transformers.Phi3Config(
                **size, **grouped, original_max_position_embeddings=32, rope_parameters={**ROPE, **LONGROPE}
            )
        ),
    }
    kind = name.removeprefix("tiny-llama-")
    if kind in SCALED:
        grouped["rope_parameters"] = {**ROPE, "rope_type": kind, **SCALED[kind]}
        return _seeded(build["tiny-llama"])
    return _seeded(build[name])


def paper_shape(name: str) -> Any:
    """A random model of the EVALM paper's shape."""
    return _seeded(lambda: _opt(*PAPER_SHAPES[name]))


def _opt(
    width: int,
    heads: int,
    layers: int,
    *,
    positions: int = PAPER_POSITIONS,
    vocabulary: int = PAPER_VOCABULARY,
    deviation: float = 0.02,
    special: int = 2,
) -> Any:
    """A random OPT-style model: learned positions, norms before the blocks, relu."""
    config = transformers.OPTConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        max_position_embeddings=positions,
        init_std=deviation,
        pad_token_id=None,
        bos_token_id=special,
        eos_token_id=special,
    )
    return transformers.OPTForCausalLM(config)


def _seeded(build: Callable[[], Any]) -> Any:
    """The model that `build` makes, of the same random numbers every time."""
    with process.seeded(0):
        return build()


def byte_tokenizer() -> Any:
    """A tokenizer with one token per byte and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    build: Any = transformers.PreTrainedTokenizerFast
    return build(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
