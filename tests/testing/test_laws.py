"""The laws of every registered method, and methods that break them on purpose."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken, fits
from torch import Tensor

from contextlab import registry
from contextlab.methods.cartridge import Cartridge, CartridgeConfig
from contextlab.methods.dynamic_eval import DynamicEval, DynamicEvalConfig
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full, FullConfig
from contextlab.methods.h2o import H2O, H2OConfig
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.least_squares import LeastSquares, LeastSquaresConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.snapkv import SnapKV, SnapKVConfig
from contextlab.methods.trime import TRIME, TRIMEConfig
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing import laws

MATMUL = torch.matmul
TRAINED: dict[str, Any] = {"context": 40, "steps": 1, "batch": 1}
SETTINGS = {
    "window, short": lambda b: Window(b, WindowConfig(N=24)),
    "sliding, no sinks": lambda b: Sliding(b, SlidingConfig(N=24, sinks=0)),
    "sinks, short": lambda b: Sinks(b, SinksConfig(sinks=2, recent=21)),
    "snapkv, short": lambda b: SnapKV(b, SnapKVConfig(N=24, keep=20, window=6)),
    "h2o, short": lambda b: H2O(b, H2OConfig(N=24, keep=20, recent=5)),
    "snapkv, 4 bits": lambda b: SnapKV(b, SnapKVConfig(N=30, keep=70, window=6, cache="int4")),
    "evalm, open": lambda b: EVALM(b, EVALMConfig(W=32, c=8, remote_bias=-0.5, sinks=2)),
    "dynamic-eval, large steps": lambda b: DynamicEval(b, DynamicEvalConfig(lr=0.01, segment=50, N=100)),
    "hso, large steps": lambda b: HSO(b, HSOConfig(lr=0.05, k=20)),
    "window, updated": lambda b: Window(b, WindowConfig(N=24, rank=2)),
    "sinks, updated": lambda b: Sinks(b, SinksConfig(sinks=2, recent=21, rank=2, targets="all")),
    "memtrm, closed": lambda b: MemTRM(b, MemTRMConfig(N=32, K=8, gate=-20)),
    # Rounding to 16 bits would make 1e-3 of 1e-7, where rows are computed side by side or alone.
    "memtrm, sliding": lambda b: MemTRM(
        b, MemTRMConfig(N=24, K=4, M=60, local="sliding", rank=0, storage_dtype="float32")
    ),
    "trime, short": lambda b: TRIME(b, TRIMEConfig(N=24, M=40, temperature=1.2)),
    "cartridge, trained": lambda b: Cartridge(
        b, CartridgeConfig(p=8, N=24, chunk=24, study=1, study_tokens=3, **TRAINED)
    ),
    "cartridge, next tokens": lambda b: Cartridge(b, CartridgeConfig(p=8, N=24, objective="lm", **TRAINED)),
    "least-squares, short": lambda b: LeastSquares(
        b, LeastSquaresConfig(chunk=24, study=1, study_tokens=3, seen=0, error="relative")
    ),
    # All chunks are retrieved: a step of a finite difference, through several blocks that choose, meets other chunks.
    "longmem, shared banks": lambda b: LongMem(
        b,
        LongMemConfig(
            N=24, K=400, init="difference", reduction=1, memory_layers="0-3", blocks_per_bank=3, local="sliding"
        ),
    ),
    "full, 8 bits": lambda b: Full(b, FullConfig(cache="int8")),
    "window, 4 bits": lambda b: Window(b, WindowConfig(N=100, cache="int4")),
    "sliding, 4 bits": lambda b: Sliding(b, SlidingConfig(N=50, recent=70, cache="int4")),
    "sinks, 4 bits": lambda b: Sinks(b, SinksConfig(sinks=2, recent=90, cache="int4")),
    "evalm, view in 8 bits": lambda b: EVALM(b, EVALMConfig(W=72, c=8, remote_bias=-0.5, cache="int8")),
    "longmem, view in 8 bits": lambda b: LongMem(b, LongMemConfig(N=72, K=400, init="paper", cache="int8")),
    "retrieval, 8 bits": lambda b: Retrieval(b, RetrievalConfig(N=60, sinks=0, K=400, cache="int8")),
    "longmem, copied layers": lambda b: LongMem(b, LongMemConfig(N=32, K=16, init="paper")),
}


SHORTER: dict[str, dict[str, Any]] = {
    "least-squares": {"study_tokens": 4},
    "bm25": {"stride": 48, "chunk": 16, "k": 1},
    "dense": {"stride": 48, "chunk": 16, "k": 1},
}
"""Settings of methods that take minutes as they are: of their passes there are many, one after the other."""


REGISTERED = [(name, family) for name in registry.methods() for family in laws.FAMILIES if fits(name, family)]


@pytest.mark.parametrize(("name", "family"), REGISTERED)
def test_registered_methods_keep_the_laws(name: str, family: str) -> None:
    kind = registry.method_class(name)
    config = kind.Config.parse(SHORTER.get(name, {}))
    results = laws.check(lambda backbone: kind(backbone, config), (family,))
    assert {(result.law, result.family): result.detail for result in results if not result.passed} == {}


SLOW = ("cartridge, trained",)
"""Forms that take a minute in a family: their backbone writes texts in every split of a text."""
# One family is enough every time, since the registered methods keep the laws in both.
FORMS = [
    pytest.param(name, family, marks=[] if number == form % 2 and name not in SLOW else [pytest.mark.slow])
    for form, name in enumerate(SETTINGS)
    for number, family in enumerate(laws.FAMILIES)
]


@pytest.mark.parametrize(("name", "family"), FORMS)
@pytest.mark.parametrize("around", PARTS)
def test_other_settings_keep_the_laws(name: str, family: str, around: bool) -> None:
    assert broken(SETTINGS[name], family, around=around) == {}


class LooksAhead(Full):
    """Every log-probability depends on all tokens of the call."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, scores_BT if scores_BT is None else scores_BT - 0.01 * tokens_BT.float().mean(1, keepdim=True)


