from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import transformers
from law_forms import PARTS, broken
from torch import Tensor

from contextlab.attention import rotate
from contextlab.backbone import load, wrap
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths, State
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.hso.reading import HsoReading
from contextlab.methods.longmem.newgpt import NewGPTConfig, NewGPTForCausalLM
from contextlab.methods.window import Window, WindowConfig

FAMILIES = ["tiny-llama", "tiny-gpt2"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.fixture(scope="module")
def exact() -> Any:
    return {family: load(family, dtype="float64") for family in FAMILIES}


def hso(backbone: Backbone, **settings: Any) -> Any:
    return HSO(backbone, HSOConfig(**{"k": 7, "context": 32, **settings}))


def text(length: int, rows: int = 1, seed: int = 0) -> Any:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def read(method: Any, tokens: Tensor, lengths: Any = None) -> Any:
    logprobs = method.read(method.start(len(tokens)), tokens, lengths)[1]
    assert logprobs is not None
    return logprobs


def plain(backbone: Backbone, tokens: Tensor, context: int = 32) -> Any:
    return read(Window(backbone, WindowConfig(N=context)), tokens)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("family", "eviction"),
    [
        ("tiny-llama", "reset"),
        ("tiny-gpt2", "sliding"),
        pytest.param("tiny-gpt2", "reset", marks=SLOW),
        pytest.param("tiny-llama", "sliding", marks=SLOW),
    ],
)
@pytest.mark.parametrize("around", PARTS)
def test_the_laws(family: str, eviction: str, around: bool) -> None:
    """With steps that do not fit the context evenly."""
    assert broken(lambda model: hso(model, k=13, eviction=eviction), family, around=around) == {}


def naive_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Any:
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * scale
    hidden = torch.ones(q.shape[2], k.shape[2]).triu(k.shape[2] - q.shape[2] + 1).bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.repeat_interleave(groups, 1)


