from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab.errors import UserError
from contextlab.kernels.eva_chunk_compress import eva_chunk_compress
from contextlab.methods.evalm import CausalEVA

FIXTURES = ["eva/e1_w8c4_f64", "eva/e2_ragged_w16c4_f64", "eva/e3_w_eq_c_norpe_f32"]


def built(hyper: Any, arrays: Any) -> Any:
    dtype = getattr(torch, hyper["dtype"])
    module = CausalEVA(
        hyper["heads"] * hyper["head_dim"],
        hyper["heads"],
        hyper["window_size"],
        hyper["chunk_size"],
        adaptive=hyper["adaptive_proj"],
        relative_bias=hyper["use_t5_rpe"],
        overlap=hyper["overlap_window"],
    ).to(dtype)
    module.load_state_dict({name[2:]: array for name, array in arrays.items() if name.startswith("w.")})
    return module, 1e-9 if dtype == torch.float64 else 1e-5


@pytest.mark.parametrize("name", FIXTURES)
def test_forward_and_gradients_equal_the_released_module(fixture: Any, name: str) -> None:
    description, arrays = fixture(name)
    module, tolerance = built(description["hyper"], arrays)
    x = arrays["x"].clone().requires_grad_()
    out = module(x.transpose(0, 1)).transpose(0, 1)
    with torch.no_grad():
        fused = module(x.transpose(0, 1)).transpose(0, 1)
    for result in (out, fused):
        assert (result - arrays["out"]).abs().max() <= tolerance * arrays["out"].abs().max()
    (out * arrays["grad_out"]).sum().backward()
    gradients = {"grad_x": x.grad, **{f"grad.{name}": p.grad for name, p in module.named_parameters()}}
    assert gradients.keys() == {key for key in arrays if key.startswith("grad") and key != "grad_out"}
    for key, gradient in gradients.items():
        expected = arrays[key]
        assert (gradient - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1), key


@pytest.mark.parametrize("name", FIXTURES)
def test_means_equal_the_released_modules(fixture: Any, name: str) -> None:
    description, arrays = fixture(name)
    module, tolerance = built(description["hyper"], arrays)
    x_BTC = arrays["x"].transpose(0, 1)
    q, k = (proj(x_BTC).unflatten(-1, (module.heads, -1)).transpose(1, 2) for proj in (module.q_proj, module.k_proj))
    for mean, key in zip(module.means(q, k), ("mid.q_bar", "mid.k_bar"), strict=True):
        expected = arrays[key][:, :, : mean.shape[2]]
        assert (mean - expected).abs().max() <= tolerance * expected.abs().max()


def random(window: int = 8, chunk: int = 4, **options: Any) -> Any:
    return CausalEVA(16, 4, window, chunk, **options).double()