class ForgetsTheSplit(Full):
    """Forgets its state in every call."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        return super().read(self.start(state.batch_size), tokens_BT, lengths_B, logprobs=logprobs)


class SkipsInSilence(Sliding):
    """Skips segments that are not scored, although the state depends on them."""

    def skim(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> Any:
        return dataclasses.replace(self.start(state.batch_size), length_B=state.length_B)


class TalksInSilence(Full):
    """Returns log-probabilities with `logprobs=False`."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        return super().read(state, tokens_BT, lengths_B)


class ChangesTheState(Full):
    """Changes the state in `score`."""

    def score(self, state: Any, candidates: Any) -> Any:
        scores = super().score(state, candidates)
        state.length_B.add_(1)
        return scores


class MixesRows(Full):
    """All rows depend on the first row."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, scores_BT if scores_BT is None else scores_BT - 1e-3 * tokens_BT[0].float().mean() * (
            scores_BT != 0
        )


class PaddedState(LocalState):
    """Keeps the slots of other rows."""

    def unpadded(self) -> PaddedState:
        return self


class HoldsOtherRowsSlots(Full):
    """A row has as many bytes as the longest."""

    def start(self, batch_size: int = 1, *, ahead: Any = None) -> Any:
        return PaddedState(**super().start(batch_size, ahead=ahead).__getstate__())


@dataclasses.dataclass(frozen=True)
class DictState(LocalState):
    """Keeps something in a dict."""

    bank: dict[str, Tensor]


class KeepsADict(Full):
    """What it keeps is not counted."""

    def start(self, batch_size: int = 1, *, ahead: Any = None) -> Any:
        return DictState(
            **super().start(batch_size, ahead=ahead).__getstate__(), bank={"zeros": torch.zeros(batch_size)}
        )


class NotAProbability(Full):
    """Returns probabilities that are too large."""

    def score(self, state: Any, candidates: Any) -> Any:
        return super().score(state, candidates) * 0.9

    def next_logprobs(self, state: Any) -> Any:
        return super().next_logprobs(state) * 0.9


class IsRandom(Full):
    """Adds noise."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, scores_BT if scores_BT is None else scores_BT - 1e-6 * torch.rand(scores_BT.shape)


