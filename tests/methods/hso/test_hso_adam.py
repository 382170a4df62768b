from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab.methods.hso.adam import Step
from contextlab.methods.hso.config import HSOConfig

CASES = ["hso_adam_paper", "hso_adam_alt"]
VARIANTS = ["adam", "adam_present", "sgd", "sgd_present", "adam2", "adam2_present"]


def step(config: Any, count_S: Tensor, like: Any) -> Any:
    lr = torch.full((1, 1, 1, 1), config.lr, dtype=torch.float64)
    return Step.of(config, lr, count_S[None, None, :, None], like)


def move(config: Any, h: Any, g: Any, m: Any, v: Tensor, count_S: Tensor) -> None:
    """States `x_SD` in the shape that the method moves."""
    if config.optimizer == "sgd":
        step(config, count_S, h).sgd(h[None, None], g[None, None])
    else:
        step(config, count_S, h).adam(*(x[None, None] for x in (h, g, m, v)))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("eviction", ["slide", "reset"])
@pytest.mark.parametrize("name", CASES)
def test_the_reference_values_of_every_window(
    fixture: Any, shared: Path, name: str, eviction: str, variant: str
) -> None:
    _, arrays = fixture(f"hso_ga/{name}")
    case = json.loads((shared / "fixtures" / "hso_ga" / "index.json").read_text())[name]
    config = HSOConfig(
        **{key: case[key] for key in ("lr", "beta1", "beta2", "eps")}, optimizer="sgd" if "sgd" in variant else "adam"
    )
    h = m = v = torch.zeros(0, case["state_dim"], dtype=torch.float64)
    count_S = torch.zeros(0, dtype=torch.int64)
    for window, size in enumerate(case["window_lens"]):
        if eviction == "reset" and window == case["reset_before_window"]:
            h, m, v, count_S = h[:0], m[:0], v[:0], count_S[:0]
        new = arrays[f"new_{window}"]
        h, m, v = torch.cat((h, new)), *(torch.cat((x, torch.zeros_like(new))) for x in (m, v))
        count_S = torch.cat((count_S, torch.zeros(size, dtype=torch.int64)))
        low = len(h) - size if variant.endswith("present") else 0
        for number in range(2 if "adam2" in variant else 1):
            count_S[low:] += 1
            g = arrays[f"{eviction}_grad_{window}_{number}"]
            move(config, h[low:], g[low:], m[low:], v[low:], count_S[low:])
        h, m, v, count_S = (x[-case["cap"] :] for x in (h, m, v, count_S))
        key = f"{eviction}_{variant}_%s_{window}"
        torch.testing.assert_close(h, arrays[key % "h"], rtol=1e-9, atol=1e-12)
        if config.optimizer == "adam":
            torch.testing.assert_close(m, arrays[key % "m"], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(v, arrays[key % "v"], rtol=1e-9, atol=1e-12)


def test_equals_one_independent_adam_per_state() -> None:
    config = HSOConfig(lr=0.01, beta1=0.8, beta2=0.95)
    starts = torch.tensor([0, 0, 2, 5])
    h = torch.randn(4, 3, dtype=torch.float64)
    alone = [torch.nn.Parameter(row.clone()) for row in h]
    adams = [torch.optim.Adam([x], lr=0.01, betas=(0.8, 0.95), eps=1e-8) for x in alone]
    m, v = torch.zeros_like(h), torch.zeros_like(h)
    for time in range(8):
        g = torch.randn_like(h)
        there = int((starts <= time).sum())
        move(config, h[:there], g[:there], m[:there], v[:there], time - starts[:there] + 1)
        for x, adam, gradient in zip(alone[:there], adams, g, strict=False):
            x.grad = gradient.clone()
            adam.step()
    torch.testing.assert_close(h, torch.stack([x.detach() for x in alone]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("betas", [(0.65, 0.9), (0.0, 0.0), (0.99, 0.5)])
def test_a_first_step_is_the_sign_of_the_gradient_whatever_the_betas(betas: tuple[float, float]) -> None:
    config = HSOConfig(beta1=betas[0], beta2=betas[1])
    h, g = torch.zeros(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    move(config, h, g, torch.zeros_like(h), torch.zeros_like(h), torch.ones(5, dtype=torch.int64))
    torch.testing.assert_close(h, -config.lr * g.sign(), rtol=1e-5, atol=0)


def test_states_without_gradient_and_moments_stay_where_they_are() -> None:
    h = torch.randn(4, 3)
    before = h.clone()
    zeros = [torch.zeros_like(h) for _ in range(3)]
    move(HSOConfig(), h, *zeros, torch.tensor([1, 1, 7, 40]))
    assert torch.equal(h, before)
    assert not any(x.any() for x in zeros)
