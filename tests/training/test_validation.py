"""Validation: fixed texts, a gain that a window does not have, and a share that is 0 and 1 where it must be."""

from __future__ import annotations

import dataclasses
import random
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from toy_corpus import corpus, corpus_of, learner, options, tiny

from contextlab.errors import UserError
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.parts.blocks import BlockMethod
from contextlab.methods.sliding import Sliding
from contextlab.methods.window import Window, WindowConfig
from contextlab.training.corpus import Corpus
from contextlab.training.validation import Stopped, Validator


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    return corpus(tmp_path, monkeypatch, documents=60)


def validator(method: Any, built: Corpus, **changed: Any) -> Validator:
    return Validator(method, built, options(**changed), 32)


def test_a_window_gains_nothing_and_is_where_the_share_begins(built: Corpus) -> None:
    validation = validator(Window(tiny(), WindowConfig(N=32)), built)()
    assert (validation.content_gain, validation.content_error) == (0.0, 0.0)
    assert validation.loss == validation.wrong == validation.none == pytest.approx(validation.window)
    assert validation.share is None or validation.share == pytest.approx(0.0, abs=1e-6)


def test_full_attention_is_where_the_share_ends(built: Corpus) -> None:
    validation = validator(Full(tiny()), built)()
    assert validation.loss == pytest.approx(validation.full)
    assert validation.share is None or validation.share == pytest.approx(1.0, abs=1e-6)


def test_the_gain_is_what_the_own_history_gives(built: Corpus) -> None:
    method = Sliding(tiny())
    validate = validator(method, built)
    gains = []
    rows = len(validate.documents)
    for row in range(rows):
        losses = []
        for history in (row, (row + 1) % rows):
            state, _ = method.read(method.start(), validate.history_BH[history][None], logprobs=False)
            losses.append(-float(method.read(state, validate.scored_BS[row][None])[1][:, 1:].double().mean()))
        gains.append(losses[1] - losses[0])
    validation = validate()
    _, logprobs_BS = method.read(method.start(rows), validate.scored_BS)
    assert validation.none == pytest.approx(-float(logprobs_BS[:, 1:].double().mean()), abs=1e-5)
    assert validation.content_gain == pytest.approx(statistics.fmean(gains), abs=1e-5)
    assert len(set(validate.documents)) == rows == validation.documents
    assert validation.content_error == pytest.approx(statistics.stdev(gains) / rows**0.5, abs=1e-5)
    assert validation.wrong - validation.loss == pytest.approx(validation.content_gain, abs=1e-9)


def test_texts_are_those_of_held_back_documents(built: Corpus) -> None:
    validate = validator(learner(), built, documents=3)
    assert len(validate.documents) == 3
    assert set(validate.documents) <= set(built.held_back)
    assert validate.history_BH.shape == (3, 64)
    assert validate.scored_BS.shape == (3, 32)
    for row, document in enumerate(validate.documents):
        whole = built.piece(document).tolist()
        text = torch.cat((validate.history_BH[row], validate.scored_BS[row])).tolist()
        assert any(whole[n : n + len(text)] == text for n in range(len(whole)))


def test_it_is_the_same_every_time_and_draws_nothing(built: Corpus) -> None:
    method = learner(init="paper")
    validate = validator(method, built)
    before = torch.get_rng_state()
    first, second = validate(), validator(method, built)()
    assert torch.equal(torch.get_rng_state(), before)
    assert (first.loss, first.wrong, first.window, first.full) == (
        second.loss,
        second.wrong,
        second.window,
        second.full,
    )


