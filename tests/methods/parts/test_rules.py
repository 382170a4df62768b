from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab.errors import UserError
from contextlab.methods.dynamic_eval import DynamicEvalConfig
from contextlab.methods.dynamic_eval.weights import root_mean_square
from contextlab.methods.parts.rules import RMS, SGD, Adam

STEPS = 3
EXACT = {"rtol": 1e-9, "atol": 0}


def tensors(arrays: Any, name: str) -> Any:
    return [arrays[f"{name}_0"], arrays[f"{name}_1"]]


@pytest.fixture(scope="module")
def arrays(fixture: Any) -> Any:
    return fixture("hso_ga/dynamic_eval")[1]


def follow(rule: Any, arrays: Any, name: str) -> None:
    weights = [w.clone() for w in tensors(arrays, "theta0")]
    for step in range(STEPS):
        rule.update(weights, tensors(arrays, f"grad_{step}"), (), (), step + 1)
        for weight, expected in zip(weights, tensors(arrays, f"{name}_{step}"), strict=True):
            torch.testing.assert_close(weight, expected, **EXACT)


def test_statistics_equal_the_reference(arrays: Any) -> None:
    statistics = root_mean_square(tensors(arrays, f"statgrad_{sample}") for sample in range(4))
    for ms, expected in zip(statistics, tensors(arrays, "ms"), strict=True):
        torch.testing.assert_close(ms, expected, **EXACT)


def test_rms_equals_the_reference(arrays: Any) -> None:
    rule = RMS(0.005, 2e-5, 0.2, tensors(arrays, "theta0"), tensors(arrays, "ms"))
    follow(rule, arrays, "rms")


def test_sgd_equals_the_reference(arrays: Any) -> None:
    follow(SGD(0.005), arrays, "sgd")


def test_the_reference_decays_by_its_rate(arrays: Any) -> None:
    """Without a gradient a weight moves by lambda R of the way back."""
    weights = [w + 1 for w in tensors(arrays, "theta0")]
    rule = RMS(0.005, 2e-5, 0.2, tensors(arrays, "theta0"), tensors(arrays, "ms"))
    rule.update(weights, [torch.zeros_like(w) for w in weights], (), (), 1)
    for w, trained, rate in zip(weights, tensors(arrays, "theta0"), tensors(arrays, "rate"), strict=True):
        torch.testing.assert_close(1 - (w - trained), 0.2 * rate.clamp(max=5.0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.1, 1.0, 50.0, 1e9])
def test_decay_never_passes_the_trained_weights(decay: float) -> None:
    trained, weights = [torch.randn(7, 3), torch.randn(5)], [torch.randn(7, 3), torch.randn(5)]
    before = [w.clone() for w in weights]
    RMS(0.1, 1e-5, decay, trained, [torch.rand_like(w) for w in trained]).update(
        weights, [torch.zeros_like(w) for w in weights], (), (), 1
    )
    for w, old, goal in zip(weights, before, trained, strict=True):
        between = (w - goal) * (old - goal)
        assert bool((between >= -1e-6).all())
        assert bool(((w - goal).abs() <= (old - goal).abs() + 1e-6).all())


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.0), (0.65, 0.9)])
def test_adam_equals_torch(betas: tuple[float, float]) -> None:
    ours = [torch.randn(6, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
    theirs = [w.clone().requires_grad_() for w in ours]
    optimiser = torch.optim.Adam(theirs, lr=0.01, betas=betas, eps=1e-6)
    m, v = ([torch.zeros_like(w) for w in ours] for _ in range(2))
    for count in range(1, 6):
        gradients = [torch.randn_like(w) for w in ours]
        for w, g in zip(theirs, gradients, strict=True):
            w.grad = g.clone()
        optimiser.step()
        Adam(0.01, *betas, 1e-6).update(ours, gradients, m, v, count)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-12, atol=1e-12)


def test_statistics_of_nothing_are_an_error() -> None:
    with pytest.raises(UserError, match="at least one segment"):
        root_mean_square([])


def test_what_depends_on_the_rule_is_filled_in_and_stored() -> None:
    adam, sgd = DynamicEvalConfig(), DynamicEvalConfig(rule="sgd")
    assert (adam.as_dict()["lr"], sgd.as_dict()["lr"], adam.eps) == (3e-5, 1e-3, 1e-8)
    assert DynamicEvalConfig.parse({"rule": "sgd", "lr": "0", "segment": "25"}).lr == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "rms"}, "give statistics=FILE"),
        ({"lr": -1}, "lr=-1"),
        ({"beta1": 1.0}, "beta1"),
        ({"segment": 0}, "segment=0"),
        ({"cache": "warm"}, "cache='warm'"),
        ({"rate": 1}, "no setting 'rate'"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, float | str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        DynamicEvalConfig.parse(settings)
