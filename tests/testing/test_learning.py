"""The laws of learning for every method that learns, and methods that break them on purpose."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.method import Capabilities
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full, FullConfig
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.trime import TRIME, TRIMEConfig
from contextlab.methods.ultragist import UltraGist, UltraGistConfig
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing import learning
from contextlab.testing.parts import Broken, texts

WIDE = "*fc1|*fc2|*c_fc|*attn.c_proj|*out_proj"
METHODS: dict[str, Callable[[Any], Any]] = {
    "longmem": lambda b: LongMem(b, LongMemConfig(N=32, K=8)),
    "longmem, copied layers": lambda b: LongMem(b, LongMemConfig(N=24, K=8, csz=2, init="paper")),
    "longmem, as released": lambda b: LongMem(
        b, LongMemConfig(N=32, K=64, init="paper", last_residual="normed", short_bank="zero_slot")
    ),
    "retrieval": lambda b: Retrieval(b, RetrievalConfig(N=32, K=8, rank=2)),
    "retrieval, small": lambda b: Retrieval(b, RetrievalConfig(N=20, K=8, csz=2, M=32, sinks=1, first_layer=0, rank=1)),
    "retrieval, packed": lambda b: Retrieval(b, RetrievalConfig(N=24, K=8, every=2, rank=2, storage_dtype="int4")),
    "longmem, packed": lambda b: LongMem(b, LongMemConfig(N=24, K=8, init="paper", storage_dtype="int8")),
    "longmem, memory": lambda b: LongMem(b, LongMemConfig(N=24, K=8, init="memory", memory_layers="0-3")),
    "longmem, difference": lambda b: LongMem(
        b, LongMemConfig(N=20, K=8, init="difference", local="sliding", softmax="joint", storage_dtype="float32")
    ),
    "longmem, rank": lambda b: LongMem(b, LongMemConfig(N=32, K=8, init="memory", softmax="joint", rank=2)),
    "evalm": lambda b: EVALM(b, EVALMConfig(W=32, c=8)),
    "evalm, eva": lambda b: EVALM(b, EVALMConfig(W=32, c=4, sinks=2, pooling="eva", adaptive="qk")),
    "evalm, overlap": lambda b: EVALM(b, EVALMConfig(W=16, c=4, overlap=True)),
    "evalm, rank": lambda b: EVALM(b, EVALMConfig(W=32, c=8, rank=2)),
    "adapter": lambda b: GenerativeAdapter(b, GenerativeAdapterConfig(chunk=24, d_r=8, r=4)),
    "adapter, polar": lambda b: GenerativeAdapter(
        b, GenerativeAdapterConfig(chunk=32, d_r=6, r=6, normalisation="polar", modules=WIDE)
    ),
    "adapter, frobenius": lambda b: GenerativeAdapter(
        b, GenerativeAdapterConfig(chunk=50, d_r=8, r=8, normalisation="frobenius", rms_norm=True)
    ),
    "ultragist": lambda b: UltraGist(b, UltraGistConfig(W=32, ratio=4, rank=2)),
    "ultragist, evicting": lambda b: UltraGist(b, UltraGistConfig(W=18, ratio=5, sinks=0, M=6, rank=1)),
    "full, updated": lambda b: Full(b, FullConfig(rank=2, targets="all")),
    "window, updated": lambda b: Window(b, WindowConfig(N=32, rank=2)),
    "sliding, updated": lambda b: Sliding(b, SlidingConfig(N=24, sinks=2, rank=2)),
    "sinks, updated": lambda b: Sinks(b, SinksConfig(sinks=2, recent=21, rank=2)),
    "memtrm": lambda b: MemTRM(b, MemTRMConfig(N=32, K=8, rank=2)),
    "memtrm, sliding": lambda b: MemTRM(b, MemTRMConfig(N=24, K=4, M=60, local="sliding", rank=2, targets="all")),
    "trime": lambda b: TRIME(b, TRIMEConfig(N=32, M=50, rank=2)),
    "trime, no long memory": lambda b: TRIME(b, TRIMEConfig(N=64, M=0, temperature=1.2, rank=1, targets="all")),
}


FAMILIES = ("tiny-gpt2", "tiny-opt")
# Every form in one family, so that methods with several are in both; LongMem copies the layers of Llama- and
# GPT-2-style models only.
FORMS = [
    pytest.param(name, family, marks=[] if alone or number == form % 2 else [pytest.mark.slow])
    for form, name in enumerate(METHODS)
    for alone in [name.startswith("longmem")]
    for number, family in enumerate(FAMILIES[:1] if alone else FAMILIES)
]


@pytest.mark.parametrize("law", learning.LAWS)
@pytest.mark.parametrize(("name", "family"), FORMS)
def test_methods_that_learn_keep_the_laws(name: str, family: str, law: str) -> None:
    backbone = backbones.load(family, device="cpu", dtype="float64")
    learning.LAWS[law](METHODS[name](backbone))


@pytest.mark.parametrize("law", learning.LAWS)
def test_methods_without_anything_to_learn_keep_them_too(law: str) -> None:
    learning.LAWS[law](Full(backbones.load("tiny-gpt2", device="cpu", dtype="float64")))


def test_learning_without_anything_to_learn_is_one_sentence() -> None:
    method = Full(backbones.load("tiny-gpt2", device="cpu"))
    with pytest.raises(UserError, match="Full has nothing to learn: use read"):
        method.learn(method.start(), texts(1))
    with pytest.raises(UserError, match="Full has nothing to learn"):
        method.save_weights("weights.safetensors")


def test_arguments_of_learn_are_checked() -> None:
    method = METHODS["evalm"](backbones.load("tiny-gpt2", device="cpu"))
    with pytest.raises(UserError, match="one row of each"):
        method.learn(method.start(2), texts(1))


def test_noise_of_the_random_features_reaches_summaries_in_training_only() -> None:
    method = METHODS["evalm, eva"](backbones.load("tiny-gpt2", device="cpu"))
    with torch.no_grad():
        for parameter in method.summaries.parameters():
            parameter.nan_to_num_(neginf=0.0)
    once, twice = (method.learn(method.start(), texts(1))[1].logprobs_BT for _ in range(2))
    assert torch.equal(once, twice)
    method.summaries.train()
    once, twice = (method.learn(method.start(), texts(1))[1].logprobs_BT for _ in range(2))
    assert not torch.equal(once, twice)


def test_a_few_steps_learn_a_text_by_heart() -> None:
    method = METHODS["longmem"](backbones.load("tiny-gpt2", device="cpu"))
    text = texts(1)[:, :120]
    optimiser = torch.optim.Adam(method.side.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = -method.learn(method.start(), text)[1].logprobs_BT.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    assert not method.untrained


class Shifts(Window):
    """Adds a learned vector to every hidden state."""

    def __init__(self, backbone: Any, config: WindowConfig | None = None) -> None:
        super().__init__(backbone, config or WindowConfig(N=32))
        self.shift = self.learns(nn.Linear(1, backbone.width, bias=False).to(backbone.device, backbone.dtype))

    def step(self, state: Any, tokens_Bt: Any, lengths_B: Any) -> Any:
        after, hidden_BtC = super().step(state, tokens_Bt, lengths_B)
        return after, hidden_BtC + self.shift.weight[:, 0]


class CutsTheGraph(Shifts):
    """Cuts the graph of a state."""

    def learn(self, state: Any, tokens_BT: Any, lengths_B: Any = None) -> Any:
        return super().learn(state.detach(), tokens_BT, lengths_B)


class LearnsOtherNumbers(Shifts):
    """Returns larger log-probabilities in `learn`."""

    def learn(self, state: Any, tokens_BT: Any, lengths_B: Any = None) -> Any:
        state, predicted = super().learn(state, tokens_BT, lengths_B)
        return state, dataclasses.replace(predicted, logprobs_BT=predicted.logprobs_BT * 0.99)


class LearnsNothing(Shifts):
    """Reads without a graph."""

    def learn(self, state: Any, tokens_BT: Any, lengths_B: Any = None) -> Any:
        state, predicted = super().learn(state, tokens_BT, lengths_B)
        # A graph without parameters.
        nowhere = 0 * self.shift.weight.sum()
        return state, dataclasses.replace(predicted, logprobs_BT=predicted.logprobs_BT.detach() + nowhere)


class TurnsTheGradient(Shifts):
    """Halves its gradients."""

    def step(self, state: Any, tokens_Bt: Any, lengths_B: Any) -> Any:
        after, hidden_BtC = Window.step(self, state, tokens_Bt, lengths_B)
        weight_C = self.shift.weight[:, 0]
        return after, hidden_BtC + (weight_C + weight_C.detach()) / 2


class TurnsItInFewBits(TurnsTheGradient):
    """The same of a method whose steps may cross a rounding."""

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, few_bits=True)


class ReachesTheBackbone(Shifts):
    """Does not freeze the backbone."""

    def step(self, state: Any, tokens_Bt: Any, lengths_B: Any) -> Any:
        for parameter in self.backbone.model.parameters():
            parameter.requires_grad_(True)
        return super().step(state, tokens_Bt, lengths_B)


class ReadsPadding(Shifts):
    """Takes the padding of a context for text."""

    def learn_context(self, state: Any, tokens_BT: Any, lengths_B: Any = None) -> Any:
        return super().learn_context(state, tokens_BT)


class CutsContexts(Shifts):
    """Learns from a context only what its own predictions say."""

    def learn_context(self, state: Any, tokens_BT: Any, lengths_B: Any = None) -> Any:
        return super().learn_context(state, tokens_BT, lengths_B).detach()


class MixesRows(Shifts):
    """The gradient of a row depends on the mean of all rows."""

    def step(self, state: Any, tokens_Bt: Any, lengths_B: Any) -> Any:
        after, hidden_BtC = super().step(state, tokens_Bt, lengths_B)
        return after, hidden_BtC + 0.1 * hidden_BtC.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (CutsTheGraph, "gradients at every split"),
        (LearnsOtherNumbers, "learning is reading"),
        (LearnsNothing, "learning is reading"),
        (TurnsTheGradient, "exact gradients"),
        (TurnsItInFewBits, "exact gradients"),
        (ReachesTheBackbone, "nothing reaches the backbone"),
        (ReadsPadding, "contexts without predictions"),
        (CutsContexts, "contexts without predictions"),
        (MixesRows, "rows learn alone"),
    ],
)
def test_a_learner_that_breaks_a_law_is_noticed(kind: type[Shifts], law: str) -> None:
    backbone = backbones.load("tiny-gpt2", device="cpu", dtype="float64")
    for other in learning.LAWS.values():
        other(Shifts(backbone))
    with pytest.raises(Broken):
        learning.LAWS[law](kind(backbone))


@pytest.mark.parametrize("name", ["longmem, memory", "evalm", "adapter", "memtrm", "retrieval"])
def test_one_wrong_gradient_among_many_is_noticed_and_named(name: str) -> None:
    backbone = backbones.load("tiny-gpt2", device="cpu", dtype="float64")
    for third in range(3):
        method = METHODS[name](backbone)
        parameters = dict(method.learned.named_parameters())
        wrong = list(parameters)[third * (len(parameters) - 1) // 2]
        parameters[wrong].register_hook(lambda gradient: 1.1 * gradient)
        with pytest.raises(Broken, match=f"the gradient of {re.escape(wrong)} is"):
            learning.exact_gradients(method)
