"""HSO on cached inputs of layers, against an implementation that makes all keys and values itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from law_forms import PARTS, broken
from test_hso import alone_as_in_parts, hso, naive_attention, plain, read, text
from torch import Tensor

from contextlab.attention import rotate
from contextlab.backbone import load
from contextlab.backbone.wrapper import Backbone
from contextlab.methods.hso import HSOConfig

FAMILIES = ["tiny-llama", "tiny-gpt2"]
SETTINGS = {"states": "inputs", "lr": 0.02}


@pytest.fixture(params=FAMILIES, scope="module")
def exact(request: pytest.FixtureRequest) -> Any:
    return load(request.param, dtype="float64")


class Naive:
    """A model whose states are what the norm in front of every attention gives, `x_1TC` of every layer.

    Attributes:
        past: states of earlier windows, one list of parameters for every few tokens, with their optimiser.
        positions: of these tokens.
        begun: how many tokens of the text were read before the window.
    """

    def __init__(self, backbone: Backbone, config: Any) -> None:
        self.backbone, self.config = backbone, config
        base = backbone.model.base_model
        self.blocks = base.layers if hasattr(base, "layers") else base.h
        self.past, self.positions = [], []

    def keys_and_values(self, layer: int, x: Any) -> Any:
        block = self.blocks[layer]
        if hasattr(block, "self_attn"):
            parts = block.self_attn.k_proj(x), block.self_attn.v_proj(x)
        else:
            parts = block.attn.c_attn(x).chunk(3, -1)[1:]
        return [part.unflatten(-1, (self.backbone.kv_heads, -1)).transpose(1, 2) for part in parts]

    def losses(self, tokens: Tensor, targets: Any, position: Any, *, moved: Any = None, fixed: Any = None) -> Any:
        """Losses of a window and the states of its tokens, moved by a step or, but for the queries, fixed."""
        states = []

        def given(_module: Any, _args: Any, x: Any) -> Any:
            if fixed is None:
                x = x if x.requires_grad else x.detach().requires_grad_()
                x = x if moved is None else x + moved[len(states)]
                states.append(x)
            return x

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, _window: Any) -> Any:
            rotary = self.backbone.rotary(position)
            if fixed is not None:
                k, v = self.keys_and_values(layer, fixed[layer])
            k = rotate(k, rotary)
            if self.past:
                x = torch.cat([parameters[layer] for parameters, _ in self.past], dim=1)
                past_k, past_v = self.keys_and_values(layer, x)
                past_k = rotate(past_k, self.backbone.rotary(torch.cat(self.positions)[None]))
                k, v = torch.cat((past_k, k), 2), torch.cat((past_v, v), 2)
            return naive_attention(rotate(q, rotary), k, v, scale)

        norms = [block.input_layernorm if hasattr(block, "input_layernorm") else block.ln_1 for block in self.blocks]
        hooks = [norm.register_forward_hook(given) for norm in norms]
        hidden = self.backbone.forward(tokens[None], position, attend)
        for hook in hooks:
            hook.remove()
        return -self.backbone.logprobs(hidden, targets[None])[0], states

    def window(self, tokens: Tensor, targets: Any, position: Any) -> Any:
        """Losses of a window; then one step, or two, of one Adam for every token of every layer."""
        config = self.config
        losses, states = self.losses(tokens, targets, position)
        past = [x for parameters, _ in self.past for x in parameters]
        gradients = torch.autograd.grad(losses.sum(), past + states)
        new = []
        for t in range(len(tokens)):
            parameters = [torch.nn.Parameter(x[:, t : t + 1].detach().clone()) for x in states]
            adam = torch.optim.Adam(parameters, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
            new.append((parameters, adam))
        self._step(past, new, gradients)
        if config.steps == 2:
            whole = [torch.cat(xs, dim=1) for xs in zip(*(parameters for parameters, _ in new), strict=True)]
            if config.second == "fixed":
                again, _ = self.losses(tokens, targets, position, fixed=whole)
                leaves = [x for parameters, _ in new for x in parameters]
                gradients = torch.autograd.grad(again.sum(), past + leaves)
                for x, gradient in zip(past + leaves, gradients, strict=True):
                    x.grad = gradient
                for _, adam in (*self.past, *new):
                    adam.step()
            else:
                moved = [(x - old).detach() for x, old in zip(whole, states, strict=True)]
                again, states = self.losses(tokens, targets, position, moved=moved)
                for t, (parameters, _) in enumerate(new):
                    for parameter, x in zip(parameters, states, strict=True):
                        parameter.data = x[:, t : t + 1].detach().clone()
                self._step(past, new, torch.autograd.grad(again.sum(), past + states))
        self.past = (self.past + new)[-self.config.context :]
        self.positions = (self.positions + [p[None] for p in position[0]])[-self.config.context :]
        return losses.tolist()

    def _step(self, past: Any, new: Any, gradients: Any) -> None:
        for x, gradient in zip(past, gradients, strict=False):
            x.grad = gradient
        for t, (parameters, _) in enumerate(new):
            for parameter, gradient in zip(parameters, gradients[len(past) :], strict=True):
                parameter.grad = gradient[:, t : t + 1].clone()
        for _, adam in (*self.past, *new):
            adam.step()


def naive_losses(backbone: Backbone, tokens: Tensor, config: Any) -> Any:
    """Losses of all tokens of a text but the first."""
    losses, begin, last, model = [], 0, len(tokens) - 1, Naive(backbone, config)
    while begin < last:
        start, room = begin, config.k
        if config.eviction == "reset":
            start, room = begin % config.context, min(config.k, config.context - begin % config.context)
            if start == 0:
                model.past, model.positions = [], []
        end = min(begin + room, last)
        position = torch.arange(start, start + end - begin)[None]
        losses += model.window(tokens[begin:end], tokens[begin + 1 : end + 1], position)
        begin = end
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize(
    "settings",
    [{}, {"eviction": "sliding"}, {"steps": 2, "context": 32}, {"steps": 2, "second": "recomputed", "context": 32}],
)
def test_equals_one_adam_per_input_of_a_layer(exact: Any, settings: dict[str, int | str]) -> None:
    config = HSOConfig(**{"k": 5, "context": 12, **SETTINGS, **settings})
    tokens = text(31)
    expected = naive_losses(exact, tokens[0], config)
    logprobs = read(hso(exact, **{"k": 5, "context": 12, **SETTINGS, **settings}), tokens)
    torch.testing.assert_close(-logprobs[0, 1:].double(), expected, rtol=1e-6, atol=1e-6)
    moved = expected + plain(exact, tokens, config.context)[0, 1:].double()
    assert float(moved.abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("family", "eviction"),
    [("tiny-llama", "sliding"), pytest.param("tiny-gpt2", "reset", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("around", PARTS)
def test_the_laws(family: str, eviction: str, around: bool) -> None:
    settings = {"k": 13, "eviction": eviction, "states": "inputs"}
    assert broken(lambda model: hso(model, **settings), family, around=around) == {}


@pytest.mark.parametrize("settings", [{"update": "present"}, {"optimizer": "sgd"}, {"steps": 2}, {"warmup": 2}])
def test_rows_of_different_lengths_do_not_meet(settings: dict[str, int | str]) -> None:
    method, tokens = hso(load("tiny-llama"), **SETTINGS, **settings), text(60, rows=3)
    alone_as_in_parts(method, tokens, torch.tensor([0, 33, 6]))


def test_a_state_holds_inputs_and_their_moments_and_neither_keys_nor_values() -> None:
    method = hso(load("tiny-llama"), **SETTINGS)
    state, _ = method.read(method.start(), text(23))
    assert (state.k, state.v) == ((), ())
    assert [tuple(x.shape) for x in (state.inputs[0], state.first[0])] == [(1, 1, 23, 32), (1, 1, 21, 32)]
    assert state.nbytes == method.formula().state_bytes(23)


@pytest.mark.parametrize("family", ["tiny-mistral", "tiny-llama-yarn", "tiny-qwen3", "tiny-opt"])
@pytest.mark.parametrize("eviction", ["reset", "sliding"])
def test_without_a_rate_it_is_the_plain_model(family: str, eviction: str) -> None:
    backbone, tokens = load(family), text(60, rows=2)
    both, inputs = (
        read(hso(backbone, lr=0, eviction=eviction, states=states), tokens) for states in ("both", "inputs")
    )
    torch.testing.assert_close(inputs, both, atol=1e-4, rtol=0)


def test_narrow_models_keep_wide_inputs() -> None:
    method = hso(load("tiny-llama", dtype="bfloat16"), states="inputs")
    state, _ = method.read(method.start(), text(31))
    assert {x.dtype for x in (*state.inputs, *state.first)} == {torch.float32}
