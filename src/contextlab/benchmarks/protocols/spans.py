"""Protocols that score texts: a choice between candidates, and the perplexity of a document.

Reading a context is the phase "contextualize", scoring is the phase "query". The state between the two phases is what
a method has to keep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contextlab.benchmarks.examples import Choice, Document
from contextlab.benchmarks.metrics.estimates import exponential, proportion, ratio
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.errors import UserError
from contextlab.method import Lengths, State
from contextlab.writing import pad

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter

WINDOW = 1024
COLD = 256
SPANS = ("first_segment", "after_first", "cold", "warm")
AFTER_HISTORY = ("begin", "scored", "target")
"""Options of what is read and scored with a history."""


class ChoiceProtocol(Protocol):
    """Read a context once, score all candidates after it, and predict the one with the lowest perplexity per token.

    Context and candidates are tokenised separately, as in ChapterBreak. Candidates keep their first `suffix_tokens`
    tokens, contexts their last `context_tokens - suffix_tokens`. A wrong context is cut from the left to the length of
    the own context; it may be shorter.

    With `whole`, contexts keep their last `context_tokens`, or as many as the method can read before a candidate.
    """

    measure = Measure("accuracy", higher_is_better=True, bounded=True)

    def __init__(self, context_tokens: int, suffix_tokens: int, options: Options, whole: bool = False) -> None:
        self.context_tokens, self.suffix_tokens, self.options = context_tokens, suffix_tokens, options
        self.whole = whole

    def evaluate(self, meter: Meter, example: Choice, other: Choice) -> dict[str, Any]:
        """Score the candidates of one example.

        Raises:
            UserError: when context and candidate are longer than the method can read as one text.
        """
        if self.options.context != "none" and not self.whole:
            check_fits(meter, self.context_tokens, "choose a shorter split")
        encode = meter.backbone.encode
        own = _last(encode(example.context), self._context_limit(meter))
        wrong = self.options.context == "wrong"
        context = _last(encode(other.context), len(own)) if wrong else own if self.options.context == "own" else []
        candidates = [encode(text)[: self.suffix_tokens] for text in example.candidates]
        lengths = [len(candidate) for candidate in candidates]
        state = contextualize(meter, context, Lengths(len(context), max(lengths)))
        logprobs_NM = meter.score("query", state, candidates)[0].double().cpu()
        nats = [-float(row[:length].sum()) / length for row, length in zip(logprobs_NM, lengths, strict=True)]
        prediction = nats.index(min(nats))
        return {
            "id": example.id,
            "work": example.work,
            "prediction": prediction,
            "answer": example.answer,
            "correct": prediction == example.answer,
            "nats": nats,
            "lengths": lengths,
            "context_tokens": len(context),
            "own_context_tokens": len(own),
        }

    def _context_limit(self, meter: Meter) -> int:
        """The most tokens of a context."""
        if not self.whole:
            return self.context_tokens - self.suffix_tokens
        limit = meter.capabilities.max_context
        both = self.context_tokens + self.suffix_tokens
        room = both if limit is None else min(both, limit - len(meter.backbone.with_bos([])))
        return room - self.suffix_tokens

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Accuracy, and the true candidates' nats per token."""
        parts = [self.parts(record) for record in records]
        return {
            "accuracy": proportion([part for of_example in parts for part in of_example["accuracy"]]),
            "nats_per_token": ratio([part for of_example in parts for part in of_example["nats_per_token"]]),
        }

    def quality(self, record: dict[str, Any]) -> float:
        """1 for a right prediction, else 0: higher is better."""
        return float(record["correct"])

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """The examples of one work are a cluster; nats are weighted by tokens."""
        nats, length, work = record["nats"][record["answer"]], record["lengths"][record["answer"]], record["work"]
        return {
            "accuracy": [Part(float(record["correct"]), 1.0, work)],
            "nats_per_token": [Part(nats * length, length, work)],
        }


