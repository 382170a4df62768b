from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.attention import Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.trime import TRIME, TRIMEConfig, distribution
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing.parts import read
from contextlab.training.options import TrainConfig

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


def tokens(rows: int, length: int, seed: int = 0, vocabulary: int = 12) -> Tensor:
    return torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def built(backbone: Backbone, **settings: Any) -> TRIME:
    return TRIME(backbone, TRIMEConfig.parse({"N": 16, "M": 20, "rank": 0, **settings}))


def representations(backbone: Backbone, text_T: list[int]) -> tuple[Tensor, Tensor]:
    """The final state behind a text read alone, and what leaves the norm in front of the last feed-forward network."""
    norms: dict[str, Callable[[Any], Any]] = {
        "tiny-llama": lambda model: model.model.layers[-1].post_attention_layernorm,
        "tiny-gpt2": lambda model: model.transformer.h[-1].ln_2,
        "tiny-opt": lambda model: model.model.decoder.layers[-1].final_layer_norm,
    }
    outputs: list[Tensor] = []
    norm = norms[backbone.name](backbone.model)
    hook = norm.register_forward_hook(lambda _module, _args, out: outputs.append(out))
    position_1T = torch.arange(len(text_T))[None]
    with torch.no_grad():
        hidden = backbone.forward(torch.tensor([text_T]), position_1T, backbone.reader(1, Layout(position_1T)))
    hook.remove()
    return hidden[0, -1], outputs[0].view_as(hidden)[0, -1]


def by_hand(backbone: Backbone, text_T: list[int], N: int, M: int, temperature: float) -> list[float]:
    """Equation 3, token by token: segments are read alone; memory is the open one and the newest M pairs before it."""
    pairs: list[tuple[Tensor, int]] = []
    logprobs = []
    for t, token in enumerate(text_T):
        begin = t // N * N
        hidden, f = representations(backbone, text_T[begin - N * (t == begin) : t] if t else [backbone.bos])
        memory = pairs[max(begin - M, 0) :]
        weights = backbone.logits(hidden).detach().double().exp()
        for key, follower in memory:
            weights[follower] += torch.exp((f @ key).double() / (len(f) ** 0.5 * temperature))
        logprobs.append(float((weights[token] / weights.sum()).log()))
        pairs.append((f, token))
    return logprobs


@pytest.mark.parametrize("name", ["trime", "trime_temp"])
def test_losses_are_those_of_the_public_fixtures(name: str, fixture: Callable[[str], Any]) -> None:
    _, x = fixture(f"hso_ga/{name}")
    f_1TC, targets_1T, logits_TV = x["reps"][None], x["targets"][None], x["logits"]
    s_1TJ = distribution.memory_logits(f_1TC, f_1TC, float(x["temp"]))
    length = len(logits_TV)
    seen_1TJ = torch.ones(length, length, dtype=torch.bool).tril(-1)[None]
    normaliser_1T = logits_TV.logsumexp(-1)[None]
    model_1T = logits_TV.gather(1, x["targets"][:, None])[None, :, 0] - normaliser_1T
    torch.testing.assert_close(-model_1T[0], x["loss_lm"], rtol=1e-9, atol=1e-12)
    same_1TJ = targets_1T[:, :, None] == targets_1T[:, None]
    logprobs_1T = distribution.logprobs_of(model_1T, normaliser_1T, s_1TJ, seen_1TJ, same_1TJ)
    torch.testing.assert_close(-logprobs_1T[0], x["loss_trime"], rtol=1e-9, atol=1e-12)
    everything_TV = distribution.logprobs_of_all(logits_TV, s_1TJ[0], seen_1TJ[0], targets_1T.expand(length, -1))
    torch.testing.assert_close(everything_TV.gather(1, x["targets"][:, None])[:, 0], logprobs_1T[0])


@pytest.mark.parametrize(("M", "temperature"), [(20, 1.0), (0, 1.0), (7, 1.3), (1000, 0.8)])
def test_every_token_has_the_probability_of_equation_3(backbone: Backbone, M: int, temperature: float) -> None:
    text = tokens(1, 45)
    _, logprobs = read(built(backbone, M=M, temperature=temperature), text)
    expected = torch.tensor([by_hand(backbone, text[0].tolist(), 16, M, temperature)])
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=1e-4)