class TouchesTheBackbone(Full):
    """Changes the weights of the backbone."""

    def step(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> Any:
        with torch.no_grad():
            next(self.backbone.model.parameters()).mul_(1 + 1e-6)
        return super().step(state, tokens_Bt, lengths_B)


class ContinuesTheLastCall(Full):
    """Counts the tokens since the last `start`, whichever thread has read them."""

    tokens = 0

    def start(self, batch_size: int = 1, *, ahead: Any = None) -> Any:
        self.tokens = 0
        return super().start(batch_size, ahead=ahead)

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        self.tokens += tokens_BT.shape[1]
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, scores_BT if scores_BT is None else scores_BT - 1e-6 * self.tokens


class HidesMemory(Full):
    """Stores memory outside of its state."""

    remembered: torch.Tensor

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        self.remembered = tokens_BT.float().mean()
        return super().read(state, tokens_BT, lengths_B, logprobs=logprobs)

    def score(self, state: Any, candidates: Any) -> Any:
        return super().score(state, candidates) - 1e-3 * self.remembered


class Miscounts(Full):
    """Does not count tokens."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        before = state.length_B
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return dataclasses.replace(state, length_B=before), scores_BT


class WritesFromNothing(Full):
    """Ignores the state when it writes after several prompts."""

    def generate(self, state: Any, prompts: Any, **options: Any) -> Any:
        start = self.start(state.batch_size) if state.batch_size < len(prompts) else state
        return super().generate(start, prompts, **options)


class NoticesTheCounters(Full):
    """Computes differently under a counter."""

    def read(self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True) -> Any:
        state, scores_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, scores_BT if scores_BT is None or torch.matmul is MATMUL else scores_BT * (1 + 1e-6)


class LooksTwice(Window):
    """Reads everything twice, and inherits a formula that does not know."""

    def step(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> Any:
        super().step(state, tokens_Bt, lengths_B)
        return super().step(state, tokens_Bt, lengths_B)


class KeepsMore(Full):
    """Says that a state has half of its bytes."""

    def formula(self, ahead: Any = None) -> Any:
        formula = super().formula(ahead)
        whole = formula.state_bytes
        formula.state_bytes = lambda length: whole(length) // 2  # type: ignore[method-assign]
        return formula


class Fails(Full):
    """Raises."""

    def step(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> Any:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (LooksAhead, "causality"),
        (ForgetsTheSplit, "streaming"),
        (SkipsInSilence, "silent reading"),
        (TalksInSilence, "silent reading"),
        (ChangesTheState, "score is pure"),
        (MixesRows, "rows"),
        (HoldsOtherRowsSlots, "rows"),
        (KeepsADict, "saving"),
        (NotAProbability, "normalised"),
        (IsRandom, "determinism"),
        (TouchesTheBackbone, "backbone untouched"),
        (HidesMemory, "score is pure"),
        (Miscounts, "lengths"),
        (WritesFromNothing, "generate"),
        (NoticesTheCounters, "counting"),
        (LooksTwice, "formula"),
        (KeepsMore, "formula"),
        (ContinuesTheLastCall, "threads"),
        (Fails, "causality"),
    ],
)
def test_a_method_that_breaks_a_law_is_caught(method: type[Any], law: str) -> None:
    assert laws.Case(law, "tiny-llama", "float32").broken(method) is not None


def test_what_a_formula_leaves_out_may_be_counted_but_not_what_it_has_too_much() -> None:
    class Least(Window):
        factor = 1.0

        def formula(self, ahead: Any = None) -> Any:
            formula = super().formula(ahead)
            formula.least, formula.update = True, formula.update + self.factor * 10**5
            return formula

    class TooMuch(Least):
        factor = -1.0

    class Silent(LooksTwice):
        def formula(self, ahead: Any = None) -> Any:
            return None

    def broken(kind: Any) -> Any:
        return laws.Case("formula", "tiny-llama", "float32").broken(kind) is not None

    assert [broken(kind) for kind in (Least, TooMuch, Silent)] == [True, False, False]


def test_a_baseline_that_is_not_equalled_is_caught() -> None:
    class Wrong(Full):
        def baseline(self) -> Any:
            return Window(self.backbone, WindowConfig(N=16))

    assert laws.Case("equals its baseline", "tiny-llama", "float32").broken(Wrong) is not None
