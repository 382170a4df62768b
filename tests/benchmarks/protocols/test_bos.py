"""Backbones whose tokenizer begins texts with BOS, as those of Llama, Mistral and Gemma do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers.processors import TemplateProcessing

import contextlab
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Choice, Document
from contextlab.benchmarks.protocols.spans import ChoiceProtocol, PerplexityProtocol, contextualize
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.harness.conversation import Conversation
from contextlab.method import AnyMethod, Lengths

BOS = 256
TEXT = "The key is red. It lies below the old stone. "


def beginning(tokenizer: Any) -> None:
    """Let a tokenizer put BOS before texts, and EOS, which is the same token, after none."""
    post = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", BOS)])
    tokenizer.backend_tokenizer.post_processor = post


def method(name: str) -> AnyMethod:
    loaded = contextlab.load(name, backbone="tiny-llama", device="cpu")
    beginning(loaded.backbone.tokenizer)
    return loaded


def metered(name: str) -> Meter:
    return Meter(method(name), Ledger("cpu", counting=False))


def nats_of_the_model(own: AnyMethod, tokens: Sequence[int]) -> float:
    """What transformers' model itself says of a text after its first token."""
    tokens_BT = torch.tensor([tokens])
    with torch.no_grad():
        logprobs_TV = own.backbone.model(tokens_BT).logits[0].double().log_softmax(-1)
    return -float(logprobs_TV[:-1].gather(-1, tokens_BT[0, 1:, None]).sum())


def test_a_text_is_scored_as_transformers_scores_what_its_tokenizer_makes_of_it() -> None:
    meter = metered("full")
    protocol = PerplexityProtocol(Options(), piece=16)
    record = protocol.evaluate(meter, Document("a", TEXT), Document("b", ""))
    tokens = meter.backbone.tokenizer.encode(TEXT)
    assert tokens[0] == BOS
    assert record["tokens"] == len(tokens) - 1
    assert record["nats"] == pytest.approx(nats_of_the_model(meter.method, tokens), rel=1e-5)


@pytest.mark.parametrize("context", ["own", "none"])
def test_candidates_follow_a_context_that_begins_with_bos(context: Any) -> None:
    meter = metered("full")
    example = Choice("a", "a", TEXT, ("yes", "never"), 0)
    record = ChoiceProtocol(64, 8, Options(context=context)).evaluate(meter, example, example)
    read = [BOS, *(meter.backbone.encode(TEXT) if context == "own" else [])]
    for candidate, nats in zip(example.candidates, record["nats"], strict=True):
        tokens = [*read, *meter.backbone.encode(candidate)]
        before = nats_of_the_model(meter.method, read)
        assert nats * len(candidate) == pytest.approx(nats_of_the_model(meter.method, tokens) - before, rel=1e-4)
    assert record["context_tokens"] == len(read) - 1


def test_bos_is_announced_counted_and_read_once() -> None:
    meter = metered("sliding(N=16)")
    state = contextualize(meter, meter.backbone.encode("abc"), Lengths(3, 2))
    assert int(state.length_B) == 4
    assert int(contextualize(meter, [BOS, 97], Lengths(2, 2)).length_B) == 2
    assert meter.take()["cost"]["contextualize"]["tokens"] == 6


def test_bos_needs_a_position() -> None:
    positions = contextlab.load("full", backbone="tiny-llama", device="cpu").capabilities.max_context
    assert positions is not None
    history = PerplexityProtocol(Options(history=positions - 8, scored=8))
    document = Document("a", "a" * (positions + 1))
    assert history.evaluate(Meter(contextlab.load("full", "tiny-llama"), Ledger("cpu")), document, document)["nats"]
    with pytest.raises(UserError, match=f"{positions + 1} are needed"):
        history.evaluate(metered("full"), document, document)


def test_a_conversation_begins_with_bos() -> None:
    own = method("sliding(N=16)")
    assert int(Conversation(own).state.length_B) == 1
    conversation = Conversation(own)
    read = conversation.read(TEXT)
    assert int(conversation.state.length_B) == read + 1


def test_an_end_of_text_that_is_put_after_a_text_is_no_bos() -> None:
    own = contextlab.load("full", backbone="tiny-llama", device="cpu")
    post = TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", BOS)])
    own.backbone.tokenizer.backend_tokenizer.post_processor = post
    assert own.backbone.with_bos([97]) == [97]
