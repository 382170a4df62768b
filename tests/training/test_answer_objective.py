"""Instruction tuning: answers alone count, predicted from the memory alone of their context."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_corpus import learner, options, tiny

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.window import Window, WindowConfig
from contextlab.training import registry
from contextlab.training.corpus import Corpus, prepare
from contextlab.training.streams import Batch, Streams
from contextlab.training.validation import Validator

LINES: list[dict[str, Any]] = [
    {"context": f"The ship {n} is {colour}. " * (1 + n % 3), "prompt": f"Which colour has ship {n}? ", "answer": colour}
    for n, colour in enumerate(["red", "blue", "green", "grey", "white", "black", "brown"])
]


def adapter() -> AnyMethod:
    config = GenerativeAdapterConfig(chunk=16, d_r=16, r=8, modules="*attn.c_proj|*mlp.c_proj", weights="none")
    method = GenerativeAdapter(tiny("tiny-gpt2"), config)
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)))
    return method


def prepared(path: Path, monkeypatch: pytest.MonkeyPatch, backbone: Backbone, lines: list[Any]) -> Corpus:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(path / "cache"))
    (path / "lines.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return prepare(path / "lines.jsonl", backbone)


@pytest.fixture
def method() -> AnyMethod:
    return adapter()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: AnyMethod) -> Corpus:
    return prepared(tmp_path, monkeypatch, method.backbone, LINES)


def first(built: Corpus, rows: int = 2) -> Batch:
    return Streams(built, built.training, rows, 200).next()


def test_a_corpus_knows_contexts_and_answers(built: Corpus, method: AnyMethod) -> None:
    for line, entry in zip(LINES, built.documents, strict=True):
        parts = [method.backbone.encode(line[name]) for name in ("context", "prompt", "answer")]
        n = built.documents.index(entry)
        assert built.piece(n).tolist() == [token for part in parts for token in part]
        before = len(parts[0]) + len(parts[1])
        assert (entry.context, entry.answers) == (len(parts[0]), ((before, before + len(parts[2])),))
        for begin, end in ((0, entry.tokens), (before - 1, before + 1), (3, 9)):
            assert entry.marks(begin, end) == [int(before <= at < before + len(parts[2])) for at in range(begin, end)]


def test_a_corpus_from_the_cache_knows_them_too(
    built: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: AnyMethod
) -> None:
    assert prepared(tmp_path, monkeypatch, method.backbone, LINES).documents == built.documents


def test_turns_have_an_answer_each_and_texts_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: AnyMethod
) -> None:
    chat = {"context": "A talk.", "turns": [{"prompt": "Yes? ", "answer": "No."}, {"prompt": " So? ", "answer": "So."}]}
    built = prepared(tmp_path, monkeypatch, method.backbone, [chat, {"text": "plain"}, *LINES])
    assert [len(entry.answers) for entry in built.documents[:3]] == [2, 0, 1]
    tokens = built.piece(0).tolist()
    assert [method.backbone.decode(tokens[begin:end]) for begin, end in built.documents[0].answers] == ["No.", "So."]
    assert built.documents[1].marks(0, 3) == [1, 1, 1]


def test_batches_mark_what_counts(built: Corpus) -> None:
    streams = Streams(built, built.training, 2, 20)
    for _ in range(12):
        batch = streams.next()
        for row, (document, begin) in enumerate(zip(batch.documents, batch.begins, strict=True)):
            entry, length = built.documents[document], int(batch.lengths_B[row])
            assert batch.counted_BT[row, :length].tolist() == [bool(m) for m in entry.marks(begin, begin + length)]
            assert not batch.counted_BT[row, length:].any()
            assert int(batch.context_B[row]) == min(max(entry.context - begin, 0), length)


@pytest.mark.parametrize("text", ["lm", "contrast", "teacher(k=5)"])
def test_answers_alone_count_for_every_objective(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learner()
    built = prepared(tmp_path, monkeypatch, method.backbone, LINES)
    batch = first(built)
    made_of = registry.named_objective(text, method, built)(method.start(2), batch)
    _, logprobs_BT = method.read(method.start(2), batch.tokens_BT, batch.lengths_B)
    mean = -float(logprobs_BT[batch.counted_BT].mean())
    assert float(made_of.nats) == pytest.approx(mean * float(batch.lengths_B.sum()), rel=1e-4)
    if text == "lm":
        assert float(made_of.loss.detach()) == pytest.approx(float(made_of.nats), rel=1e-6)


def test_an_answer_is_predicted_from_the_memory_alone(built: Corpus, method: AnyMethod) -> None:
    batch = first(built)
    total = count = 0.0
    for row, document in enumerate(batch.documents):
        entry, tokens = built.documents[document], built.piece(document)[None]
        state, _ = method.read(method.start(), tokens[:, : entry.context])
        assert isinstance(method, GenerativeAdapter)
        state = method.apply(method.adapter(state))
        _, logprobs_BT = method.read(state, tokens[:, entry.context :])
        begin, end = entry.answers[0]
        total -= float(logprobs_BT[:, begin - entry.context : end - entry.context].sum())
        count += end - begin
        assert int(batch.lengths_B[row]) == entry.tokens
    loss = registry.named_objective("answers", method, built)(method.start(2), batch).loss
    assert float(loss.detach()) == pytest.approx(total / count * float(batch.lengths_B.sum()), rel=1e-3)
    assert torch.autograd.grad(loss, list(method.learned.parameters()), allow_unused=True)[0] is not None


def test_behind_a_baseline_it_is_the_closed_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(tiny(), WindowConfig(N=64, rank=2, weights="none"))
    built = prepared(tmp_path, monkeypatch, window.backbone, LINES)
    batch = first(built)
    other = Batch(**{**vars(batch), "tokens_BT": batch.tokens_BT.clone()})
    for row, length in enumerate(batch.context_B.tolist()):
        other.tokens_BT[row, :length] = 5
    objective = registry.named_objective("answers", window, built)
    losses = [float(objective(window.start(2), each).loss.detach()) for each in (batch, other)]
    assert losses[0] == losses[1]


def test_following_it_answers_from_the_context(built: Corpus, method: AnyMethod) -> None:
    batch, objective = first(built), registry.named_objective("answers(contrast=5)", method, built)
    optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        made_of = objective(method.start(2), batch)
        made_of.loss.backward()
        optimiser.step()
        losses.append(float(made_of.nats))
    assert losses[-1] < losses[0] / 2


def test_documents_that_do_not_fit_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: AnyMethod
) -> None:
    built = prepared(tmp_path, monkeypatch, method.backbone, LINES)
    longest = max(built.documents[n].tokens for n in built.training)
    objective = registry.named_objective("answers", method, built)
    objective.check(longest)
    with pytest.raises(UserError, match=f"use --segment {longest}"):
        objective.check(longest - 1)
    plain = prepared(tmp_path, monkeypatch, method.backbone, [{"text": f"plain {n}"} for n in range(5)])
    with pytest.raises(UserError, match="has no answers"):
        registry.named_objective("answers", method, plain).check(100)


@pytest.mark.parametrize(
    "line",
    [
        {"context": "", "prompt": "a", "answer": "b"},
        {"context": "a", "prompt": "a", "answer": ""},
        {"context": "a", "prompt": 3, "answer": "b"},
        {"context": "a", "turns": []},
        {"context": "a", "turns": [{"prompt": "a"}]},
        {"context": "a", "turns": 4},
        {"prompt": "a", "answer": "b"},
        {"text": "\ud800"},
        {"text": ["a"]},
        ["text"],
        "text",
        3,
    ],
)
def test_a_wrong_line_is_one_sentence(
    line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: AnyMethod
) -> None:
    with pytest.raises(UserError, match=r"Line 1 of .* holds no text: write"):
        prepared(tmp_path, monkeypatch, method.backbone, [line])


LONG_LINES = [
    {**line, "context": f"The ship {n} sails on. " * 9, "answer": f"It is {n}"} for n, line in enumerate(LINES)
]


def test_validation_scores_the_answers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learner()
    built = prepared(tmp_path, monkeypatch, method.backbone, LONG_LINES)
    validate = Validator(method, built, options(history=40, scored=24, documents=2), 32)
    losses = []
    for row, document in enumerate(validate.documents):
        (first_answered, end), tokens = built.documents[document].answers[0], built.piece(document)
        assert torch.equal(torch.cat((validate.history_BH[row], validate.scored_BS[row])), tokens[end - 64 : end])
        _, logprobs_BT = method.read(method.start(), tokens[None, end - 64 : end])
        losses.append(-float(logprobs_BT[0, first_answered - end :].double().mean()))
    assert validate().loss == pytest.approx(sum(losses) / 2, abs=1e-5)


def test_texts_of_a_single_document_must_hold_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learner()
    built = prepared(tmp_path, monkeypatch, method.backbone, LONG_LINES[:1])
    with pytest.raises(UserError, match="no answer among the tokens"):
        Validator(method, dataclasses.replace(built, held="all"), options(history=20, scored=8), 32)