def one_adam_per_state(backbone: Backbone, tokens_T: Tensor, config: Any, context: Any) -> Any:
    """Losses of one text by an implementation as naive as can be: every state is a parameter with its own Adam."""
    losses, begin = [], 0
    states: list[list[Any]] = []
    while begin < len(tokens_T) - 1:
        if config.eviction == "reset" and begin % context == 0:
            states = []
        room = context - begin % context if config.eviction == "reset" else config.k
        window = tokens_T[begin : min(begin + min(config.k, room), len(tokens_T) - 1)]
        position = torch.arange(begin, begin + len(window))[None] - (
            begin // context * context if config.eviction == "reset" else 0
        )
        fresh = []

        def attend(
            layer: int,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            scale: float,
            _window: Any,
            position: Any = position,
            fresh: Any = fresh,
            states: Any = states,
        ) -> Any:
            rotary = backbone.rotary(position)
            q, k = rotate(q, rotary), rotate(k, rotary)
            fresh.append((k, v))
            k, v = (torch.cat([s[layer][i] for s in states] + [x], dim=2) for i, x in enumerate((k, v)))
            return naive_attention(q, k, v, scale)

        hidden = backbone.forward(window[None], position, attend)
        loss = -backbone.logprobs(hidden, tokens_T[None, begin + 1 : begin + 1 + len(window)])[0]
        losses += loss.tolist()
        leaves = [x for state in states for pair in state[:-1] for x in pair]
        new = [x for pair in fresh for x in pair]
        gradients = list(torch.autograd.grad(loss.sum(), leaves + new))
        for leaf, gradient in zip(leaves, gradients, strict=False):
            leaf.grad = gradient
        for t in range(len(window)):
            parameters = []
            for x, gradient in zip(new, gradients[len(leaves) :], strict=True):
                parameter = torch.nn.Parameter(x[:, :, t : t + 1].detach().clone())
                parameter.grad = gradient[:, :, t : t + 1].clone()
                parameters.append(parameter)
            adam = torch.optim.Adam(parameters, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
            states.append([*zip(parameters[::2], parameters[1::2], strict=True), adam])
        for state in states:
            state[-1].step()
        states = states[-context:]
        begin += len(window)
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("eviction", ["reset", "sliding"])
def test_equals_one_adam_per_state_end_to_end(exact: Any, family: str, eviction: str) -> None:
    method = hso(exact[family], k=5, context=12, lr=0.02, eviction=eviction)
    tokens = text(46)
    expected = one_adam_per_state(exact[family], tokens[0], method.config, 12)
    torch.testing.assert_close(-read(method, tokens)[0, 1:].double(), expected, rtol=1e-6, atol=1e-6)
    moved = expected + plain(exact[family], tokens, 12)[0, 1:].double()
    assert float(moved.abs().max()) > 1e-2


def two_steps_a_window(backbone: Backbone, tokens_T: Tensor, config: Any) -> Any:
    """Losses of one context by HSO-2: of every window, its states as parameters with an Adam of their own."""
    states, optimizers, losses = [], [], []

    def losses_of(begin: Any, own: Any) -> Any:
        window = tokens_T[None, begin : begin + config.k]
        position, placed = torch.arange(begin, begin + config.k)[None], []

        def attend(_layer: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, _window: Any) -> Any:
            rotary = backbone.rotary(position)
            i = len(placed)
            placed.extend((own(i, rotate(k, rotary)), own(i + 1, v)))
            k, v = (torch.cat([past[j] for past in states] + [placed[j]], dim=2) for j in (i, i + 1))
            return naive_attention(rotate(q, rotary), k, v, scale)

        hidden = backbone.forward(window, position, attend)
        return -backbone.logprobs(hidden, tokens_T[None, begin + 1 : begin + 1 + config.k])[0], placed

    for begin in range(0, len(tokens_T) - config.k, config.k):
        loss, placed = losses_of(begin, lambda _, x: x)
        losses += loss.tolist()
        window = [torch.nn.Parameter(x.detach().clone()) for x in placed]
        optimizers.append(torch.optim.Adam(window, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps))
        past = [x for layers in states for x in layers]
        step(optimizers, past + window, torch.autograd.grad(loss.sum(), past + placed))
        if config.second == "fixed":
            loss, placed = losses_of(begin, lambda i, _, window=window: window[i])
        else:
            moved = [(x - old).detach() for x, old in zip(window, placed, strict=True)]
            loss, placed = losses_of(begin, lambda i, x, moved=moved: x + moved[i])
        gradients = torch.autograd.grad(loss.sum(), past + placed)
        for parameter, x in zip(window, placed, strict=True):
            parameter.data = x.detach().clone()
        step(optimizers, past + window, gradients)
        states.append(window)
    return torch.tensor(losses, dtype=torch.float64)


def step(optimizers: Any, parameters: Any, gradients: Any) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("second", ["fixed", "recomputed"])
def test_hso_2_equals_two_steps_of_one_adam_per_window(exact: Any, family: str, second: str) -> None:
    method = hso(exact[family], k=5, lr=0.02, steps=2, second=second)
    tokens = text(31)
    expected = two_steps_a_window(exact[family], tokens[0], method.config)
    assert len(expected) == 30
    torch.testing.assert_close(-read(method, tokens)[0, 1:].double(), expected, rtol=1e-6, atol=1e-6)


@pytest.fixture(scope="module", params=["tiny-mistral", "alibi"])
def unusual(request: pytest.FixtureRequest) -> Any:
    """A model that sees its last 48 tokens alone, and one whose attention falls with distance."""
    if request.param == "alibi":
        return wrap(NewGPTForCausalLM(NewGPTConfig(257, 24, 2, 3, 128)).float())
    return load(request.param)


def test_a_models_own_window_and_slopes_are_kept(unusual: Any) -> None:
    tokens = text(100, 2)
    for settings in ({"lr": 0}, {"lr": 1e-12}, {"lr": 1e-12, "states": "inputs"}):
        logprobs = read(hso(unusual, context=100, **settings), tokens)
        torch.testing.assert_close(logprobs, plain(unusual, tokens, 100), atol=1e-5, rtol=1e-5)


@pytest.fixture(scope="module")
def reference(shared: Any) -> Any:
    folder = shared / "fixtures" / "hso_ga"
    return json.loads((folder / "index.json").read_text())["hso_tiny_gpt2"]


def tiny_gpt2(case: Any, arrays: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=case["vocab"],
        n_embd=case["d"],
        n_head=case["heads"],
        n_layer=case["layers"],
        n_positions=case["ctx"],
        layer_norm_epsilon=case["ln_eps"],
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).double()
    names = case["hf_name_map"]
    weights = {names[key[2:]]: value for key, value in arrays.items() if key.startswith("w_")}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    return wrap(model)


NAMES = ["adam", "adam_present", "adam2", "sgd", "sgd_present", "adam_lr.05_b.8"]


def of_reference(case: Any, name: str) -> Any:
    settings = case["configs"][name]
    return HSOConfig(
        k=case["window"],
        context=case["ctx"],
        lr=settings["lr"],
        beta1=settings["b1"],
        beta2=settings["b2"],
        optimizer=settings.get("opt", "adam"),
        update="present" if settings.get("present") else "full",
        steps=settings.get("steps", 1),
    )


@pytest.mark.parametrize("name", NAMES)
def test_reference_losses_and_final_states_of_a_small_gpt2(
    fixture: Any, reference: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, arrays = fixture("hso_ga/hso_tiny_gpt2")
    backbone = tiny_gpt2(reference, arrays)
    method = HSO(backbone, of_reference(reference, name))
    tokens = arrays["ids"][None]
    # Logits are float32 throughout the library, the reference is float64.
    monkeypatch.setattr(backbone, "logits", backbone.model.lm_head)
    torch.testing.assert_close(-read(method, tokens)[0, 1:].double(), arrays[f"loss_{name}"], rtol=1e-6, atol=1e-6)
    # A context that goes on for two more tokens shows the states after the last update.
    method.context += 2
    state, _ = method.read(method.start(), tokens[:, : reference["ctx"] + 1])
    for layer in range(reference["layers"]):
        for kind, states in (("k", state.k), ("v", state.v)):
            expected = arrays[f"final_{name}_ctx0_l{layer}_{kind}"]
            torch.testing.assert_close(states[layer][0, :, : reference["ctx"]], expected, rtol=1e-9, atol=1e-9)


def test_the_first_window_of_a_context_is_the_plain_model(backbone: Backbone) -> None:
    tokens = text(40)
    logprobs, expected = read(hso(backbone, lr=0.05), tokens), plain(backbone, tokens)
    torch.testing.assert_close(logprobs[:, :8], expected[:, :8], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logprobs[:, 33:40], expected[:, 33:40], atol=1e-5, rtol=1e-5)
    assert float((logprobs - expected)[:, 8:32].abs().min()) > 1e-4


@pytest.mark.parametrize(
    "settings", [{}, {"eviction": "sliding"}, {"steps": 2, "second": "recomputed"}, {"states": "inputs"}]
)
def test_later_targets_change_no_earlier_loss_bitwise(backbone: Backbone, settings: dict[str, int | str]) -> None:
    method, tokens = hso(backbone, lr=0.02, **settings), text(70)
    before = read(method, tokens)
    for position in (6, 7, 8, 13, 14, 31, 32, 33, 60):
        changed = tokens.clone()
        changed[:, position + 1 :] = (changed[:, position + 1 :] + 1) % 256
        assert torch.equal(read(method, changed)[:, : position + 1], before[:, : position + 1])


@pytest.mark.parametrize("settings", [{"lr": 0}, {"lr": 0, "steps": 2, "update": "present"}, {"k": 32}, {"k": 50}])
def test_without_a_rate_or_with_one_window_a_context_it_is_the_plain_model(
    backbone: Backbone, settings: dict[str, int | str]
) -> None:
    tokens = text(80, rows=2)
    logprobs = read(hso(backbone, **settings), tokens)
    torch.testing.assert_close(logprobs, plain(backbone, tokens), atol=1e-5, rtol=1e-5)


def alone_as_in_parts(method: Any, tokens: Tensor, splits: Any) -> Any:
    """Log-probabilities of rows alone, which are those of the rows side by side, each in two calls."""
    rows, length = tokens.shape
    alone = torch.cat([read(method, row[None]) for row in tokens])
    rest = torch.stack([row.roll(-int(split)) for row, split in zip(tokens, splits, strict=True)])
    state, first = method.read(method.start(rows), tokens, splits)
    _, second = method.read(state, rest, length - splits)
    for row, split in enumerate(splits.tolist()):
        logprobs = torch.cat((first[row, :split], second[row, : length - split]))
        torch.testing.assert_close(logprobs, alone[row], atol=1e-4, rtol=0)
    return alone


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 2},
        {"steps": 2, "second": "recomputed"},
        {"update": "present", "steps": 2},
        {"states": "values", "warmup": 3, "eviction": "sliding"},
        {"states": "keys", "optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "update": "present", "eviction": "sliding"},
    ],
)
def test_variants_stream_exactly_and_keep_rows_apart(backbone: Backbone, settings: dict[str, float | str]) -> None:
    method, tokens = hso(backbone, **settings), text(75, rows=5)
    alone = alone_as_in_parts(method, tokens, torch.tensor([0, 6, 7, 33, 75]))
    assert float((alone - plain(backbone, tokens)).abs().max()) > 1e-4


