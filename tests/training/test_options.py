"""Options of a run: a method's own defaults, and a learning rate that does what its schedule says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import strategies

from contextlab.config import MethodConfig
from contextlab.errors import UserError
from contextlab.methods.evalm import EVALMConfig
from contextlab.methods.generative_adapter import GenerativeAdapterConfig
from contextlab.methods.longmem import LongMemConfig
from contextlab.methods.trime import TRIMEConfig
from contextlab.training.options import TrainConfig

SCHEDULES = ("linear", "polynomial", "cosine", "constant")


class Own(MethodConfig):
    """With an optimiser of its own."""

    training_defaults: ClassVar[Mapping[str, Any]] = {"lr": 0.5, "clip": 9.0}


def test_what_is_given_comes_before_the_methods_own_and_that_before_the_general() -> None:
    settings = TrainConfig.of(Own, {"tokens": 10, "lr": 0.25})
    assert (settings.lr, settings.clip, settings.rows) == (0.25, 9.0, TrainConfig(tokens=1).rows)


def test_longmem_trains_with_its_papers_optimiser() -> None:
    settings = TrainConfig.of(LongMemConfig, {"tokens": 10})
    assert (settings.lr, settings.betas, settings.eps, settings.weight_decay) == (2e-4, (0.9, 0.98), 1e-6, 0.01)
    assert (settings.clip, settings.schedule, settings.warmup) == (2.0, "polynomial", 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "tokens of train has no default"),
        ({"tokens": 0}, "tokens=0"),
        ({"tokens": 5, "lr": -1}, "lr=-1"),
        ({"tokens": 5, "lrr": 1}, "did you mean 'lr'"),
        ({"tokens": 5, "betas": [0.9, 1.5]}, "betas"),
        ({"tokens": 5, "schedule": "step"}, "schedule='step'"),
        ({"tokens": 5, "documents": 1}, "documents=1"),
        ({"tokens": 5, "rates": "bias"}, "write a pattern of names"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainConfig.of(MethodConfig, options)


@hypothesis.given(
    strategies.sampled_from(SCHEDULES),
    strategies.integers(1, 10**6),
    strategies.floats(0, 0.9),
    strategies.floats(0, 1),
)
def test_a_rate_rises_in_the_warmup_and_falls_behind_it(schedule: Any, tokens: int, warmup: float, at: float) -> None:
    settings = TrainConfig(tokens=tokens, schedule=schedule, warmup=warmup, lr=2.0)
    now, later = sorted((at, min(1.0, at + 0.05)))
    rates = [settings.rate(round(share * tokens)) for share in (now, later)]
    assert all(0 <= rate <= 2.0 for rate in rates)
    if round(later * tokens) / tokens < warmup:
        assert rates[0] <= rates[1]
    if round(now * tokens) / tokens >= warmup:
        assert rates[0] >= rates[1] - 1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_begins_and_ends_where_it_says(schedule: Any) -> None:
    settings = TrainConfig(tokens=1000, schedule=schedule, warmup=0.0, lr=3.0)
    assert settings.rate(0) == 3.0
    assert settings.rate(1000) == pytest.approx(3.0 if schedule == "constant" else 0.0)
    warm = TrainConfig(tokens=1000, schedule=schedule, warmup=0.1, lr=3.0)
    assert 0 < warm.rate(0) < warm.rate(50) < warm.rate(100) == 3.0


def test_the_power_of_a_polynomial_counts() -> None:
    rates = [TrainConfig(tokens=100, schedule="polynomial", power=p, warmup=0, lr=1).rate(50) for p in (1, 2, 3)]
    assert rates == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(("segment", "own", "positions", "length"), [(7, 64, 128, 7), (None, 64, 128, 64)])
def test_a_segment_is_the_given_one_or_the_methods(segment: Any, own: int, positions: int, length: int) -> None:
    assert TrainConfig(tokens=1, segment=segment).length(own, positions) == length
    assert TrainConfig(tokens=1).length(None, 128) == 128
    assert TrainConfig(tokens=1).length(None, 8192) == 1024
    assert TrainConfig(tokens=1, segments=3).length(64, 128) == 192
    assert TrainConfig(tokens=1, segments=3, segment=5).length(64, 128) == 5


@pytest.mark.parametrize("kind", [EVALMConfig, GenerativeAdapterConfig])
def test_what_writes_its_memory_learns_from_more_than_one_segment(kind: Any) -> None:
    assert TrainConfig.of(kind, {"tokens": 1}).segments == 2


def test_a_run_goes_on_with_the_same_course_only() -> None:
    settings = TrainConfig(tokens=100)
    stored = json.loads(json.dumps(settings.as_dict()))
    assert settings.same_course(stored) is None
    assert TrainConfig(tokens=100, evaluate_every=5, checkpoint_every=1).same_course(stored) is None
    assert TrainConfig(tokens=100, betas=(0.9, 0.9)).same_course(stored) == "betas"
    assert TrainConfig(tokens=200).same_course(stored) == "tokens"
    assert TrainConfig(tokens=100, scored=8).same_course(stored) == "scored"
    constant = TrainConfig(tokens=100, schedule="constant", warmup=0)
    longer = TrainConfig(tokens=200, schedule="constant", warmup=0)
    assert longer.same_course(json.loads(json.dumps(constant.as_dict()))) is None
    assert longer.same_course({}) == "schedule"
    assert settings.same_course({name: value for name, value in stored.items() if name != "segments"}) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, 8192),
        ({"sequence": 300}, 300),
        ({"sequence": "segment"}, 1024),
        ({"order": "documents"}, None),
        ({"order": "documents", "sequence": 300}, 300),
    ],
)
def test_a_text_is_a_shuffled_sequence_unless_whole_documents_are_asked_for(
    options: dict[str, Any], text: int | None
) -> None:
    settings = TrainConfig.parse({"tokens": 1, **options}, "train")
    assert settings.order == options.get("order", "shuffled")
    assert settings.text(1024) == text


def test_a_text_of_trime_is_one_segment_whose_memory_has_gradients() -> None:
    assert TrainConfig.of(TRIMEConfig, {"tokens": 1}).text(4096) == 4096
