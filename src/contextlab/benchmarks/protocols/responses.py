"""Predicting the responses of a conversation's last session after the sessions before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Dialogue
from contextlab.benchmarks.metrics.estimates import exponential, ratio
from contextlab.benchmarks.prompts import join
from contextlab.benchmarks.protocols.answers import last
from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.method import Lengths
from contextlab.writing import pad

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone


class ResponseProtocol(Protocol):
    """Read the earlier sessions, then the last session in one call, and score its turns from the second on.

    Names of speakers, line ends and the first turn, which is no response, are read and not scored. `options.tokens` is
    the number of last tokens of the earlier sessions that are read; wrong sessions are cut to the length of the own.
    """

    measure = Measure("nats_per_token", higher_is_better=False)

    def __init__(self, options: Options) -> None:
        self.options = options

    def evaluate(self, meter: Meter, example: Dialogue, other: Dialogue) -> dict[str, Any]:
        """Score the responses of one conversation.

        Raises:
            UserError: when all sessions together are longer than the method can read as one text.
        """
        encode = meter.backbone.encode
        own = last(encode(example.earlier), self.options.tokens)
        chosen = {"own": own, "none": [], "wrong": last(encode(other.earlier), len(own))}
        context = chosen[self.options.context]
        tokens, scored = _session(meter.backbone, example)
        check_fits(meter, len(context) + len(tokens), "keep less with --tokens")
        state = contextualize(meter, context, Lengths(len(context), len(tokens)))
        _, logprobs_BT = meter.read("query", state, pad([tokens], state.device)[0])
        assert logprobs_BT is not None
        nats = -float(logprobs_BT[0].double().cpu()[scored].sum())
        return {
            "id": example.id,
            "work": example.work,
            "tokens": len(scored),
            "nats": nats,
            "context_tokens": len(context),
            "own_context_tokens": len(own),
        }

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Nats per token of the responses and their perplexity."""
        per_token = ratio([part for record in records for part in self.parts(record)["nats_per_token"]])
        return {"nats_per_token": per_token, "token_perplexity": exponential(per_token)}

    def quality(self, record: dict[str, Any]) -> float:
        """Nats per token: lower is better."""
        return float(record["nats"] / record["tokens"])

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """Nats weighted by tokens; conversations that are parts of one conversation are a cluster."""
        return {"nats_per_token": [Part(record["nats"], record["tokens"], record["work"])]}


def _session(backbone: Backbone, example: Dialogue) -> tuple[list[int], list[int]]:
    """The tokens of the last session, and the indices of those that are scored."""
    tokens = backbone.encode(f"\n\n{example.last.heading}")
    scored: list[int] = []
    for number, (speaker, text) in enumerate(example.last.turns):
        named, response = join(backbone, f"\n{speaker}:", f" {text}")
        tokens += named
        if number:
            scored += range(len(tokens), len(tokens) + len(response))
        tokens += response
    return tokens, scored
