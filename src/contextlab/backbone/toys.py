"""Random models made in code: small ones for tests, and the shapes of models that were never published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from contextlab import process

TINY = ("tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2", "tiny-opt")
TINY_POSITIONS = 128
# Width, heads and layers of the models in the EVALM paper, which were never published.
PAPER_SHAPES = {"evalm-350m": (1024, 16, 24), "evalm-1.3b": (2048, 32, 24)}
PAPER_POSITIONS = 8192
PAPER_VOCABULARY = 50272


def tiny(name: str) -> Any:
    """A random model of two wide-spread families' shapes, the same on every machine."""
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
    build: dict[str, Callable[[], Any]] = {
        "tiny-llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **grouped)),
        "tiny-mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**size, **grouped, sliding_window=48)
        ),
        "tiny-qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, **grouped)),
        "tiny-gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)),
        "tiny-opt": lambda: _opt(32, 4, 4, positions=TINY_POSITIONS, vocabulary=257, deviation=0.2, special=256),
    }
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