def test_references_are_measured_once(built: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = validator(learner(), built)
    validate()
    monkeypatch.setattr(Full, "read", lambda *_, **__: pytest.fail("measured again"))
    validate()
    other = validator(learner(), built)
    other.references = validate.references
    assert other().full == validate.references[1]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_no_more_texts_are_read_side_by_side_than_a_step_reads(
    rows: int, built: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = (learner(), Full(tiny()))
    at_once = [validator(method, built, rows=12)() for method in methods]
    sizes = []
    read = BlockMethod.read
    monkeypatch.setattr(
        BlockMethod,
        "read",
        lambda self, state, *args, **options: (sizes.append(state.batch_size), read(self, state, *args, **options))[1],
    )
    for method, expected in zip(methods, at_once, strict=True):
        validation = validator(method, built, rows=rows)()
        assert max(sizes) == rows < validation.documents == expected.documents
        for name in ("loss", "wrong", "none", "content_gain", "content_error", "window", "full"):
            assert getattr(validation, name) == pytest.approx(getattr(expected, name), abs=1e-5)


def test_it_ends_between_two_texts_where_it_is_asked_to(built: Corpus) -> None:
    validate = validator(learner(), built, rows=1)
    answers = iter([False, False, True])
    with pytest.raises(Stopped):
        validate(lambda: next(answers))
    assert next(answers, None) is None
    assert validate() == dataclasses.replace(validator(learner(), built, rows=1)(), seconds=ANY)


def test_validations_cost_about_a_twentieth(built: Corpus) -> None:
    validate = validator(learner(), built)
    every = validate.every(options(tokens=10**6))
    assert validate.tokens / (3 * every) <= 0.05
    assert validate.every(options(tokens=10**6, evaluate_every=77)) == 77


@pytest.mark.parametrize(("length", "history", "scored"), [(200, 64, 32), (80, 54, 26), (40, 27, 13), (2, 1, 1)])
def test_short_documents_have_short_texts(length: int, history: int, scored: int) -> None:
    validate = validator(learner(), corpus_of([length] * 9))
    assert (validate.history_BH.shape[1], validate.scored_BS.shape[1]) == (history, scored)


def test_a_history_that_would_be_cut_is_refused() -> None:
    """A history of one token once made a window look as if it had a memory."""
    with pytest.raises(UserError, match="1900 tokens and 1 to score do not fit the 128 positions of the model"):
        Validator(learner(), corpus_of([2000] * 9), options(history=1900), 32)
    with pytest.raises(UserError, match="90 tokens and 20 to score do not fit the 100 tokens of held-back texts"):
        Validator(learner(), corpus_of([100] * 9), options(history=90, scored=20), 32)
    exact = Validator(learner(), corpus_of([2000] * 9), options(history=100, scored=28), 32)
    assert (exact.history_BH.shape[1], exact.scored_BS.shape[1]) == (100, 28)


def test_without_settings_a_segment_of_all_positions_leaves_a_history() -> None:
    whole = Validator(learner(), corpus_of([2000] * 9), options(), 128)
    assert (whole.history_BH.shape[1], whole.scored_BS.shape[1]) == (86, 42)


def test_the_window_starts_cold_where_scoring_begins(built: Corpus) -> None:
    """Whatever the history: also one that is no multiple of its length."""
    whole = Validator(learner(), built, options(history=50, scored=32), 32)
    window = Window(tiny(), WindowConfig(N=32))
    _, logprobs_BS = window.read(window.start(len(whole.documents)), whole.scored_BS)
    assert whole().window == pytest.approx(-float(logprobs_BS[:, 1:].mean()), abs=1e-6)


def test_documents_of_one_token_are_one_sentence() -> None:
    with pytest.raises(UserError, match="held back of made have one token: give longer texts"):
        validator(learner(), corpus_of([1] * 9))


def test_several_texts_of_a_document_stand_apart(built: Corpus) -> None:
    validate, few = (validator(learner(), built, documents=3, texts=texts) for texts in (4, 1))
    assert validate.documents == few.documents * 4
    assert validate.history_BH.shape == (12, 64)
    assert len({tuple(row) for row in validate.history_BH.tolist()}) == 12
    assert all(a != b for a, b in zip(validate.documents, validate.documents[1:] + validate.documents[:1], strict=True))


def test_the_standard_error_counts_documents_and_not_their_texts(built: Corpus) -> None:
    """Against leaving out every document in turn, and against a thousand draws of documents."""
    method = Sliding(tiny())
    validate = validator(method, built, documents=3, texts=4)
    validation, gains = validate(), list[float]()
    for row in range(12):
        losses = []
        for history in (row, (row + 1) % 12):
            state, _ = method.read(method.start(), validate.history_BH[history][None], logprobs=False)
            losses.append(-float(method.read(state, validate.scored_BS[row][None])[1][:, 1:].double().mean()))
        gains.append(losses[1] - losses[0])
    books = {
        book: [g for g, n in zip(gains, validate.documents, strict=True) if n == book] for book in validate.documents
    }
    means = [statistics.fmean(texts) for texts in books.values()]
    left_out = [statistics.fmean(means[:n] + means[n + 1 :]) for n in range(3)]
    jackknife = (2 / 3 * sum((mean - statistics.fmean(left_out)) ** 2 for mean in left_out)) ** 0.5
    assert validation.content_error == pytest.approx(jackknife, abs=1e-5)
    draw = random.Random(0)
    drawn = [statistics.fmean(draw.choices(means, k=3)) for _ in range(4000)]
    assert statistics.pstdev(drawn) * (3 / 2) ** 0.5 == pytest.approx(jackknife, rel=0.05)
    assert validation.documents == 3


def test_more_documents_than_are_held_back_are_refused(built: Corpus) -> None:
    """Without a number there are as many as are long enough, at most twelve."""
    few = corpus_of([200] * 9)
    assert len(few.held_back) == 2
    assert len(validator(learner(), few).documents) == 2
    with pytest.raises(UserError, match=r"holds back 2 documents of at least 96 tokens.*documents=3 asks for more"):
        validator(learner(), few, documents=3)
    with pytest.raises(UserError, match=r"documents=12 asks for more: give more texts, or --validation DIR\.$"):
        validator(learner(), few, documents=12, protocol="fair")
    with pytest.raises(UserError, match=r"documents=2 asks for more: give more texts, or --validation DIR\.$"):
        validator(learner(), dataclasses.replace(few, held="all", documents=few.documents[:1]), documents=2)
    assert len(validator(learner(), built).documents) == min(len(built.held_back), 12)


def test_reconstruction_scores_the_end_of_the_history_from_the_memory_alone(built: Corpus) -> None:
    method = GenerativeAdapter(tiny(), GenerativeAdapterConfig(chunk=32, d_r=8, r=4, weights="none"))
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    validate = validator(method, built, validation="reconstruction", texts=2)
    assert torch.equal(validate.scored_BS, validate.history_BH[:, -32:])
    measured = validate()
    state, _ = method.read(method.start(len(validate.documents)), validate.history_BH)
    with torch.no_grad():
        alone = method.memory_alone(state)
    loss = -float(method.read(alone, validate.scored_BS)[1][:, 1:].double().mean())
    assert measured.loss == pytest.approx(loss, abs=1e-5)
    assert measured.wrong != measured.loss
    full, _ = Full(method.backbone).read(Full(method.backbone).start(len(validate.documents)), validate.history_BH)
    seen = -float(Full(method.backbone).read(full, validate.scored_BS)[1][:, 1:].double().mean())
    assert measured.full == pytest.approx(seen, abs=1e-5)


def test_a_window_reconstructs_as_it_reads_cold(built: Corpus) -> None:
    measured = validator(Window(tiny(), WindowConfig(N=32)), built, validation="reconstruction")()
    assert measured.content_gain == 0.0
    assert measured.loss == pytest.approx(measured.window)


def test_what_is_scored_may_be_shorter_than_a_segment(built: Corpus) -> None:
    validate = Validator(learner(), built, options(scored=16, history=80), 32)
    assert (validate.history_BH.shape[1], validate.scored_BS.shape[1]) == (80, 16)


def test_a_single_document_gives_two_texts() -> None:
    alone = Validator(learner(), corpus_of([250]).with_ends_held_back(), options(), 32)
    assert len(alone.documents) == 2
    assert not torch.equal(alone.scored_BS[0], alone.scored_BS[1])
    assert alone().content_error is None


@pytest.mark.parametrize("held_back", [6, 50, 293])
@pytest.mark.parametrize("texts", [1, 3])
def test_the_other_history_of_a_single_document_does_not_hold_what_is_scored(held_back: int, texts: int) -> None:
    built = corpus_of([5 * held_back]).with_ends_held_back()
    alone = Validator(learner(), built, options(texts=texts), 32)
    scored = [set(text.tolist()) for text in alone.scored_BS]
    histories = [set(text.tolist()) for text in alone.history_BH]
    assert all(not text & histories[n - 1] for n, text in enumerate(scored))
