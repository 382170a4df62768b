"""The cost that Table 1 of the GenerativeAdapter paper prints, and the true cost of its models.

The printed "TFLOPs" are multiply-accumulates. Per token they are right except for the embedding, which is counted as a
product of its width. Attention of a question of n_in tokens to a context of n_ctx tokens is counted as
n_in * (n_in * n_ctx) pairs, one factor n_in too many, and attention among the question's own tokens is missing.
Prompting with 2.5K tokens is printed as 2.059; it costs 0.54 after a cached context. This factor alone makes it four
times the adapter's 0.505. Without a cache, prompting reads the context for every question, which costs 38 times 0.505.
The printed storage counts the low-rank pairs, 32 M = 32 * 2^20 floats; continuing to read needs S.
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
        """Multiply-accumulates of all linear layers, and `width` for the embedding as in the paper's estimator."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        block = self.width * (2 * queries + 2 * keys + 3 * self.feed_forward)
        return self.width + self.layers * block + self.width * self.vocabulary

    @property
    def macs_per_pair(self) -> int:
        """Multiply-accumulates of attention per visible (query, key) pair, over all layers."""
        return 2 * self.layers * self.heads * self.head_width


MISTRAL_7B = ModelSizes()


def printed_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Table 1's "FLOPs" of a question after a context in the prompt, from their tokens; an adapter has context 0.

    Repeats the paper's product of lengths, with one multiply-accumulate per pair and channel instead of two.
    """
    return question * model.macs_per_token + question * question * context * model.macs_per_pair // 2


def cached_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Multiply-accumulates of the same question after a cached context, with causal attention to its own tokens."""
    return question * model.macs_per_token + attention_macs(question, context, model)


def uncached_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Multiply-accumulates of context and question when both are read."""
    return cached_macs(question + context, 0, model)


def attention_macs(question: int, context: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Multiply-accumulates of a question's attention to a cached context and, causally, to itself."""
    return (question * (question + 1) // 2 + question * context) * model.macs_per_pair


def kv_floats(tokens: int, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of a key-value cache."""
    return 2 * tokens * model.layers * model.kv_heads * model.head_width


def pair_floats(rank: int = 128, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of the low-rank pairs of all output projections: the 32 M that the paper prints for an adapter."""
    return model.layers * rank * (model.heads * model.head_width + model.width)


def factor_floats(rank: int = 128, d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of U_r and V_r alone; the pairs follow from these and from A1 and B2, which all contexts share."""
    return model.layers * 2 * d_r * rank


def sum_floats(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats of S, which is needed to continue reading."""
    return model.layers * d_r * d_r


def released_floats(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Floats that the released code keeps per context: A1 multiplied by S, of rank d_r."""
    return model.layers * d_r * model.width


def generator_parameters(d_r: int = 1024, model: ModelSizes = MISTRAL_7B) -> int:
    """Parameters A1, A2, B1 and B2 of all output projections, without the gains: the paper's 500 M."""
    return model.layers * d_r * (3 * model.width + model.heads * model.head_width)
