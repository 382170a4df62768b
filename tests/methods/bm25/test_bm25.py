"""Retrieval of text against a reader that is written out: which chunks are chosen, and what the model then reads."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import PARTS, broken
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.bm25 import BM25, BM25Config
from contextlab.methods.bm25.search import Search
from contextlab.methods.full import Full

SMALL = {"k": 2, "chunk": 7, "recent": 20, "query": 12, "stride": 9}
STORY = (
    "Ada lives in Rome. Bo has a drum. Cy reads maps all day. The ferry was late. Nobody saw the lamp. It rained again "
    "on the hill. "
)
LETTERS, SPACE = range(64, 68), 220
"""Tokens of a, b, c and d, and of white space."""


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def text(length: int) -> Tensor:
    """Words of few letters, of which some return."""
    letters = torch.randint(LETTERS.start, LETTERS.stop, (1, length), generator=torch.Generator().manual_seed(0))
    return letters.masked_fill(torch.arange(length) % 4 == 3, SPACE)


def read(method: Any, tokens: Tensor, *cuts: int, ahead: Lengths | None = None) -> Tensor:
    state, parts = method.start(ahead=ahead), []
    for part in tokens.tensor_split(cuts, dim=1):
        state, logprobs = method.read(state, part)
        parts.append(logprobs)
    return torch.cat(parts, dim=1)


def written_out(backbone: Backbone, tokens: list[int], first: int) -> Tensor:
    """Log-probabilities of a text: every token after a view that is read for it alone."""
    full, k, c = Full(backbone), SMALL["k"], SMALL["chunk"]
    scores = []
    for t in range(len(tokens)):
        p = max([0, *range(first, t + 1, SMALL["stride"])])
        m = max(0, p - SMALL["recent"]) // c
        chunks = [tokens[c * j : c * j + c] for j in range(m)]
        query = tokens[max(0, p - SMALL["query"]) : p]
        view = [token for j in Search(backbone).best(chunks, query, k) for token in chunks[j]] + tokens[m * c : t]
        state = full.read(full.start(), torch.tensor([view]).long().view(1, -1), logprobs=False)[0]
        scores.append(full.score(state, [[tokens[t]]])[0, 0])
    return torch.cat(scores)[None]


@settings(max_examples=4, deadline=None)
@given(
    context=st.integers(0, 90), length=st.integers(50, 80), cuts=st.lists(st.integers(0, 110), max_size=3).map(sorted)
)
def test_every_token_is_read_after_the_best_chunks(llama: Backbone, context: int, length: int, cuts: list[int]) -> None:
    tokens, ahead = text(length), Lengths(context)
    scores = read(BM25(llama, BM25Config(**SMALL)), tokens, *cuts, ahead=ahead)
    expected = written_out(llama, tokens[0].tolist(), context % SMALL["stride"] or SMALL["stride"])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


def test_the_question_finds_the_sentence_that_answers_it(llama: Backbone) -> None:
    method = BM25(llama, BM25Config(k=1, chunk=19, recent=20, query=20, stride=1))
    for question, answer in (("Where does Ada live?", STORY[:19]), ("Was the ferry late?", "The ferry was late.")):
        tokens = llama.encode(STORY + question)
        state, _ = method.read(method.start(), torch.tensor([tokens]), logprobs=False)
        view = llama.decode(method.in_view(state, 0, len(tokens)))
        assert view == answer + (STORY + question)[-(len(view) - 19) :]


def test_a_search_is_made_at_the_end_of_a_known_context(llama: Backbone) -> None:
    method = BM25(llama, BM25Config(**SMALL))
    for context in (1, 8, 9, 10, 47):
        first = int(method.start(ahead=Lengths(context)).first_B)
        assert method.searches_at(context, first)


def test_it_is_full_attention_until_something_leaves_the_view(llama: Backbone) -> None:
    tokens = text(120)
    whole, plain = read(BM25(llama, BM25Config(**SMALL)), tokens), read(Full(llama), tokens)
    near = SMALL["recent"] + SMALL["k"] * SMALL["chunk"]
    torch.testing.assert_close(whole[:, :near], plain[:, :near], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(whole, plain, atol=1e-3)


def test_without_a_word_in_common_the_newest_chunks_are_taken(llama: Backbone) -> None:
    search, tokens = Search(llama), llama.encode
    chunks = [tokens("aa bb"), tokens("cc dd"), tokens("ee ff")]
    assert search.best(chunks, tokens("zz"), 2) == [1, 2]
    assert search.best(chunks, [], 2) == [1, 2]
    assert search.best([[SPACE]] * 3, tokens("aa"), 1) == [2]
    assert search.best(chunks, tokens("AA"), 1) == [0]
    assert search.best(chunks, tokens("aa ee"), 2) == [0, 2]


def test_reading_computes_nothing_and_keeps_the_text(llama: Backbone) -> None:
    method = BM25(llama, BM25Config(**SMALL))
    state, _ = method.read(method.start(), text(90), logprobs=False)
    formula = method.formula()
    assert formula is not None
    assert state.tokens_BS.tolist() == text(90).tolist()
    assert state.nbytes == formula.state_bytes(90) == 4 * 90 + llama.width * 4 + 2 * 8


@pytest.mark.parametrize("around", PARTS)
def test_small_chunks_keep_the_laws(around: bool) -> None:
    assert broken(lambda b: BM25(b, BM25Config(**SMALL)), "tiny-llama", around=around) == {}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"k": 16}, "do not fit the model's 128 positions"),
        ({"recent": 90}, "or smaller chunks, or recent=80"),
    ],
)
def test_a_view_that_does_not_fit_is_refused(llama: Backbone, config: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BM25(llama, BM25Config(**config))


def test_what_it_needs_is_said(llama: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="without a tokenizer"):
        BM25(backbones.wrap(llama.model))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'contextlab\[bm25\]'"):
        BM25(llama)