def test_variants_are_different_methods(backbone: Backbone) -> None:
    tokens = text(70)
    variants = [
        {},
        *({"states": states} for states in ("keys", "values", "inputs")),
        {"steps": 2},
        {"steps": 2, "second": "recomputed"},
    ]
    variants += [{"update": "present"}, {"optimizer": "sgd"}, {"warmup": 5}, {"eviction": "sliding"}]
    results = [read(hso(backbone, lr=0.02, **settings), tokens) for settings in variants]
    for i, result in enumerate(results):
        for other in results[i + 1 :]:
            assert float((result - other).abs().max()) > 1e-4


def test_present_only_does_not_depend_on_the_betas(backbone: Backbone) -> None:
    tokens = text(60)
    first, second = (
        read(hso(backbone, update="present", beta1=b1, beta2=b2), tokens) for b1, b2 in [(0.65, 0.9), (0.1, 0.999)]
    )
    torch.testing.assert_close(first, second, atol=1e-5, rtol=0)


def test_warm_up_scales_the_first_steps(exact: Any) -> None:
    backbone, tokens = exact["tiny-llama"], text(9)
    moved = []
    for settings in ({"lr": 0.01}, {"lr": 0.04, "warmup": 3}):
        state, _ = (method := hso(backbone, **settings)).read(method.start(), tokens)
        moved.append(state.v[0])
    torch.testing.assert_close(*moved)


