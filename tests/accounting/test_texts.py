from __future__ import annotations

import gc

import torch

from contextlab.accounting.ledger import Ledger, Meter, ReadText, ReadTexts
from contextlab.backbone import load
from contextlab.method import AnyMethod, Lengths
from contextlab.methods.finetune import Finetune, FinetuneConfig
from contextlab.methods.full import Full
from contextlab.methods.window import Window, WindowConfig

TOKENS = torch.arange(40)[None]


def meter(kind: type[AnyMethod] = Window, config: object = WindowConfig(N=16)) -> Meter:
    return Meter(kind(load("tiny-llama"), config), Ledger("cpu"))  # type: ignore[arg-type]


def test_a_meter_puts_the_formula_beside_every_count() -> None:
    metered = meter()
    state, _ = metered.read("contextualize", metered.start(ahead=Lengths(40, 5)), TOKENS, logprobs=False)
    metered.keep(state)
    metered.score("query", state, [[1, 2, 3], [4]])
    metered.generate("query", state, [[1, 2]], max_new_tokens=3)
    measures = metered.take()
    for phase in ("contextualize", "query"):
        assert measures["cost"][phase]["flops_formula"] == measures["cost"][phase]["flops"] > 0
    assert measures["state"]["bytes_formula"] == measures["state"]["bytes"]


def test_formulas_are_there_without_counting() -> None:
    counted, alone = meter(), Meter(meter().method, Ledger("cpu", counting=False))
    costs = []
    for metered in (counted, alone):
        metered.read("query", metered.start(), TOKENS)
        costs.append(metered.take()["cost"]["query"])
    assert costs[0]["flops_formula"] == costs[1]["flops_formula"] == costs[0]["flops"]
    assert costs[1]["flops"] is None


def test_one_call_without_a_formula_leaves_the_phase_without_one() -> None:
    metered = meter()
    metered.read("query", metered.start(), TOKENS)
    metered.read("query", metered.start(2), TOKENS.repeat(2, 1))
    metered.read("contextualize", metered.start(), TOKENS)
    costs = metered.take()["cost"]
    assert costs["query"]["flops_formula"] is None
    assert costs["contextualize"]["flops_formula"] == costs["contextualize"]["flops"]


def test_states_of_unknown_origin_have_no_formula() -> None:
    metered = meter()
    state = metered.method.start()
    state, _ = metered.read("query", state, TOKENS)
    metered.keep(state)
    measures = metered.take()
    assert measures["cost"]["query"]["flops_formula"] is None
    assert measures["state"]["bytes_formula"] is None


def test_a_method_without_a_formula_is_metered_as_before() -> None:
    metered = meter(Finetune, FinetuneConfig(epochs=1))
    state, _ = metered.read("query", metered.start(), TOKENS)
    metered.keep(state)
    measures = metered.take()
    assert measures["cost"]["query"]["flops_formula"] is None
    assert measures["cost"]["query"]["flops"] > 0
    assert measures["state"]["bytes_formula"] is None


def test_texts_of_states_that_are_gone_are_forgotten() -> None:
    method, texts = Full(load("tiny-llama")), ReadTexts()
    state = method.start()
    texts.put(state, ReadText(method.formula(), 3))
    assert texts.of(state).before == 3
    assert texts.of(method.start()).formula is None
    del state
    gc.collect()
    assert not texts._known


def test_a_text_without_a_formula_answers_nothing() -> None:
    text = ReadText().after(5)
    assert text.before == 5
    answers = (text.read(3, logprobs=True), text.score([[1]]), text.generate([[1]], [[2]], 1), text.state_bytes)
    assert answers == (None,) * 4
