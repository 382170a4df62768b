"""Small encoders of sentences in folders of their own, as `AutoModel` and `AutoTokenizer` load them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

WORDS = ("unknown", "ada", "lives", "resides", "rome", "bo", "drum", "maps", "ferry", "late", "lamp", "rained", "hill")
"""The first one stands for all others."""
WIDTH = 16


def tokenizer() -> Any:
    """Words in lower case, by their numbers in `WORDS`."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=WORDS[0]))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token=WORDS[0])


def bert(layers: int = 2, positions: int = 128, seed: int = 0) -> Any:
    """A random model of BERT's form."""
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.BertModel(config)


def bag_of_words(positions: int = 128) -> Any:
    """A model without layers, in which every word has a direction of its own, `lives` and `resides` the same one."""
    model = bert(layers=0, positions=positions)
    embeddings = model.embeddings
    with torch.no_grad():
        for part in (embeddings.position_embeddings, embeddings.token_type_embeddings, embeddings.word_embeddings):
            part.weight.zero_()
        embeddings.word_embeddings.weight[1:] = torch.eye(WIDTH)[: len(WORDS) - 1]
        embeddings.word_embeddings.weight[WORDS.index("resides")] = embeddings.word_embeddings.weight[2]
    return model


def saved(folder: Path, model: Any | None = None) -> str:
    """The name of a folder with an encoder in it."""
    (bert() if model is None else model).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def mean_pooled(model: Any, text: str) -> Tensor:
    """The vector of a text, written out."""
    numbers = [WORDS.index(word) if word in WORDS else 0 for word in text.lower().split()]
    with torch.no_grad():
        hidden = model.eval()(torch.tensor([numbers])).last_hidden_state[0]
    mean = sum(hidden) / len(hidden)
    return mean / mean.square().sum().sqrt()
