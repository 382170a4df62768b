"""Document streams: every document once a pass, in order, row beside row, and resumable at every segment."""

from __future__ import annotations

from collections import Counter

import hypothesis
import pytest
import torch
from hypothesis import strategies
from toy_corpus import corpus_of

from contextlab.errors import UserError
from contextlab.training.corpus import Corpus
from contextlab.training.streams import Streams, balanced

lengths_of_documents = strategies.lists(strategies.integers(1, 40), min_size=4, max_size=12)


def read(streams: Streams, batches: int) -> list[list[int]]:
    """What every row has read, padding left out."""
    rows: list[list[int]] = [[] for _ in streams.rows]
    for _ in range(batches):
        batch = streams.next()
        for row, length in enumerate(batch.lengths_B.tolist()):
            rows[row] += batch.tokens_BT[row, :length].tolist()
    return rows


@hypothesis.given(lengths_of_documents, strategies.integers(1, 4), strategies.integers(1, 9))
def test_every_document_is_read_once_a_pass_and_in_order(lengths: list[int], rows: int, segment: int) -> None:
    corpus = corpus_of(lengths)
    streams = Streams(corpus, range(len(lengths)), rows, segment, seed=3)
    seen: list[dict[int, list[int]]] = [{} for _ in range(rows)]
    while any(epoch == 0 for epoch, _, _ in streams.position):
        epochs = [epoch for epoch, _, _ in streams.position]
        batch = streams.next()
        for row in range(rows):
            piece = batch.tokens_BT[row, : batch.lengths_B[row]].tolist()
            assert 1 <= len(piece) <= segment
            if epochs[row] == 0:
                whole = seen[row].setdefault(batch.documents[row], [])
                assert batch.begins[row] == len(whole)
                assert bool(batch.fresh_B[row]) == (len(whole) == 0)
                whole += piece
    for document in range(len(lengths)):
        holders = [of_row[document] for of_row in seen if document in of_row]
        assert holders == [corpus.piece(document).tolist()]


@hypothesis.given(lengths_of_documents, strategies.integers(1, 4))
def test_groups_are_about_equally_long(lengths: list[int], groups: int) -> None:
    dealt = balanced(dict(enumerate(lengths)), groups)
    assert Counter(n for group in dealt for n in group) == Counter(range(len(lengths)))
    totals = [sum(lengths[n] for n in group) for group in dealt]
    assert max(totals) - min(totals) <= max(lengths)


@pytest.mark.parametrize("before", [0, 1, 7, 40])
def test_a_position_is_all_that_is_needed_to_go_on(before: int) -> None:
    corpus = corpus_of([13, 7, 30, 5, 22, 9])
    whole, cut = (Streams(corpus, range(6), 3, 4, seed=1) for _ in range(2))
    read(whole, before)
    cut.position = [(int(epoch), int(place), int(begin)) for epoch, place, begin in whole.position]
    for _ in range(30):
        batch, other = whole.next(), cut.next()
        assert torch.equal(batch.tokens_BT, other.tokens_BT)
        assert torch.equal(batch.lengths_B, other.lengths_B)
        assert torch.equal(batch.fresh_B, other.fresh_B)
        assert (batch.documents, batch.begins) == (other.documents, other.begins)


def test_the_order_is_the_seeds_and_changes_from_pass_to_pass() -> None:
    corpus = corpus_of([8] * 12)

    def orders(seed: int) -> list[list[int]]:
        return [Streams(corpus, range(12), 2, 4, seed).order(0, epoch) for epoch in range(3)]

    assert orders(0) == orders(0)
    assert orders(0) != orders(1)
    assert len({tuple(order) for order in orders(0)}) > 1
    assert all(sorted(order) == sorted(orders(0)[0]) for order in orders(0))


def test_processes_read_what_one_would_read_in_all_rows() -> None:
    corpus = corpus_of([13, 7, 30, 5, 22, 9, 4, 18])
    whole = read(Streams(corpus, range(8), 4, 5), 12)
    parts = [read(Streams(corpus, range(8), 4, 5, mine=range(first, first + 2)), 12) for first in (0, 2)]
    assert parts[0] + parts[1] == whole


def test_only_the_documents_that_are_named_are_read() -> None:
    streams = Streams(corpus_of([5] * 9), [1, 4, 6], 2, 3)
    assert {document for _ in range(40) for document in streams.next().documents} == {1, 4, 6}


def test_more_rows_than_documents_are_one_sentence() -> None:
    corpus: Corpus = corpus_of([5] * 9)
    with pytest.raises(UserError, match="has 3 documents to train on, fewer than 4 rows: use --rows 3 or fewer"):
        Streams(corpus, [1, 4, 6], 4, 3)


