from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab.benchmarks.examples import Choice, Document
from contextlab.benchmarks.protocols.spans import ChoiceProtocol, PerplexityProtocol
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.method import Capabilities, ContextMethod, Lengths, State

VOCABULARY = 64


@dataclasses.dataclass(frozen=True)
class Seen(State):
    """The counts of all tokens that a toy has read."""

    counts: Tensor


class Unigram(ContextMethod):
    """Predicts a token by how often it was read, with add-one smoothing; words are numbers, BOS is ignored."""

    def __init__(self, **capabilities: Any) -> None:
        backbone = SimpleNamespace(
            name="toy",
            vocab_size=VOCABULARY,
            exclusive=nullcontext,
            encode=lambda text: [int(word) for word in text.split()],
            decode=lambda tokens: " ".join(map(str, tokens)),
            with_bos=list,
        )
        super().__init__(backbone)  # type: ignore[arg-type]
        self._capabilities = Capabilities(**capabilities)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Seen:
        zero = torch.zeros(batch_size, dtype=torch.int64)
        return Seen(zero, torch.zeros(batch_size, 1), torch.zeros(batch_size, VOCABULARY))

    def read(
        self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[Seen, Tensor | None]:
        counts_BV, scored = state.counts.clone(), torch.zeros(tokens_BT.shape)
        lengths = [tokens_BT.shape[1]] * len(tokens_BT) if lengths_B is None else lengths_B.tolist()
        for row, length in enumerate(lengths):
            for position, token in enumerate(tokens_BT[row, :length].tolist()):
                scored[row, position] = torch.log((counts_BV[row, token] + 1) / (counts_BV[row].sum() + VOCABULARY))
                counts_BV[row, token] += 1
        read = Seen(state.length_B + torch.tensor(lengths), state.pending_BC, counts_BV)
        return read, scored if logprobs else None


class FakeMeter:
    """Passes every call to the method and records it."""

    def __init__(self, **capabilities: Any) -> None:
        self.method = Unigram(**capabilities)
        self.backbone, self.capabilities = self.method.backbone, self.method.capabilities
        self.ahead: Lengths | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.kept: list[int] = []

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Any:
        self.ahead = ahead
        return self.method.start(batch_size)

    def read(self, phase: str, state: Any, tokens_BT: Tensor, lengths_B: Any = None, *, logprobs: bool = True) -> Any:
        self.calls.append(("read", phase, tokens_BT[0].tolist(), logprobs))
        return self.method.read(state, tokens_BT, lengths_B, logprobs=logprobs)

    def score(self, phase: str, state: Any, candidates: Sequence[Sequence[int]]) -> Tensor:
        self.calls.append(("score", phase, [list(candidate) for candidate in candidates]))
        return self.method.score(state, candidates)

    def keep(self, state: Any) -> None:
        self.calls.append(("keep",))
        self.kept.append(int(state.length_B[0]))


def words(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def run(protocol: Any, meter: FakeMeter, example: Any, other: Any = None) -> dict[str, Any]:
    record: dict[str, Any] = protocol.evaluate(meter, example, other)
    return record


OWN = Choice("own/0", "own", words([7] * 30), ("1 1 1", "7 7 7 7", "2 3"), 1)
OTHER = Choice("other/0", "other", words([2] * 20 + [1] * 40), ("1", "2"), 0)


def choice(context: Any = "own", **capabilities: Any) -> tuple[dict[str, Any], FakeMeter]:
    meter = FakeMeter(**capabilities)
    return run(ChoiceProtocol(20, 4, Options(context=context)), meter, OWN, OTHER), meter


def test_a_choice_reads_the_context_once_and_scores_all_candidates_after_it() -> None:
    record, meter = choice()
    assert meter.calls == [
        ("read", "contextualize", [7] * 16, False),
        ("keep",),
        ("score", "query", [[1, 1, 1], [7, 7, 7, 7], [2, 3]]),
    ]
    assert (record["prediction"], record["answer"], record["correct"]) == (1, 1, True)
    assert (record["lengths"], record["context_tokens"], record["own_context_tokens"]) == ([3, 4, 2], 16, 16)
    assert ChoiceProtocol(20, 4, Options()).quality(record) == 1.0


def test_nats_are_means_over_the_tokens_of_a_candidate() -> None:
    record, _ = choice()
    assert record["nats"][2] == pytest.approx(-(math.log(1 / 80) + math.log(1 / 81)) / 2, rel=1e-6)
    assert record["nats"][1] == pytest.approx(-sum(math.log((17 + i) / (80 + i)) for i in range(4)) / 4, rel=1e-6)


def test_candidates_are_cut_from_the_right_and_contexts_from_the_left() -> None:
    meter = FakeMeter()
    example = Choice("a/0", "a", words(range(30)), (words(range(9)), "5"), 0)
    run(ChoiceProtocol(10, 4, Options()), meter, example)
    assert meter.calls[0][2] == [24, 25, 26, 27, 28, 29]
    assert meter.calls[-1][2] == [[0, 1, 2, 3], [5]]


def test_no_context_is_an_empty_one() -> None:
    record, meter = choice("none")
    assert [call[0] for call in meter.calls] == ["keep", "score"]
    assert (meter.kept, record["context_tokens"], record["own_context_tokens"]) == ([0], 0, 16)


def test_a_wrong_context_is_the_end_of_another_one_of_the_same_length() -> None:
    record, meter = choice("wrong")
    assert meter.calls[0][2] == [1] * 16
    assert (record["prediction"], record["correct"]) == (0, False)
    short = dataclasses.replace(OTHER, context="3 3")
    record = run(ChoiceProtocol(20, 4, Options(context="wrong")), FakeMeter(), OWN, short)
    assert (record["context_tokens"], record["own_context_tokens"]) == (2, 16)


@given(st.integers(0, 40), st.none() | st.integers(5, 40))
def test_upstreams_contexts_are_cut_only_where_both_do_not_fit(length: int, limit: int | None) -> None:
    words = [n % VOCABULARY for n in range(length)]
    example = dataclasses.replace(OWN, context=" ".join(map(str, words)))
    meter = FakeMeter(max_context=limit)
    record = run(ChoiceProtocol(20, 4, Options(), whole=True), meter, example)
    room = min(20 + 4, limit or 20 + 4) - 4
    kept = words[max(length - room, 0) :]
    assert record["context_tokens"] == record["own_context_tokens"] == len(kept)
    assert [call[2] for call in meter.calls if call[:2] == ("read", "contextualize")] == ([kept] if kept else [])


def test_equal_candidates_go_to_the_first() -> None:
    example = Choice("a/0", "a", "1", ("5", "5", "5"), 2)
    assert run(ChoiceProtocol(20, 4, Options()), FakeMeter(), example)["prediction"] == 0


@pytest.mark.parametrize("context", ["own", "none"])
def test_ahead_holds_the_lengths_of_the_context_and_of_the_longest_candidate(context: Any) -> None:
    meter = FakeMeter()
    record = run(ChoiceProtocol(40, 4, Options(context=context)), meter, OWN)
    assert meter.ahead == Lengths(record["context_tokens"], 4)


def test_a_context_longer_than_the_method_reads_is_an_error_that_says_so() -> None:
    with pytest.raises(UserError, match=r"Unigram reads at most 19 tokens .* 20 are needed: choose a shorter split"):
        choice(max_context=19)
    assert choice(max_context=20)[0]["correct"]
    assert choice("none", max_context=19)[0]["context_tokens"] == 0


def test_choice_metrics_are_accuracy_and_the_nats_of_the_truth() -> None:
    protocol = ChoiceProtocol(20, 4, Options())
    rows = [([1.0, 2.0], [4, 2], 0, True), ([3.0, 2.0], [4, 2], 0, False), ([1.0, 0.5], [4, 6], 1, True)]
    records = [
        {"id": f"{i}", "work": f"w{i % 2}", "nats": nats, "lengths": lengths, "answer": answer, "correct": correct}
        for i, (nats, lengths, answer, correct) in enumerate(rows)
    ]
    metrics = protocol.summarise(records)
    assert metrics["accuracy"].value == pytest.approx(2 / 3)
    assert metrics["nats_per_token"].value == pytest.approx((4 + 12 + 3) / 14)
    assert metrics["nats_per_token"].n == 3
    assert [protocol.quality(record) for record in records] == [1.0, 0.0, 1.0]
    one_work = protocol.summarise(records[::2])["nats_per_token"]
    assert (one_work.low, one_work.high) == (None, None)


def document(name: str, count: int, start: int = 0) -> Document:
    return Document(name, words([(start + i) % VOCABULARY for i in range(count)]))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 700))