def test_moments_leave_with_their_states(backbone: Backbone) -> None:
    method = hso(backbone, lr=0.01)
    state, _ = method.read(method.start(), text(31))
    assert [x.shape[2] for x in (state.first[0], state.k[0])] == [28, 31]
    assert bool((state.second[0] != 0).any())
    state, _ = method.read(state, text(3, seed=1))
    assert [x.shape[2] for x in (state.first[0], state.second[0], state.k[0])] == [0, 0, 2]

    sliding = hso(backbone, eviction="sliding")
    state, _ = sliding.read(sliding.start(), text(100))
    assert (int(state.used_B), int(state.open_B)) == (32, 2)
    assert state.first[0].shape[2] == 32
    assert torch.equal(state.tokens_BS[0], text(100)[0, -34:])


@pytest.mark.parametrize(
    ("settings", "tensors"),
    [
        ({}, 6),
        ({"states": "values"}, 4),
        ({"update": "present"}, 2),
        ({"optimizer": "sgd"}, 2),
        ({"steps": 2, "update": "present"}, 2),
    ],
)
def test_a_state_holds_the_cache_and_two_moments_and_nothing_else_that_grows(
    backbone: Backbone, settings: dict[str, int | str], tensors: int
) -> None:
    method = hso(backbone, context=128, **settings)
    small, large = (method.read(method.start(2), text(n, rows=2))[0].nbytes for n in (50, 120))
    of_token = tensors * backbone.layers * backbone.kv_heads * backbone.head_width * 4
    assert (large - small) / (2 * 70) == pytest.approx(of_token, rel=0.05)