@hypothesis.given(lengths_of_documents, strategies.integers(1, 4), strategies.integers(1, 9))
def test_shuffled_every_whole_sequence_and_every_short_document_is_read_once_a_pass(
    lengths: list[int], rows: int, segment: int
) -> None:
    corpus = corpus_of(lengths)
    whole = [(n, begin) for n, length in enumerate(lengths) for begin in range(0, length - segment + 1, segment)]
    wanted = sorted([*whole, *((n, 0) for n, length in enumerate(lengths) if length < segment)])
    hypothesis.assume(len(wanted) >= rows)
    streams = Streams(corpus, range(len(lengths)), rows, segment, seed=3, shuffled=True, sequence=segment)
    seen = []
    while any(epoch == 0 for epoch, _, _ in streams.position):
        epochs = [epoch for epoch, _, _ in streams.position]
        batch = streams.next()
        assert batch.lengths_B.tolist() == [min(segment, lengths[n]) for n in batch.documents]
        assert bool(batch.fresh_B.all())
        for row, length in enumerate(batch.lengths_B.tolist()):
            begin = batch.begins[row]
            expected = corpus.piece(batch.documents[row], begin, begin + length)
            assert batch.tokens_BT[row, :length].tolist() == expected.tolist()
            seen += [(batch.documents[row], begin)] if epochs[row] == 0 else []
    assert sorted(seen) == wanted


def test_shuffled_streams_go_on_from_a_position_in_an_order_of_the_seed() -> None:
    corpus = corpus_of([50] * 6)
    whole, cut, other = (Streams(corpus, range(6), 3, 4, seed=seed, shuffled=True, sequence=4) for seed in (1, 1, 2))
    before = read(whole, 7)
    assert before != read(other, 7)
    cut.position = list(whole.position)
    assert cut.fits(whole.position)
    assert read(cut, 30) == read(whole, 30)
    assert len({begin // 4 for row in before for begin in row[::4]}) > 12


def test_fewer_sequences_than_rows_are_one_sentence() -> None:
    with pytest.raises(UserError, match="has 3 sequences to train on, fewer than 4 rows: use --rows 3"):
        Streams(corpus_of([5, 5, 3]), range(3), 4, 4, shuffled=True, sequence=4)


@pytest.mark.parametrize(("segment", "sequence"), [(5, 12), (4, 12), (5, 5), (3, 100)])
def test_a_long_document_is_cut_into_texts_that_begin_anew(segment: int, sequence: int) -> None:
    corpus = corpus_of([61])
    streams = Streams(corpus, [0], 1, segment, sequence=sequence)
    begin = 0
    while begin < 61:
        batch = streams.next()
        length = int(batch.lengths_B)
        assert batch.begins == (begin,)
        assert batch.tokens_BT[0].tolist() == list(range(begin, begin + length))
        assert bool(batch.fresh_B) == (begin % sequence == 0)
        within = begin % sequence
        assert length == min(segment, sequence - within, 61 - begin)
        begin += length
    assert streams.next().begins == (0,)


def test_a_position_inside_a_document_that_is_cut_is_gone_on_from() -> None:
    corpus = corpus_of([61, 40, 33])
    whole, resumed = (Streams(corpus, range(3), 2, 5, sequence=12) for _ in range(2))
    for _ in range(9):
        whole.next()
    assert resumed.fits(whole.position)
    resumed.position = list(whole.position)
    for _ in range(20):
        batch, other = whole.next(), resumed.next()
        assert torch.equal(batch.tokens_BT, other.tokens_BT)
        assert torch.equal(batch.fresh_B, other.fresh_B)


def test_a_text_is_a_segment_at_least() -> None:
    corpus = corpus_of([61, 61, 61])
    whole, longer = (Streams(corpus, range(3), 1, 7, sequence=sequence) for sequence in (7, 3))
    assert read(whole, 20) == read(longer, 20)


def test_shuffled_sequences_are_read_segment_by_segment_from_an_empty_state() -> None:
    corpus = corpus_of([61, 61, 61])
    streams = Streams(corpus, range(3), 1, 4, shuffled=True, sequence=12)
    begins = list[tuple[int, int]]()
    for _ in range(15):
        parts = [streams.next() for _ in range(3)]
        (first,), (document,) = parts[0].begins, parts[0].documents
        assert [bool(part.fresh_B) for part in parts] == [True, False, False]
        assert [(*part.documents, *part.begins) for part in parts] == [(document, first + n) for n in (0, 4, 8)]
        begins.append((document, first))
    assert sorted(begins) == [(n, begin) for n in range(3) for begin in range(0, 60, 12)]


@pytest.mark.parametrize("shuffled", [True, False])
def test_what_was_read_of_every_document_is_known_from_the_positions(shuffled: bool) -> None:
    corpus = corpus_of([61, 40, 33])
    streams = Streams(corpus, range(3), 2, 5, shuffled=shuffled, sequence=10)
    counted = dict.fromkeys(range(3), 0)
    for _ in range(40):
        batch = streams.next()
        for document, length in zip(batch.documents, batch.lengths_B.tolist(), strict=True):
            counted[document] += length
        assert streams.read() == {n: tokens for n, tokens in counted.items() if tokens}