def test_reading_in_pieces_is_reading_at_once(piece: int) -> None:
    text = document("a", 700)
    whole = run(PerplexityProtocol(Options()), FakeMeter(), text)
    pieces = run(PerplexityProtocol(Options(), piece=piece), FakeMeter(), text)
    assert pieces.pop("segments") == pytest.approx(whole.pop("segments"))
    assert pieces == whole


def test_a_whole_document_is_scored_and_its_state_kept() -> None:
    meter = FakeMeter()
    record = run(PerplexityProtocol(Options(tokens=2500)), meter, document("a", 3000))
    reads = [(call[1], len(call[2]), call[3]) for call in meter.calls if call[0] == "read"]
    assert reads == [("query", 1024, True), ("query", 1024, True), ("query", 452, True)]
    assert meter.kept == [1024, 2048, 2500]
    assert (record["id"], record["tokens"], record["words"]) == ("a", 2500, 2500)


def test_spans_add_up() -> None:
    record = run(PerplexityProtocol(Options()), FakeMeter(), document("a", 1500))
    assert {name: record[name]["tokens"] for name in ("first_segment", "after_first", "cold", "warm")} == {
        "first_segment": 1024,
        "after_first": 476,
        "cold": 512,
        "warm": 988,
    }
    for early, late in (("first_segment", "after_first"), ("cold", "warm")):
        assert record[early]["nats"] + record[late]["nats"] == pytest.approx(record["nats"])
    assert record["segments"][0] == pytest.approx(record["first_segment"]["nats"] / 1024)
    assert record["segments"][1] == pytest.approx(record["after_first"]["nats"] / 476)


