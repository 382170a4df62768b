from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab import backbone as backbones
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Dialogue, Session
from contextlab.benchmarks.protocols.responses import ResponseProtocol
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.methods.full import Full
from contextlab.methods.window import Window, WindowConfig

LAST = Session("Session 5", (("Speaker 1", "Hello there."), ("Speaker 2", "Hi!"), ("Speaker 1", "Bye now.")))
OWN = Dialogue("a", "a", "Session 1\nSpeaker 1: I have a dog.", LAST)
OTHER = Dialogue("b", "b", "Session 1\nSpeaker 1: I have two cats and a parrot.", LAST)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return backbones.load("tiny-llama", device="cpu")


@torch.no_grad()
def run(method: Any, **options: Any) -> dict[str, Any]:
    return ResponseProtocol(Options(**options)).evaluate(Meter(method, Ledger("cpu", counting=False)), OWN, OTHER)


def scored_by_hand(tiny: Any, before: str) -> float:
    """Nats of the two responses, with everything in one text."""
    method, total = Full(tiny), 0.0
    text = f"{before}\n\nSession 5\nSpeaker 1: Hello there.\nSpeaker 2:"
    for response, after in ((" Hi!", "\nSpeaker 1:"), (" Bye now.", "")):
        tokens = torch.tensor([tiny.encode(text + response)])
        with torch.no_grad():
            _, logprobs = method.read(method.start(), tokens)
        assert logprobs is not None
        total -= float(logprobs[0, len(tiny.encode(text)) :].sum())
        text += response + after
    return total


def test_all_turns_but_the_first_are_scored_and_names_are_not(tiny: Any) -> None:
    record = run(Full(tiny))
    assert record["tokens"] == len(tiny.encode(" Hi!")) + len(tiny.encode(" Bye now."))
    assert record["nats"] == pytest.approx(scored_by_hand(tiny, OWN.earlier), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "before"),
    [
        ({"context": "none"}, ""),
        ({"context": "wrong"}, OTHER.earlier[-len(OWN.earlier) :]),
        ({"tokens": 6}, OWN.earlier[-6:]),
    ],
)
def test_the_controls_change_what_is_read_before(tiny: Any, options: dict[str, Any], before: str) -> None:
    record = run(Full(tiny), **options)
    assert record["context_tokens"] == len(before)
    assert record["nats"] == pytest.approx(scored_by_hand(tiny, before), abs=1e-3)


def test_a_session_finds_a_window_that_reaches_to_its_end(tiny: Any) -> None:
    length = len(tiny.encode("\n\nSession 5" + "".join(f"\n{who}: {text}" for who, text in LAST.turns)))
    record = run(Window(tiny, WindowConfig(N=length)))
    assert record["nats"] == pytest.approx(run(Full(tiny), context="none")["nats"], abs=1e-3)


def test_sessions_longer_than_the_method_reads_are_refused(tiny: Any) -> None:
    class Short(Full):
        @property
        def capabilities(self) -> Any:
            return type(super().capabilities)(max_context=20)

    with pytest.raises(UserError, match="keep less with --tokens"):
        run(Short(tiny))


def test_metrics_are_ratios_of_sums_over_works() -> None:
    protocol = ResponseProtocol(Options())
    records = [{"id": str(n), "work": str(n // 2), "nats": 2.0 * n, "tokens": n + 1} for n in range(4)]
    metrics = protocol.summarise(records)
    assert list(metrics) == ["nats_per_token", "token_perplexity"]
    assert metrics["nats_per_token"].value == pytest.approx(12 / 10)
    assert metrics["token_perplexity"].value == pytest.approx(2.718281828 ** (12 / 10))
    assert protocol.quality(records[3]) == pytest.approx(6 / 4)