class PerplexityProtocol(Protocol):
    """Predict a document token by token.

    Without a history the whole document, up to `options.tokens`, is read from an empty state and scored. With a
    history of H tokens these are read first (the document's own, none, or another document's), and the document's next
    `options.scored` tokens are scored, or with `target=reconstruction` the last of the history once more; a method with
    segments gets a boundary at H. A document that is too short has a record with its id and the reason under `skipped`,
    and is in no metric.

    All metrics include the first segment, in which every method equals its window; `nats_per_token_after_first` leaves
    the document's first 1,024 tokens out. The scored tokens are divided into windows of 1,024: the first 256 of each
    window are cold, the others are warm. `nats_per_token_at_0k`, `_at_1k`, `_at_2k`, `_at_4k` and so on are the means
    over the tokens from that position in the document to twice that position, at 0k over the first 1,024. They are
    left out where all tokens are in one such bucket.
    """

    measure = Measure("nats_per_token", higher_is_better=False)

    def __init__(self, options: Options, piece: int = WINDOW) -> None:
        self.options, self.piece = options, piece
        history, tokens = options.history, options.tokens
        if history is None:
            self._check_whole(options)
        else:
            self._check_history(history, options)
        if tokens is not None and tokens < (least := 1 if history is None else sum(self._parts(history))):
            raise UserError(f"Reading {tokens} tokens of a document is too few here: give --tokens at least {least}.")

    def _check_whole(self, options: Options) -> None:
        if options.context != "own":
            raise UserError(f"A perplexity task has no {options.context} context without history: add --history 4096.")
        changed = [name for name in AFTER_HISTORY if getattr(options, name) != getattr(Options(), name)]
        if changed:
            raise UserError(
                f"Whole documents are scored without a history: add --history 4096, or leave {changed[0]} out."
            )

    def _check_history(self, history: int, options: Options) -> None:
        if history < 1:
            raise UserError(f"A history of {history} tokens is none: give --history a number above 0.")
        if options.target == "reconstruction" and options.scored > history:
            raise UserError(
                f"The end of a history of {history} tokens has no {options.scored} tokens to give back: use "
                f"scored={history} or fewer."
            )

    def _parts(self, history: int) -> tuple[int, int, int]:
        """Tokens of a document that are left out, of its history, and of what is scored after it."""
        return self.options.begin, history, self.options.scored if self.options.target == "completion" else 0

    def evaluate(self, meter: Meter, example: Document, other: Document) -> dict[str, Any]:
        """Score one document.

        Raises:
            UserError: when history and scored tokens are longer than the method can read as one text.
        """
        history, options = self.options.history, self.options
        tokens = meter.backbone.encode(example.text)[: options.tokens]
        if history is None:
            if not tokens:
                return {"id": example.id, "skipped": "the document is empty"}
            return self._read_whole(meter, example, tokens)
        if len(tokens) < sum(self._parts(history)):
            parts = " + ".join(str(n) for n in self._parts(history) if n)
            return {"id": example.id, "skipped": f"the document has fewer than {parts} tokens"}
        read = slice(options.begin, options.begin + history)
        context: list[int] = []
        if options.context != "none":
            check_fits(meter, history + options.scored, "lower --history")
            context = tokens[read] if options.context == "own" else meter.backbone.encode(other.text)[read]
            if len(context) < history:
                return {"id": example.id, "skipped": f"document {other.id}, read instead, has too few tokens"}
        again = options.target == "reconstruction"
        begin = read.stop - options.scored if again else read.stop
        scored = tokens[begin : begin + options.scored]
        state = contextualize(meter, context, Lengths(len(context)))
        _, logprobs_BT = meter.read("query", state, _row(scored, state))
        assert logprobs_BT is not None
        # What follows a history announces its first token; its end does not announce that it begins once more.
        return _record(meter, example, scored[again:], logprobs_BT[0, again:], begin + again)

    def _read_whole(self, meter: Meter, document: Document, tokens: list[int]) -> dict[str, Any]:
        state, parts = meter.start(), []
        if opening := meter.backbone.with_bos([]):
            state, _ = meter.read("query", state, _row(opening, state), logprobs=False)
        for start in range(0, len(tokens), self.piece):
            state, logprobs_BT = meter.read("query", state, _row(tokens[start : start + self.piece], state))
            assert logprobs_BT is not None
            parts.append(logprobs_BT[0].cpu())
            meter.keep(state)
        return _record(meter, document, tokens, torch.cat(parts), 0)

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Nats per token and perplexities; a document is a cluster, and a span without tokens has no metric.

        Raises:
            UserError: when every document was skipped.
        """
        scored = [record for record in records if "skipped" not in record]
        if not scored:
            reason = records[0]["skipped"] if records else "there are none"
            raise UserError(f"No document could be scored ({reason}): lower --history or scored=, or use longer texts.")
        per_token = ratio([part for record in scored for part in self.parts(record)["nats_per_token"]])
        metrics = {"nats_per_token": per_token, "token_perplexity": exponential(per_token)}
        with_words = [Part(record["nats"], record["words"], _cluster(record)) for record in scored if record["words"]]
        if with_words:
            metrics["word_perplexity"] = exponential(ratio(with_words))
        for span in SPANS[1:]:
            sums = [(_cluster(record), record[span]) for record in scored if record[span]["tokens"]]
            if sums:
                metrics[f"nats_per_token_{span}"] = _per_token(sums)
        buckets = {bucket for record in scored for bucket in record.get("positions", {})}
        for bucket in sorted(buckets, key=lambda name: int(name[:-1])) if len(buckets) > 1 else ():
            sums = [(_cluster(r), r["positions"][bucket]) for r in scored if bucket in r.get("positions", {})]
            metrics[f"nats_per_token_at_{bucket}"] = _per_token(sums)
        return metrics

    def quality(self, record: dict[str, Any]) -> float:
        """Nats per token: lower is better. Not defined for skipped records."""
        return float(record["nats"] / record["tokens"])

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """Nats weighted by tokens, the document as a cluster; nothing for a skipped record."""
        return (
            {}
            if "skipped" in record
            else {"nats_per_token": [Part(record["nats"], record["tokens"], _cluster(record))]}
        )


def _cluster(record: dict[str, Any]) -> str:
    return str(record.get("work", record["id"]))


def _per_token(sums: list[tuple[str, dict[str, float]]]) -> Metric:
    """Nats per token over one span of several documents, from pairs of a cluster and sums."""
    return ratio([Part(total["nats"], total["tokens"], document) for document, total in sums])


def _record(meter: Meter, document: Document, tokens: list[int], logprobs_T: Tensor, start: int) -> dict[str, Any]:
    """The sums of one document; `start` is the position of the first scored token in it."""
    nats_T = -logprobs_T.double().cpu()
    positions_T = torch.arange(len(tokens))
    first_T, cold_T = positions_T + start < WINDOW, positions_T % WINDOW < COLD
    masks = dict(zip(SPANS, (first_T, ~first_T, cold_T, ~cold_T), strict=True))
    return {
        "id": document.id,
        **({} if document.cluster is None else {"work": document.cluster}),
        "tokens": len(tokens),
        "nats": float(nats_T.sum()),
        "words": len(meter.backbone.decode(tokens).split()),
        **{name: {"tokens": int(mask.sum()), "nats": float(nats_T[mask].sum())} for name, mask in masks.items()},
        "positions": _positions(nats_T, start),
        "segments": [float(segment.mean()) for segment in torch.split(nats_T, WINDOW)],
    }


def _positions(nats_T: Tensor, start: int) -> dict[str, dict[str, float]]:
    """Tokens and nats by position in the document, in buckets of doubling length: 0k, 1k, 2k, 4k, 8k, ..."""
    buckets, low, high = {}, 0, WINDOW
    while low < start + len(nats_T):
        part = nats_T[max(low - start, 0) : max(high - start, 0)]
        if len(part):
            buckets[f"{low // WINDOW}k"] = {"tokens": len(part), "nats": float(part.sum())}
        low, high = high, 2 * high
    return buckets


def contextualize(meter: Meter, context: list[int], ahead: Lengths) -> State:
    """The state after a context of any length; its size is recorded as what is kept.

    Where the backbone's tokenizer begins texts with BOS, this is read first, before an empty context, too.
    """
    text = meter.backbone.with_bos(context)
    state: State = meter.start(ahead=Lengths(len(text), ahead.question))
    if text:
        state, _ = meter.read("contextualize", state, _row(text, state), logprobs=False)
    meter.keep(state)
    return state


def check_fits(meter: Meter, tokens: int, remedy: str) -> None:
    """Refuse a text that is longer than the method can read as one.

    Raises:
        UserError: which advises `remedy`.
    """
    limit = meter.capabilities.max_context
    tokens += len(meter.backbone.with_bos([]))
    if limit is not None and limit < tokens:
        raise UserError(
            f"{type(meter.method).__name__} reads at most {limit} tokens as one on {meter.backbone.name}, and {tokens} "
            f"are needed: {remedy} or use a backbone with more positions."
        )


def _last(tokens: list[int], count: int) -> list[int]:
    return tokens[-count:] if count > 0 else []


def _row(tokens: list[int], state: State) -> Tensor:
    return pad([tokens], state.device)[0]