OPTIONS = [
    {},
    {"relative_bias": True, "overlap": True},
    {"adaptive": "no-ln", "remote_visibility": "before_window"},
    {"overlap": True, "remote_visibility": "before_window"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_no_output_depends_on_what_follows(options: dict[str, bool | str]) -> None:
    module, x = random(**options), torch.randn(1, 29, 16, dtype=torch.float64, requires_grad=True)
    out = module(x)
    for t in (0, 3, 4, 11, 15, 16, 28):
        (reached,) = torch.autograd.grad(out[0, t].sum(), x, retain_graph=True)
        assert torch.equal(reached[0, t + 1 :], torch.zeros_like(reached[0, t + 1 :]))
        assert (reached[0, : t + 1].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("options", OPTIONS)
def test_right_padding_changes_nothing_before_it(options: dict[str, bool | str]) -> None:
    module, x = random(**options), torch.randn(2, 21, 16, dtype=torch.float64)
    padded = torch.cat((x, torch.randn(2, 7, 16, dtype=torch.float64)), dim=1)
    torch.testing.assert_close(module(padded)[:, :21], module(x))


@pytest.mark.parametrize(("window", "chunk", "length"), [(8, 8, 8), (8, 4, 3), (16, 16, 5)])
def test_short_inputs_are_local_attention(window: int, chunk: int, length: int) -> None:
    module, x = random(window, chunk), torch.randn(1, length, 16, dtype=torch.float64)
    q, k, v = (proj(x).unflatten(-1, (4, -1)).transpose(1, 2) for proj in (module.q_proj, module.k_proj, module.v_proj))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(module(x), module.out_proj(plain.transpose(1, 2).flatten(2)))


def test_own_chunks_are_seen_before_the_chunk_only() -> None:
    """With W 8 and c 4, tokens 4 to 7 depend on chunk 0 as a summary (of queries, too) in the papers' form alone."""
    x = torch.randn(1, 8, 16, dtype=torch.float64)
    outs = []
    for visibility in ("before_chunk", "before_window"):
        torch.manual_seed(3)
        module = random(remote_visibility=visibility)
        before = module(x)
        with torch.no_grad():
            module.adaptive_mu_q[0].weight.mul_(3)
        outs.append((module(x) - before).abs().amax((0, 2)) > 0)
    assert outs[0].tolist() == [False] * 4 + [True] * 4
    assert not outs[1].any()


def test_noise_is_explicit_and_moves_what_sees_summaries() -> None:
    module, x = random(), torch.randn(2, 21, 16, dtype=torch.float64)
    noise = module.draw(2, 21, torch.Generator().manual_seed(1))
    plain, drawn = module(x), module(x, noise)
    assert noise.shape == (2, 4, 6, 4)
    torch.testing.assert_close(module(x, noise * 0), plain)
    assert torch.equal(module(x, noise), drawn)
    moved = (plain - drawn).abs().amax((0, 2)) > 0
    assert moved.tolist() == [False] * 4 + [True] * 17


def test_biases_follow_the_distance_over_windows() -> None:
    bias = random(relative_bias=True, overlap=True).rel_pos_bias
    table = bias.relative_attention_bias.weight[:, 0]
    distance = torch.arange(-3, 40)[None]
    biases = bias(distance)[0]
    torch.testing.assert_close(biases[:11], table[[0, 0, 0, *range(8)]])
    assert biases[-1] == table[15]


def test_shifted_distances_are_those_of_indices_in_the_extended_window() -> None:
    """As in the released module: the query's index in its window less the key's among the 2 W keys in its view."""
    module = random(relative_bias=True, overlap=True, shifted_distances=True)
    x = torch.randn(1, 29, 16, dtype=torch.float64)
    heads = (proj(x).unflatten(-1, (4, -1)).transpose(1, 2) for proj in (module.q_proj, module.k_proj, module.v_proj))
    q, k, v = heads
    chunk_k = module.means(q, k)[1]
    chunk_v = eva_chunk_compress(*module.means(q, k), k, v, chunk=4, scale=0.5)
    expected = torch.empty_like(q)
    for t in range(29):
        begin = t // 8 * 8
        keys = range(max(begin - 8, 0), t + 1)
        index = torch.tensor([(t - begin) - (key - begin + 8) for key in keys])
        local = q[:, :, t, None] @ k[:, :, keys].transpose(-1, -2) * 0.5 + module.rel_pos_bias(index) * 0.5
        remote = q[:, :, t, None] @ chunk_k[:, :, : t // 4].transpose(-1, -2) * 0.5
        values = torch.cat((v[:, :, keys], chunk_v[:, :, : t // 4]), dim=2)
        expected[:, :, t] = (torch.cat((local, remote), dim=-1).softmax(-1) @ values)[:, :, 0]
    torch.testing.assert_close(module(x), module.out_proj(expected.transpose(1, 2).flatten(2)))
    true = random(relative_bias=True, overlap=True)
    true.load_state_dict(module.state_dict())
    assert not torch.allclose(true(x), module(x))


def test_without_overlap_no_distance_is_shifted() -> None:
    shifted, true = (random(relative_bias=True, shifted_distances=shift) for shift in (True, False))
    true.load_state_dict(shifted.state_dict())
    x = torch.randn(1, 29, 16, dtype=torch.float64)
    assert torch.equal(shifted(x), true(x))


@pytest.mark.parametrize(
    ("arguments", "message"), [((16, 4, 8, 3), "W=8 must be a multiple"), ((18, 4, 8, 4), "width")]
)
def test_sizes_that_do_not_fit(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CausalEVA(*arguments)
