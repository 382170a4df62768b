"""Retrieval of text by vectors: which chunks are nearest, by the backbone's vectors and by those of an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import encoders
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import PARTS, broken
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.products import ProductCounter
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.bm25 import BM25, BM25Config
from contextlab.methods.dense import Dense, DenseConfig
from contextlab.methods.dense.method import DenseState
from contextlab.methods.full import Full

SMALL: dict[str, Any] = {"k": 2, "chunk": 7, "recent": 20, "query": 12, "stride": 9}
STORY = (
    "Ada lives in Rome. Bo has a drum. Cy reads maps all day. The ferry was late. Nobody saw the lamp. It rained again "
    "on the hill. "
)


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoders.saved(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoders.saved(tmp_path_factory.mktemp("bag"), encoders.bag_of_words())


def text(length: int) -> Tensor:
    return torch.randint(97, 123, (1, length), generator=torch.Generator().manual_seed(0))


def read(method: Dense, tokens: Tensor, *cuts: int) -> tuple[DenseState, Tensor]:
    state, parts = method.start(ahead=Lengths(30)), []
    for part in tokens.tensor_split(cuts, dim=1):
        state, logprobs = method.read(state, part)
        assert logprobs is not None
        parts.append(logprobs)
    return state, torch.cat(parts, dim=1)


def own_vector(backbone: Backbone, tokens: list[int]) -> Tensor:
    """The mean of the model's own hidden states, at length one, written out."""
    with torch.no_grad():
        hidden = backbone.model.base_model(torch.tensor([tokens])).last_hidden_state[0]
    mean = sum(hidden) / len(hidden)
    return mean / mean.square().sum().sqrt()


def written_out(backbone: Backbone, tokens: list[int]) -> Tensor:
    """Log-probabilities of a text: every token after a view that is read for it alone."""
    full, k, c = Full(backbone), SMALL["k"], SMALL["chunk"]
    first = 30 % SMALL["stride"]
    scores = []
    for t in range(len(tokens)):
        p = max([0, *range(first, t + 1, SMALL["stride"])])
        m = max(0, p - SMALL["recent"]) // c
        chunks = [tokens[c * j : c * j + c] for j in range(m)]
        best = list(range(m))
        if m > k:
            query = own_vector(backbone, tokens[max(0, p - SMALL["query"]) : p])
            products = [float(own_vector(backbone, chunk) @ query) for chunk in chunks]
            best = sorted(sorted(range(m), key=lambda j: -products[j])[:k])
        view = [token for j in best for token in chunks[j]] + tokens[m * c : t]
        state = full.read(full.start(), torch.tensor([view]).long().view(1, -1), logprobs=False)[0]
        scores.append(full.score(state, [[tokens[t]]])[0, 0])
    return torch.cat(scores)[None]


def test_every_token_is_read_after_the_nearest_chunks(llama: Backbone) -> None:
    tokens = text(80)
    _, scores = read(Dense(llama, DenseConfig(**SMALL)), tokens, 13, 60)
    torch.testing.assert_close(scores, written_out(llama, tokens[0].tolist()), atol=1e-5, rtol=1e-5)


def test_what_is_said_in_other_words_is_found(llama: Backbone, bag: str) -> None:
    """No word of the question is in the text, so that by words the newest chunk is taken."""
    text = STORY + "Tell who resides ok?"
    for kind, config, answer in (
        (Dense, DenseConfig(k=1, chunk=19, recent=20, query=20, stride=1, encoder=bag), STORY[:19]),
        (BM25, BM25Config(k=1, chunk=19, recent=20, query=20, stride=1), STORY[95:114]),
    ):
        method = kind(llama, config)
        tokens = llama.encode(text)
        state, _ = method.read(method.start(), torch.tensor([tokens]), logprobs=False)
        view = llama.decode(method.in_view(state, 0, len(tokens)))
        assert view[:19] == answer
        assert text.endswith(view[19:])