def test_without_memory_it_is_the_language_model(backbone: Backbone) -> None:
    method, window = built(backbone), Window(backbone, WindowConfig(N=16))
    text = tokens(3, 1, vocabulary=256)
    torch.testing.assert_close(read(method, text)[1], read(window, text)[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        method.next_logprobs(method.start()), window.next_logprobs(window.start()), atol=1e-5, rtol=1e-5
    )


def test_memory_of_other_tokens_only_takes_probability_away(backbone: Backbone) -> None:
    """And a repeated context is answered as it was before."""
    text = torch.cat([tokens(1, 8, vocabulary=256)] * 2, dim=1)
    window = read(Window(backbone, WindowConfig(N=64)), text)[1]
    first = read(built(backbone, N=64), text)[1] - window
    fresh = [t for t in range(1, 8) if int(text[0, t]) not in text[0, :t].tolist()]
    assert bool((first[0, fresh] < 0).all())


def test_segments_become_long_memory_of_M_pairs(backbone: Backbone) -> None:
    method, text = built(backbone, M=20), tokens(3, 40)
    state, _ = method.read(method.start(3), text, torch.tensor([40, 16, 5]))
    assert state.long.used_B.tolist() == [20, 16, 0]
    assert state.pairs.used_B.tolist() == [8, 0, 5]
    assert state.long.token_BJ[0].tolist() == text[0, 12:32].tolist()
    assert state.pairs.token_BJ[0, :8].tolist() == text[0, 32:].tolist()
    none, _ = read(built(backbone, M=0), text)
    assert none.long.f_BJW.shape == (3, 0, backbone.width)


def test_temperature_is_a_matter_of_use_and_not_of_weights(backbone: Backbone, tmp_path: Any) -> None:
    built(backbone, rank=2).save_weights(tmp_path / "weights")
    hot = built(backbone, rank=2, temperature=1.17, weights=tmp_path / "weights")
    assert not torch.equal(read(hot, tokens(1, 30))[1], read(built(backbone), tokens(1, 30))[1])


def test_gradients_reach_representations_in_memory() -> None:
    """Beyond those through the query: cut off from the graph, memory gives another gradient."""
    backbone = backbones.load("tiny-gpt2", device="cpu", dtype="float64")
    method, text = built(backbone, rank=2, N=64), tokens(1, 40)
    assert method.learned is not None
    parameters = list(method.learned.parameters())

    def gradients(cut: bool) -> list[Tensor]:
        state, _ = method.learn(method.start(), text[:, :30])
        state = state.detach() if cut else state
        loss = method.learn(state, text[:, 30:])[1].logprobs_BT.sum()
        return [g for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None]

    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.05 * torch.randn(parameter.shape))
    assert any(not torch.allclose(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


def papers_loss(method: TRIME, text_T: Tensor) -> Tensor:
    """Equation 3 over one batch of consecutive segments, each read alone; all memory is of the batch."""
    network, segment = method.network, method.local.segment
    states = [network.after_bos()[None]]
    for piece_t in text_T.split(segment):
        position_1t = torch.arange(len(piece_t))[None]
        states.append(network.forward(piece_t[None], position_1t, network.reader(1, Layout(position_1t)))[0])
    hidden_TW, f_TW = torch.cat(states)[:-1].chunk(2, dim=-1)
    loss = torch.zeros(())
    for t, token in enumerate(text_T):
        weights_V = network.model.get_output_embeddings()(hidden_TW[t]).exp()
        memory_j = (f_TW[:t] @ f_TW[t] / f_TW.shape[1] ** 0.5).exp()
        right = weights_V[token] + memory_j[text_T[:t] == token].sum()
        loss = loss - (right / (weights_V.sum() + memory_j.sum())).log()
    return loss


def test_a_batch_of_the_default_training_has_the_gradient_of_the_papers_objective() -> None:
    method = built(backbones.load("tiny-llama", device="cpu", dtype="float64"), rank=2, N=8, M=12288)
    assert method.learned is not None
    parameters = list(method.learned.parameters())
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.05 * torch.randn(parameter.shape))
    settings = TrainConfig.of(TRIMEConfig, {"tokens": 1})
    length = settings.length(method.local.segment, method.backbone.max_positions)
    assert (length, settings.order, settings.text(length)) == (4 * 8, "shuffled", 4 * 8)
    text = tokens(1, length)

    def gradient(loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def learned(segment: int) -> Tensor:
        """The gradient where so many tokens are in one batch, and older memory has none."""
        total, state = torch.zeros(()), method.start()
        for piece in text.split(segment, dim=1):
            state, predicted = method.learn(state.detach(), piece)
            total = total - predicted.logprobs_BT.sum()
        return gradient(total)

    papers = gradient(papers_loss(method, text[0]))
    assert float(torch.cosine_similarity(learned(length), papers, dim=0)) > 0.9999
    assert float(torch.cosine_similarity(learned(method.local.segment), papers, dim=0)) < 0.999


def test_its_loss_is_learned() -> None:
    method, text = built(backbones.load("tiny-gpt2", device="cpu"), rank=4, N=64), tokens(1, 60)
    assert method.learned is not None
    optimiser, losses = torch.optim.Adam(method.learned.parameters(), lr=1e-2), []
    for _ in range(25):
        predicted = method.learn(method.start(), text)[1]
        assert predicted.head_BTC is None
        loss = -predicted.logprobs_BT.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3
    torch.testing.assert_close(-read(method, text)[1].mean(), loss.detach(), atol=0.1, rtol=0.1)


def test_a_loss_over_whole_distributions_is_refused_in_one_sentence() -> None:
    method = built(backbones.load("tiny-gpt2", device="cpu"), rank=2)
    with pytest.raises(UserError, match="with the objective lm"):
        _ = method.learn(method.start(), tokens(1, 20))[1].hidden_BTC


def test_a_large_similarity_overflows_nothing() -> None:
    s_BJ = torch.tensor([[3e4, -3e4, 1e4]])
    logits_BV, seen_BJ, token_BJ = torch.zeros(1, 4), torch.tensor([[True, True, True]]), torch.tensor([[1, 2, 1]])
    logprobs_BV = distribution.logprobs_of_all(logits_BV, s_BJ, seen_BJ, token_BJ)
    assert bool(logprobs_BV.isfinite().all())
    assert logprobs_BV.argmax() == 1
    normaliser = logits_BV.logsumexp(-1)[:, None]
    for token in range(4):
        alone = distribution.logprobs_of(
            -normaliser, normaliser, s_BJ[:, None], seen_BJ[:, None], (token_BJ == token)[:, None]
        )
        torch.testing.assert_close(alone[0, 0], logprobs_BV[0, token], atol=1e-2, rtol=1e-4)


def test_a_model_without_feed_forward_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    monkeypatch.setattr("contextlab.methods.trime.network.linear_layers", lambda _: [])
    with pytest.raises(UserError, match="no feed-forward network in its last block"):
        built(backbone)