def test_cold_tokens_are_the_first_of_those_that_are_scored() -> None:
    """Whatever their positions in the document: a window begins where the history ends."""
    record = run(PerplexityProtocol(Options(history=100, scored=600)), FakeMeter(), document("a", 2000))
    assert (record["cold"]["tokens"], record["warm"]["tokens"]) == (256, 344)


@pytest.mark.parametrize(("context", "first"), [("own", 0), ("wrong", 32), ("none", None)])
def test_a_history_is_read_without_scores_and_the_next_1024_tokens_are_scored(context: Any, first: int | None) -> None:
    meter = FakeMeter()
    protocol = PerplexityProtocol(Options(context=context, history=100))
    record = run(protocol, meter, document("a", 2000), document("b", 150, start=32))
    *before, keep, query = meter.calls
    if first is None:
        assert (before, meter.kept) == ([], [0])
    else:
        assert before == [("read", "contextualize", [(first + i) % 64 for i in range(100)], False)]
        assert (meter.kept, meter.ahead) == ([100], Lengths(100))
    assert keep == ("keep",)
    assert query == ("read", "query", [(100 + i) % 64 for i in range(1024)], True)
    assert (record["tokens"], record["cold"]["tokens"]) == (1024, 256)
    assert record["first_segment"]["tokens"] == 924


def test_what_lies_before_a_history_is_left_out_and_fewer_tokens_are_scored() -> None:
    meter = FakeMeter()
    protocol = PerplexityProtocol(Options(history=40, begin=10, scored=5))
    record = run(protocol, meter, document("a", 55))
    assert [call[2] for call in meter.calls if call[0] == "read"] == [list(range(10, 50)), list(range(50, 55))]
    assert (record["tokens"], list(record["positions"])) == (5, ["0k"])
    assert "10 + 40 + 5 tokens" in run(protocol, meter, document("a", 54))["skipped"]


@pytest.mark.parametrize("context", ["own", "wrong", "none"])
def test_a_reconstruction_scores_the_end_of_the_own_history_without_its_first_token(context: Any) -> None:
    meter = FakeMeter()
    protocol = PerplexityProtocol(Options(context, history=40, begin=10, scored=5, target="reconstruction"))
    record = run(protocol, meter, document("a", 50), document("b", 50, start=7))
    *before, _, query = meter.calls
    histories = {"own": range(10, 50), "wrong": range(17, 57)}
    assert [call[2] for call in before] == ([list(histories[context])] if context in histories else [])
    assert query == ("read", "query", list(range(45, 50)), True)
    assert record["tokens"] == 4
    text = [*histories.get(context, ()), *range(45, 50)]
    _, logprobs_1T = meter.method.read(meter.method.start(), torch.tensor([text]))
    assert logprobs_1T is not None
    assert record["nats"] == pytest.approx(-float(logprobs_1T[0, -4:].sum()))