def test_of_equally_near_chunks_the_newest_are_taken(llama: Backbone, bag: str) -> None:
    method = Dense(llama, DenseConfig(**SMALL | {"encoder": bag}))
    chunks = [llama.encode(part) for part in ("drum bo", "rome Bo", "DRUM bo", "lamp is", "bo drum")]
    state, _ = method.read(method.start(), torch.tensor(chunks).view(1, -1), logprobs=False)
    assert method.best(state, 0, chunks, llama.encode("bo drum")) == [2, 4]
    assert method.best(state, 0, chunks, llama.encode("a lamp")) == [3, 4]
    assert method.best(state, 0, chunks[:2], llama.encode("a lamp")) == [0, 1]


@settings(max_examples=10, deadline=None)
@given(cuts=st.lists(st.integers(0, 90), max_size=4).map(sorted), named=st.booleans())
def test_vectors_are_the_same_however_a_text_is_read(
    llama: Backbone, folder: str, cuts: list[int], named: bool
) -> None:
    """Bitwise, so that no search is decided by how a text was divided, or by the texts beside it."""
    method = Dense(llama, DenseConfig(**SMALL | {"encoder": folder if named else None}))
    tokens = text(90)
    whole, _ = method.read(method.start(2), torch.cat((tokens, tokens.flip(1))), torch.tensor([90, 41]), logprobs=False)
    state, _ = read(method, tokens, *cuts)
    assert state.chunks_B.tolist() == [90 // SMALL["chunk"]]
    assert torch.equal(whole.row(0).vectors_BNE, state.vectors_BNE)
    assert whole.row(1).vectors_BNE.shape[1] == 41 // SMALL["chunk"]


def test_reading_costs_the_vectors_and_the_state_holds_them(llama: Backbone, folder: str) -> None:
    own, named = (Dense(llama, DenseConfig(**SMALL | {"encoder": name})) for name in (None, folder))
    formula = own.formula()
    assert formula is not None
    assert named.formula() is None
    for method, width in ((own, llama.width), (named, encoders.WIDTH)):
        state = method.start()
        for length, chunks in ((6, 0), (1, 1), (83, 11)):
            with ProductCounter() as counter:
                state, _ = method.read(state, text(length), logprobs=False)
            assert (counter.flops > 0) == (chunks > 0)
        assert state.nbytes == 4 * 90 + llama.width * 4 + 12 * width * 4 + 3 * 8
        added = 0 if method is own else sum(weight.numel() for weight in named.encoder.model.parameters())
        assert (method.added_parameters, method.trained_parameters) == (added, 0)
        assert not method.untrained


def test_a_state_and_a_run_depend_on_the_encoder(llama: Backbone, folder: str, tmp_path: Path) -> None:
    method = Dense(llama, DenseConfig(**SMALL | {"encoder": folder}))
    assert Dense(llama).weights_digest is None
    assert method.weights_digest is not None
    state, _ = method.read(method.start(), text(50), logprobs=False)
    state.save(tmp_path / "state")
    assert torch.equal(method.load_state(tmp_path / "state").vectors_BNE, state.vectors_BNE)
    name = encoders.saved(Path(folder), encoders.bert(seed=1))
    try:
        changed = Dense(llama, DenseConfig(**SMALL | {"encoder": name}))
        assert changed.weights_digest != method.weights_digest
        with pytest.raises(UserError, match="its weights differ"):
            changed.load_state(tmp_path / "state")
    finally:
        encoders.saved(Path(folder))


@pytest.mark.parametrize("around", PARTS)
def test_an_encoder_keeps_the_laws(folder: str, around: bool) -> None:
    config = DenseConfig(k=2, chunk=12, recent=30, query=12, stride=40, encoder=folder)
    assert broken(lambda b: Dense(b, config), "tiny-llama", around=around) == {}


def test_what_does_not_fit_is_said(llama: Backbone, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder nowhere: give encoder="):
        Dense(llama, DenseConfig(encoder="nowhere"))
    short = encoders.saved(tmp_path, encoders.bert(positions=4))
    method = Dense(llama, DenseConfig(chunk=12, encoder=short))
    tokens = torch.tensor([llama.encode("a b c d e f ")])
    with pytest.raises(UserError, match=r"has 6 tokens of the encoder .*, which reads 4: use a smaller chunk="):
        method.read(method.start(), tokens)
    with pytest.raises(UserError, match="without a tokenizer"):
        Dense(backbones.wrap(llama.model), DenseConfig(encoder=short))
    assert Dense(backbones.wrap(llama.model)).start().vectors_BNE.shape == (1, 0, llama.width)
