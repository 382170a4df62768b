"""What the GenerativeAdapter paper prints as cost (Table 1), beside what its models compute.

The printed "TFLOPs" are multiply-accumulates. Per token they are right up to the embedding, which is counted as a
product of its width. Attention to a context of n_ctx tokens, however, is charged n_in * (n_in * n_ctx) pairs for a
question of n_in tokens, one factor n_in too many, and attention among the question's own tokens is left out: prompting
with 2.5K tokens comes out at 2.059 instead of the 0.54 that it costs behind a cached context, and four times the
adapter's 0.505 is this factor alone. Without a cache, prompting reads the context anew, which is 38 times 0.505. The
printed storage counts the low-rank pairs, 32 M = 32 * 2^20 floats; what has to be kept to read on is S.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelSizes:
    """Sizes of a Llama-style model; the defaults are Mistral-7B's, the paper's backbone."""

    width: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_width: int = 128
    feed_forward: int = 14336
    vocabulary: int = 32000

    @property
    def macs_per_token(self) -> int:
        """Multiply-accumulates of all linear layers, and `width` for the embedding as the paper's estimator has it."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        block = self.width * (2 * queries + 2 * keys + 3 * self.feed_forward)
        return self.width + self.layers * block + self.width * self.vocabulary

    @property
    def macs_per_pair(self) -> int:
        """Multiply-accumulates of attention per visible (query, key) pair, over all layers."""
        return 2 * self.layers * self.heads * self.head_width


MISTRAL_7B = ModelSizes()


def printed_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Table 1's "FLOPs" of a question of so many tokens behind a context in the prompt; 0 tokens of it for an adapter.

    Repeats the paper's product of lengths, with one multiply-accumulate per pair and channel instead of two.
    """
    return question * model.macs_per_token + question * question * context * model.macs_per_pair // 2


def cached_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """What the same question computes behind a cached context, its own tokens' causal attention included."""
    return question * model.macs_per_token + attention_macs(question, context, model)


def uncached_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """What the question computes when the prompt is read with it."""
    return cached_macs(question + context, 0, model)


def attention_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Attention of a question to a cached context and causally to itself."""
    return (question * (question + 1) // 2 + question * context) * model.macs_per_pair


def kv_floats(tokens: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of a key-value cache."""
    return 2 * tokens * model.layers * model.kv_heads * model.head_width


def pair_floats(rank: int = 128, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of the low-rank pairs of all output projections: the paper's 32 M for an adapter."""
    return model.layers * rank * (model.heads * model.head_width + model.width)


def factor_floats(rank: int = 128, d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of U_r and V_r alone, of which A1 and B2, shared by all contexts, make the pairs."""
    return model.layers * 2 * d_r * rank


def sum_floats(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of S, which is what reading on needs."""
    return model.layers * d_r * d_r


def released_floats(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats that the released code keeps per context: A1 with S folded in, of rank d_r."""
    return model.layers * d_r * model.width


def generator_parameters(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """A1, A2, B1 and B2 of all output projections, without the gains: the paper's 500 M."""
    return model.layers * d_r * (3 * model.width + model.heads * model.head_width)
