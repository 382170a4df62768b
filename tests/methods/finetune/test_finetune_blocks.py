"""Blocks of a context, and the answers in it."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.methods.finetune.blocks import answers, blocks_of, divided, in_answers

PIECES = st.lists(st.sampled_from(["a", " b", "\n", "Out", "put:", "Output:", ": ", "x\ny", ""]), max_size=30)


@given(count=st.integers(0, 40), length=st.integers(1, 12))
def test_blocks_predict_every_token_but_the_first_once(count: int, length: int) -> None:
    tokens = torch.arange(count)[None]
    blocks = blocks_of(tokens, torch.ones(count, dtype=torch.bool), length)
    predicted = [token for block in blocks for token in block.tokens_1T[0, 1:].tolist()]
    assert predicted == list(range(1, count))
    assert all(2 <= block.tokens_1T.shape[1] <= length + 1 for block in blocks)
    assert sum(block.count for block in blocks) == len(predicted)


@given(marks=st.lists(st.booleans(), max_size=40), length=st.integers(1, 12))
def test_blocks_score_what_is_marked(marks: list[bool], length: int) -> None:
    tokens = torch.arange(len(marks))[None]
    blocks = blocks_of(tokens, torch.tensor(marks, dtype=torch.bool), length)
    scored = [token for block in blocks for token in block.tokens_1T[0, 1:][block.scored_t].tolist()]
    assert scored == [number for number, mark in enumerate(marks) if mark and number]


@given(count=st.integers(0, 20), share=st.floats(0, 0.99), seed=st.integers(0, 5))
def test_a_share_is_held_back_and_never_all(count: int, share: float, seed: int) -> None:
    blocks = blocks_of(torch.arange(count + 1)[None], torch.ones(count + 1, dtype=torch.bool), 1)
    learned, held = divided(blocks, share, random.Random(seed))
    assert [*learned, *held] != [] or not blocks
    assert sorted(int(block.tokens_1T[0, 0]) for block in (*learned, *held)) == list(range(count))
    assert len(held) == min(round(share * count), max(count - 1, 0))


@settings(max_examples=200)
@given(pieces=PIECES)
def test_answers_are_what_lies_between_the_text_and_its_lines_end(pieces: list[str]) -> None:
    marks = in_answers(pieces, "Output:")
    text, begin = "".join(pieces), 0
    for piece, mark in zip(pieces, marks, strict=True):
        line = text[:begin].rpartition("\n")[2]
        # A piece is part of an answer where its line so far holds the text whole, and it does not end the line.
        assert mark == ("Output:" in line and begin < len(text) and text[begin] != "\n"), (pieces, begin)
        begin += len(piece)


def test_answers_of_a_byte_tokenizer_are_found_as_tokens() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    shown = "Input: käse\nOutput: ja\nInput: b\nOutput: né"
    tokens = torch.tensor([backbone.encode(shown)])
    scored = answers(backbone, tokens, "Output:")
    assert backbone.decode(tokens[0][scored].tolist()) == " ja né"


def test_a_context_without_answers_is_refused() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    with pytest.raises(UserError, match="name the text in front of its answers"):
        answers(backbone, torch.tensor([backbone.encode("nothing here")]), "Output:")