def test_documents_that_are_too_short_are_skipped_with_a_reason() -> None:
    protocol = PerplexityProtocol(Options(context="wrong", history=100))
    long, short = document("long", 1124), document("short", 99)
    assert "skipped" not in run(protocol, FakeMeter(), long, long)
    assert "1024" in run(protocol, FakeMeter(), document("less", 1123), long)["skipped"]
    assert "short" in run(protocol, FakeMeter(), long, short)["skipped"]
    empty = run(PerplexityProtocol(Options()), FakeMeter(), Document("empty", ""))
    assert empty == {"id": "empty", "skipped": "the document is empty"}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (Options(context="none"), "add --history"),
        (Options(context="wrong"), "add --history"),
        (Options(history=0), "--history"),
        (Options(history=100, tokens=1123), "--tokens at least 1124"),
        (Options(tokens=0), "--tokens at least 1"),
        (Options(history=100, begin=7, scored=9, tokens=115), "--tokens at least 116"),
        (Options(history=100, target="reconstruction", scored=101), "scored=100 or fewer"),
        (Options(scored=100), "leave scored out"),
        (Options(begin=1), "add --history"),
    ],
)
def test_options_that_do_not_fit_are_errors(options: Options, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        PerplexityProtocol(options)


def test_a_history_longer_than_the_method_reads_is_an_error() -> None:
    protocol = PerplexityProtocol(Options(history=100))
    with pytest.raises(UserError, match="lower --history"):
        run(protocol, FakeMeter(max_context=1123), document("a", 1124))
    run(protocol, FakeMeter(max_context=1124), document("a", 1124))
    run(PerplexityProtocol(Options()), FakeMeter(max_context=64), document("a", 100))


def test_perplexity_metrics_are_ratios_of_sums() -> None:
    protocol = PerplexityProtocol(Options())
    records = [run(protocol, FakeMeter(), document(str(count), count)) for count in (1100, 1600)]
    nats = sum(record["nats"] for record in records)
    metrics = protocol.summarise([*records, {"id": "c", "skipped": "too short"}])
    assert set(metrics) == {
        "nats_per_token",
        "token_perplexity",
        "word_perplexity",
        "nats_per_token_after_first",
        "nats_per_token_cold",
        "nats_per_token_warm",
        "nats_per_token_at_0k",
        "nats_per_token_at_1k",
    }
    assert metrics["nats_per_token"].value == pytest.approx(nats / 2700)
    assert metrics["token_perplexity"].value == metrics["word_perplexity"].value == pytest.approx(math.exp(nats / 2700))
    after = sum(record["after_first"]["nats"] for record in records)
    assert metrics["nats_per_token_after_first"].value == pytest.approx(after / (76 + 576))
    assert {metric.n for metric in metrics.values()} == {2}
    assert protocol.quality(records[0]) == pytest.approx(records[0]["nats"] / 1100)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5000), st.sampled_from([None, 1, 700, 1024, 3000]))
def test_positions_are_doubling_buckets_of_the_document(count: int, history: int | None) -> None:
    record = run(PerplexityProtocol(Options(history=history)), FakeMeter(), document("a", count + (history or 0)))
    if "skipped" in record:
        return
    low, high = (0, count) if history is None else (history, history + 1024)
    edges = [0, *(1024 * 2**n for n in range(5))]
    shares = {f"{a // 1024}k": min(b, high) - max(a, low) for a, b in itertools.pairwise(edges) if a < high and b > low}
    assert {bucket: sums["tokens"] for bucket, sums in record["positions"].items()} == shares
    assert sum(sums["nats"] for sums in record["positions"].values()) == pytest.approx(record["nats"])


def test_buckets_are_means_over_the_documents_that_reach_them() -> None:
    protocol = PerplexityProtocol(Options())
    records = [run(protocol, FakeMeter(), document(str(count), count)) for count in (100, 3000)]
    metrics = protocol.summarise(records)
    assert [name for name in metrics if "_at_" in name] == [f"nats_per_token_at_{k}k" for k in (0, 1, 2)]
    assert [metrics[f"nats_per_token_at_{k}k"].n for k in (0, 1, 2)] == [2, 1, 1]
    assert metrics["nats_per_token_at_2k"].value == pytest.approx(records[1]["positions"]["2k"]["nats"] / 952)
    older = [{key: value for key, value in record.items() if key != "positions"} for record in records]
    assert set(protocol.summarise(older)) == {name for name in metrics if "_at_" not in name}


def test_one_document_has_no_interval_and_short_ones_no_later_buckets() -> None:
    protocol = PerplexityProtocol(Options())
    metrics = protocol.summarise([run(protocol, FakeMeter(), document("a", 200))])
    assert set(metrics) == {"nats_per_token", "token_perplexity", "word_perplexity", "nats_per_token_cold"}
    assert metrics["nats_per_token"].low is None
    with pytest.raises(UserError, match="No document could be scored"):
        protocol.summarise([{"id": "c", "skipped": "too short"}])
