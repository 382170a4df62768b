from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.generative_adapter.generator import LayerGenerator
from contextlab.methods.generative_adapter.normalise import factors
from contextlab.methods.parts.targets import Target

KINDS = {"svd_full": "svd", "svd_rank_r": "svd", "fro": "frobenius", "none": "none"}
EXACT = {"atol": 1e-9, "rtol": 1e-9}


def layer_generator(
    width: int = 12, inputs: int = 8, outputs: int = 10, d_r: int = 6, *, gain: bool = True, seed: int = 0
) -> Any:
    nothing = torch.nn.Identity()
    target = Target("0", nothing, nothing, inputs, outputs, 0)
    layer = LayerGenerator(width, d_r, target, gain=gain, random=torch.Generator().manual_seed(seed)).double()
    torch.nn.init.normal_(layer.A1)
    return layer


def of_fixture(arrays: Any, variant: Any) -> Any:
    width, d_r = arrays["B1"].shape
    layer = layer_generator(width, arrays["B2"].shape[1], arrays["A1"].shape[0], d_r, gain=variant == "rms")
    parts = ("A1", "A2", "B1", "B2", *(["gain"] if variant == "rms" else []))
    layer.load_state_dict({name: arrays[name] for name in parts})
    return layer


@pytest.mark.parametrize("variant", ["paper", "rms"])
@pytest.mark.parametrize("name", ["ga_square", "ga_rankdef", "ga_skewed"])
def test_reference_numbers(fixture: Any, name: str, variant: str) -> None:
    _, arrays = fixture(f"hso_ga/{name}")
    layer = of_fixture(arrays, variant)
    d_r, scale = len(arrays["A2"]), float(arrays["alpha"]) / len(arrays["A2"])
    S = arrays[f"{variant}_S_0"]
    for t in range(1, len(arrays["chunk_lens"]) + 1):
        S = S + layer.gram(arrays[f"H_{t}"][None])[0]
        torch.testing.assert_close(S, arrays[f"{variant}_S_{t}"], **EXACT)
        torch.testing.assert_close(torch.linalg.svdvals(S), arrays[f"{variant}_singvals_{t}"], **EXACT)
        for part, kind in KINDS.items():
            rank = int(arrays["r"]) if part == "svd_rank_r" else d_r
            left, right = factors(S, rank, GenerativeAdapterConfig(normalisation=kind))
            N = left if right is None else left @ right
            torch.testing.assert_close(N, arrays[f"{variant}_{part}_N_{t}"], **EXACT)
            change = layer.A1 @ left @ (layer.B2 if right is None else right @ layer.B2)
            torch.testing.assert_close(change, arrays[f"{variant}_{part}_W_{t}"], **EXACT)
            out = arrays["x"] @ (arrays["W_base"] + scale * change).mT
            torch.testing.assert_close(out, arrays[f"{variant}_{part}_out_{t}"], **EXACT)


def test_tokens_in_any_order_and_in_any_pieces_give_the_same_sum() -> None:
    layer, hidden = layer_generator(), torch.randn(2, 20, 12, dtype=torch.float64)
    whole = layer.gram(hidden)
    torch.testing.assert_close(layer.gram(hidden[:, torch.randperm(20)]), whole)
    torch.testing.assert_close(layer.gram(hidden[:, :7]) + layer.gram(hidden[:, 7:]), whole)


def test_padding_has_no_effect_whatever_stands_in_it() -> None:
    layer, hidden = layer_generator(), torch.randn(2, 9, 12, dtype=torch.float64)
    real = torch.arange(9) < torch.tensor([[4], [0]])
    hidden[:, 5] = float("nan")
    gram = layer.gram(hidden, real)
    torch.testing.assert_close(gram[0], layer.gram(hidden[:1, :4])[0])
    assert not bool(gram[1].any())


def test_the_norm_takes_the_size_of_states_away_and_can_be_left_out() -> None:
    hidden = torch.randn(1, 9, 12, dtype=torch.float64)
    normed, plain = layer_generator(gain=True), layer_generator(gain=False)
    torch.testing.assert_close(normed.gram(100 * hidden), normed.gram(hidden), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(plain.gram(10 * hidden), 100 * plain.gram(hidden))


def test_sums_are_kept_in_float32_for_narrow_weights() -> None:
    layer = layer_generator().bfloat16()
    assert layer.gram(torch.randn(1, 3, 12, dtype=torch.bfloat16)).dtype == torch.float32


def test_the_start_is_seeded_and_of_the_released_variance() -> None:
    random = torch.Generator().manual_seed(3)
    target = Target("0", torch.nn.Identity(), torch.nn.Identity(), 300, 10, 0)
    first = LayerGenerator(400, 200, target, gain=True, random=random)
    random.manual_seed(3)
    again = LayerGenerator(400, 200, target, gain=True, random=random)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not bool(first.A1.any())
    for weight, fan_in in ((first.A2, 400), (first.B1, 400), (first.B2, 300)):
        assert float(weight.detach().var()) == pytest.approx(1 / (3 * fan_in), rel=0.03)


def test_gradients_reach_every_parameter() -> None:
    layer = layer_generator()
    hidden = torch.randn(1, 20, 12, dtype=torch.float64)

    def change(*parameters: Any) -> Any:
        by_name = dict(zip(names, parameters, strict=True))
        S = torch.func.functional_call(_Gram(layer), {f"layer.{n}": p for n, p in by_name.items()}, (hidden,))[0]
        left, right = factors(S, 3, GenerativeAdapterConfig())
        return by_name["A1"] @ left @ right @ by_name["B2"]

    names = [name for name, _ in layer.named_parameters()]
    assert sorted(names) == ["A1", "A2", "B1", "B2", "gain"]
    assert torch.autograd.gradcheck(change, tuple(layer.parameters()))


class _Gram(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Any) -> Any:
        return self.layer.gram(hidden)