def test_no_graph_and_no_weight_gradient_is_left(backbone: Backbone) -> None:
    for parameter in backbone.model.parameters():
        parameter.requires_grad_(True)
    with torch.enable_grad():
        state, logprobs = (method := hso(backbone)).read(method.start(), text(40))
    assert not logprobs.requires_grad
    assert not any(tensor.requires_grad for tensor in state.tensors().values())
    assert all(p.requires_grad and p.grad is None for p in backbone.model.parameters())


def test_reads_alike_in_inference_mode(backbone: Backbone) -> None:
    method, tokens = hso(backbone), text(40)
    expected = read(method, tokens)
    with torch.inference_mode():
        assert torch.equal(read(method, tokens.clone()), expected)


def test_contexts_that_are_forgotten_are_not_read_without_scores(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, tokens = hso(backbone), text(110)
    whole, _ = method.read(method.start(), tokens)
    forward, seen = backbone.forward, []
    monkeypatch.setattr(backbone, "forward", lambda *args: (seen.append(args[0].shape[1]), forward(*args))[1])
    skipped, _ = method.read(method.start(), tokens, logprobs=False)
    assert sum(seen) == 110 - 96
    for name, tensor in whole.tensors().items():
        if name not in ("mean_B", "worst_B"):
            torch.testing.assert_close(skipped.tensors()[name], tensor)


def test_narrow_models_keep_wide_states() -> None:
    method = hso(load("tiny-llama", dtype="bfloat16"), lr=0.003)
    state, _ = method.read(method.start(), text(31))
    assert {x.dtype for x in (*state.k, *state.first)} == {torch.float32}
    still, _ = (plain_method := hso(method.backbone, lr=0)).read(plain_method.start(), text(31))
    steps = (state.v[0] - still.v[0]).abs()[:, :, 21:28]
    assert float((steps - 0.003).abs().median()) < 1e-4


def test_a_first_segment_is_shorter(backbone: Backbone) -> None:
    method, tokens = hso(backbone), text(50)
    logprobs = method.read(method.start(ahead=Lengths(10)), tokens)[1]
    again = method.read(method.start(), tokens[:, 10:])[1]
    torch.testing.assert_close(logprobs[:, 11:], again[:, 1:], atol=1e-4, rtol=0)


def test_capabilities(backbone: Backbone) -> None:
    reset, sliding = hso(backbone), hso(backbone, eviction="sliding")
    assert reset.capabilities.needs_gradients
    assert (reset.capabilities.segment, sliding.capabilities.segment) == (32, None)
    assert hso(backbone, lr=0).baseline() is not None
    assert reset.baseline() is sliding.baseline() is None
    assert isinstance(reset.start(), State)


def easy(backbone: Backbone) -> Any:
    """A text that the plain model itself would write."""
    method = Window(backbone)
    return torch.tensor([[1, *method.generate(method.start(), [[1]], max_new_tokens=60)[0]]])


@pytest.mark.parametrize(("length", "of_windows"), [(7, slice(0, 0)), (26, slice(1, 22)), (32 + 15, slice(33, 47))])
def test_a_state_knows_the_mean_loss_of_the_finished_windows_of_its_context(
    backbone: Backbone, length: int, of_windows: Any
) -> None:
    method, tokens = hso(backbone), text(length, 2)
    state, logprobs = method.read(method.start(2), tokens)
    expected = -logprobs[:, of_windows].mean(1) if of_windows.stop else torch.zeros(2)
    assert torch.allclose(state.mean_B, expected, atol=1e-5)


# Only the small Llama writes a text that large steps make worse by 1 nat per token.
LLAMA = pytest.mark.parametrize("backbone", ["tiny-llama"], indirect=True)


@LLAMA
@pytest.mark.parametrize(("settings", "what"), [({"lr": 30.0}, "worse"), ({"lr": 1e38, "optimizer": "sgd"}, "finite")])
def test_divergence_is_reported(backbone: Backbone, settings: dict[str, float | str], what: str) -> None:
    with pytest.raises(UserError, match=f"HSO diverged: its loss is .*{what}.*; use an lr lower than"):
        read(hso(backbone, context=128, **settings), easy(backbone))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_short_windows_are_judged_over_25_tokens(backbone: Backbone, k: int) -> None:
    """Single tokens are often 1 nat worse than the plain model's; a run that is .1 above it on average goes on."""
    tokens = torch.cat((easy(backbone), text(60)), dim=1)
    logprobs = read(hso(backbone, context=128, k=k, lr=0.01), tokens)
    assert logprobs.isfinite().all()
    windows = read(hso(backbone, context=128, lr=0.0), tokens)
    assert float((windows - logprobs).mean()) < 1


@LLAMA
def test_a_row_that_diverges_ends_alone(backbone: Backbone) -> None:
    tokens = torch.cat((easy(backbone), text(easy(backbone).shape[1], seed=3)))
    method = hso(backbone, context=128, lr=30.0)
    alone = []
    for row in tokens:
        try:
            alone.append(read(method, row[None])[0])
        except UserError:
            alone.append(None)
    assert [logprobs is None for logprobs in alone] == [True, False]
    state, together = method.read(method.start(2), tokens)
    assert together[0].isnan().any()
    assert torch.allclose(together[1], alone[1], atol=1e-4)
    _, later = method.read(state, text(5, 2))
    assert later[0].isnan().all()
    assert later[1].isfinite().all()
    assert method.next_logprobs(state)[0].isnan().all()


def test_a_text_that_becomes_hard_is_compared_and_goes_on(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, original = [], HsoReading._plain_loss
    monkeypatch.setattr(HsoReading, "_plain_loss", lambda self, row: compared.append(row) or original(self, row))
    tokens = torch.cat((easy(backbone), text(60)), dim=1)
    assert read(hso(backbone, context=128, lr=1e-4), tokens).isfinite().all()
    assert compared


def test_the_comparison_is_the_plain_models_loss_of_the_stretch(backbone: Backbone) -> None:
    tokens = text(40)
    method = hso(backbone, lr=1e-9, context=128)
    reading = HsoReading(backbone, method.config, method.start(), tokens, None, context=method.context, scored=True)
    with torch.no_grad():
        for _ in range(4):
            reading.window()
        reading.used_B = reading.used_B - 7
        assert reading._plain_loss(0) == pytest.approx(-float(plain(backbone, tokens)[0, 1:29].mean()), abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 200}, "use context=128"),
        ({"context": 122, "eviction": "sliding"}, "use context=121"),
        ({"k": 128, "context": None, "eviction": "sliding"}, "use a smaller k"),
    ],
)
def test_what_does_not_fit_the_positions(
    backbone: Backbone, settings: dict[str, int | str | None], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        hso(backbone, **settings)


@pytest.mark.parametrize("setting", [{"k": 0}, {"lr": -1}, {"beta1": 1.0}, {"eps": 0}, {"steps": 3}, {"states": "x"}])
def test_settings_out_of_range(setting: dict[str, float | str]) -> None:
    with pytest.raises(UserError, match="is not valid"):
        HSOConfig.parse(setting)


def test_models_without_gradients_are_refused() -> None:
    with torch.inference_mode():
        inference = load("tiny-llama")
    quantised = load("tiny-llama")
    layer = quantised.model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    for backbone in (inference, quantised):
        with pytest.raises(UserError, match="quantised or made for inference only"):
            HSO(backbone)
