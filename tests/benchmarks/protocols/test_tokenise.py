from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from contextlab.benchmarks.prompts import join

TEXT = "the cat sat on the mat , then the other cat sat down .\nThe mat is  the cat's .\n\nA: the\tcat\n"

texts = st.lists(st.sampled_from([*TEXT.split(" "), " ", "  ", "\n", "\n\n", "\t", "é", "𝄞"]), max_size=8).map("".join)


@cache
def backbone() -> Any:
    """A tokenizer whose tokens are words with the space before them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return SimpleNamespace(encode=lambda text: tokenizer.encode(text).ids, decode=tokenizer.decode)


@settings(deadline=None)
@given(texts.filter(bool), texts)
def test_it_is_the_rule_of_the_harness(context: str, continuation: str) -> None:
    api = pytest.importorskip("lm_eval.api.model")
    harness = SimpleNamespace(backend="causal", tok_encode=backbone().encode)
    assert join(backbone(), context, continuation) == api.TemplateLM._encode_pair(harness, context, continuation)


@settings(deadline=None)
@given(texts, texts)
def test_nothing_is_lost_where_no_token_crosses_the_border(context: str, continuation: str) -> None:
    first, second = join(backbone(), context, continuation)
    whole = backbone().encode(context + continuation)
    if whole[: len(first)] == first:
        assert backbone().decode(first + second) == context + continuation
    assert len(first) + len(second) == max(len(first), len(whole))


def test_a_space_at_the_end_of_the_context_belongs_to_the_word_behind_it() -> None:
    assert join(backbone(), "the cat ", "sat") == join(backbone(), "the cat", " sat")
    assert len(join(backbone(), "the cat", " sat")[1]) == 1


def test_without_a_context_everything_is_continuation() -> None:
    assert join(backbone(), "", "the cat") == ([], backbone().encode("the cat"))
    assert join(backbone(), " \n", "the cat") == ([], backbone().encode(" \nthe cat"))
