"""What methods cost by the count of what ran, against their formulas, which know lengths and settings alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from law_forms import fits

from contextlab.accounting.products import ProductCounter
from contextlab.backbone import TINY, load
from contextlab.backbone.wrapper import Backbone
from contextlab.formula import Row
from contextlab.method import Lengths
from contextlab.methods.bm25 import BM25, BM25Config
from contextlab.methods.cartridge import Cartridge, CartridgeConfig
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.composed import Composed, ComposedConfig
from contextlab.methods.dense import Dense, DenseConfig
from contextlab.methods.drop import Drop, DropConfig
from contextlab.methods.dynamic_eval import DynamicEval, DynamicEvalConfig
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.finetune import Finetune
from contextlab.methods.full import Full, FullConfig
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.h2o import H2O, H2OConfig
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.least_squares import LeastSquares, LeastSquaresConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.parts.formulas import Segments
from contextlab.methods.press import Press, PressConfig
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.snapkv import SnapKV, SnapKVConfig
from contextlab.methods.trime import TRIME, TRIMEConfig
from contextlab.methods.ultragist import UltraGist, UltraGistConfig
from contextlab.methods.window import Window, WindowConfig

FAMILIES = ("tiny-llama", "tiny-gpt2")
TEXT = torch.randint(0, 256, (1, 300), generator=torch.Generator().manual_seed(0))
CUTS = ((17, 15, 1, 31), (150, 90))
AHEAD = Lengths(140, 7)
CANDIDATES = ([5], [6, 7, 8, 9, 10, 11, 12], [13, 14, 15])
LONG = ([5] * 40, [6, 7], [8] * 11)
PROMPTS = ([3, 4, 5], [], [6, 7, 8, 9])
STOP = (7, 8, 9, 10)
LONGMEM = {"N": 32, "K": 8, "M": 96}

FORMS: dict[str, Callable[[Any], Any]] = {
    "full": lambda b: Full(b),
    "full, updated": lambda b: Full(b, FullConfig(rank=2, targets="all")),
    "full, 4 bits": lambda b: Full(b, FullConfig(cache="int4")),
    "window, 8 bits": lambda b: Window(b, WindowConfig(N=100, cache="int8")),
    "sliding, 4 bits": lambda b: Sliding(b, SlidingConfig(N=50, sinks=3, recent=70, cache="int4")),
    "closed-book": lambda b: ClosedBook(b),
    "window": lambda b: Window(b, WindowConfig(N=32)),
    "window, updated": lambda b: Window(b, WindowConfig(N=32, rank=3)),
    "sliding": lambda b: Sliding(b, SlidingConfig(N=20, sinks=3)),
    "sliding, sinks alone": lambda b: Sliding(b, SlidingConfig(N=32, sinks=2, recent=0)),
    "sinks": lambda b: Sinks(b, SinksConfig(recent=20, sinks=3)),
    "sinks, 4 bits": lambda b: Sinks(b, SinksConfig(recent=90, sinks=3, cache="int4")),
    "snapkv": lambda b: SnapKV(b, SnapKVConfig(N=24, keep=21, window=6)),
    "snapkv, 4 bits": lambda b: SnapKV(b, SnapKVConfig(N=40, keep=70, window=30, cache="int4")),
    "h2o": lambda b: H2O(b, H2OConfig(N=24, keep=21, recent=4)),
    "press": lambda b: Press(b, PressConfig(options={"window_size": 6})),
    "press, windows": lambda b: Press(b, PressConfig(when="window", N=24, ratio=0.3, options={"window_size": 6})),
    "press, no queries": lambda b: Press(b, PressConfig(name="KeyDiff")),
    "press, all inputs": lambda b: Press(b, PressConfig(name="Block(Knorm)")),
    "longmem": lambda b: LongMem(b, LongMemConfig(**LONGMEM)),
    "longmem, paper": lambda b: LongMem(b, LongMemConfig(**LONGMEM, init="paper")),
    "longmem, layers": lambda b: LongMem(
        b, LongMemConfig(N=32, K=8, M=64, memory_layers="1-3", init="difference", rank=2)
    ),
    "longmem, sliding": lambda b: LongMem(
        b, LongMemConfig(N=20, K=8, M=96, local="sliding", sinks=3, softmax="joint", init="memory")
    ),
    "longmem, packed": lambda b: LongMem(b, LongMemConfig(N=32, K=8, M=96, storage_dtype="int8")),
    "longmem, shared banks": lambda b: LongMem(
        b, LongMemConfig(N=20, K=8, M=192, memory_layers="0-2", init="difference", reduction=1, blocks_per_bank=2)
    ),
    "longmem, packed in two steps": lambda b: LongMem(
        b, LongMemConfig(N=32, K=8, M=128, eviction="official_two_step", storage_dtype="int4")
    ),
    "longmem, 4 bits": lambda b: LongMem(b, LongMemConfig(N=72, K=8, M=96, cache="int4")),
    "longmem, no memory": lambda b: LongMem(b, LongMemConfig(N=32, K=8, M=0)),
    "longmem, two steps": lambda b: LongMem(
        b, LongMemConfig(N=32, K=9, M=63, csz=3, eviction="official_two_step", short_bank="zero_slot")
    ),
    "memtrm": lambda b: MemTRM(b, MemTRMConfig(N=32, K=8, M=70)),
    "memtrm, sliding": lambda b: MemTRM(b, MemTRMConfig(N=24, K=8, M=60, rank=0, local="sliding")),
    "memtrm, 4 bits": lambda b: MemTRM(b, MemTRMConfig(N=72, K=8, M=96, cache="int4")),
    "trime, 8 bits": lambda b: TRIME(b, TRIMEConfig(N=72, M=70, cache="int8")),
    "trime": lambda b: TRIME(b, TRIMEConfig(N=32, M=70)),
    "evalm": lambda b: EVALM(b, EVALMConfig(W=32, c=8, sinks=2)),
    "evalm, view in 4 bits": lambda b: EVALM(
        b, EVALMConfig(W=56, c=8, sinks=2, overlap=True, cache="int4", storage_dtype="int4")
    ),
    "evalm, chunks of sinks": lambda b: EVALM(b, EVALMConfig(W=32, c=2, sinks=5)),
    "evalm, 8 bits": lambda b: EVALM(b, EVALMConfig(W=32, c=4, sinks=2, storage_dtype="int8")),
    "evalm, 16 bits": lambda b: EVALM(
        b, EVALMConfig(W=32, c=16, remote_bias=-1.0, pooling="learned", storage_dtype="float16")
    ),
    "evalm, before chunks": lambda b: EVALM(b, EVALMConfig(W=32, c=8, sinks=2, remote_visibility="before_chunk")),
    "window, own weights": lambda b: Window(b, WindowConfig(N=32, rank="full")),
    "evalm, own weights": lambda b: EVALM(b, EVALMConfig(W=32, c=8, sinks=2, remote_bias=-1.0, rank="full")),
    "evalm, overlap": lambda b: EVALM(b, EVALMConfig(W=32, c=8, sinks=2, overlap=True, rank=2, pooling="learned")),
    "retrieval": lambda b: Retrieval(b, RetrievalConfig(N=20, K=8, M=60, sinks=2)),
    "retrieval, learned": lambda b: Retrieval(
        b, RetrievalConfig(N=20, K=9, M=63, csz=3, rank=2, storage_dtype="float16")
    ),
    "retrieval, packed": lambda b: Retrieval(
        b, RetrievalConfig(N=20, K=9, M=132, csz=3, every=2, rank=2, storage_dtype="int4")
    ),
    "retrieval, packed blocks": lambda b: Retrieval(
        b, RetrievalConfig(N=20, K=16, csz=8, shared=True, stored_in="host", storage_dtype="int8")
    ),
    "retrieval, blocks": lambda b: Retrieval(
        b, RetrievalConfig(N=20, K=16, M=64, csz=8, shared=True, stored_in="host")
    ),
    "hso": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=1e-5)),
    "hso, judged": lambda b: HSO(b, HSOConfig(k=10, context=60, lr=1e-5)),
    "hso, sliding": lambda b: HSO(b, HSOConfig(k=7, context=60, lr=1e-5, eviction="sliding", states="keys")),
    "hso, two steps": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=1e-5, steps=2, second="recomputed")),
    "hso, two fixed steps": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=1e-5, steps=2)),
    "hso, inputs": lambda b: HSO(b, HSOConfig(k=10, context=60, lr=1e-5, states="inputs")),
    "hso, present inputs": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=1e-5, states="inputs", update="present")),
    "hso, inputs, two steps": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=1e-5, states="inputs", steps=2)),
    "hso, sliding inputs": lambda b: HSO(
        b,
        HSOConfig(k=7, context=60, lr=1e-5, eviction="sliding", states="inputs", steps=2, second="recomputed"),
    ),
    "hso, plain": lambda b: HSO(b, HSOConfig(k=25, context=60, lr=0)),
    "dynamic-eval": lambda b: DynamicEval(b, DynamicEvalConfig(N=64, segment=24)),
    "dynamic-eval, recomputed": lambda b: DynamicEval(
        b, DynamicEvalConfig(N=64, segment=24, cache="recomputed", rule="sgd")
    ),
    "dynamic-eval, plain": lambda b: DynamicEval(b, DynamicEvalConfig(N=64, segment=24, lr=0)),
    "cartridge": lambda b: Cartridge(
        b, CartridgeConfig(p=10, N=24, chunk=40, study=2, study_tokens=5, steps=3, batch=3, context=100)
    ),
    "cartridge, one text": lambda b: Cartridge(
        b, CartridgeConfig(p=10, N=24, study=1, study_tokens=5, steps=2, frozen=0, context=40)
    ),
    "cartridge, next tokens": lambda b: Cartridge(
        b, CartridgeConfig(p=10, N=24, chunk=40, objective="lm", steps=4, batch=3, context=83)
    ),
    "cartridge, plain": lambda b: Cartridge(b, CartridgeConfig(p=10, N=24, lr=0, context=100)),
    "generative-adapter": lambda b: GenerativeAdapter(b, GenerativeAdapterConfig(chunk=32)),
    "generative-adapter, random": lambda b: GenerativeAdapter(
        b, GenerativeAdapterConfig(chunk=32, normalisation="svd-lowrank", d_r=8, r=3, oversampling=2)
    ),
    "generative-adapter, polar": lambda b: GenerativeAdapter(
        b, GenerativeAdapterConfig(chunk=32, normalisation="polar", modules="*mlp*")
    ),
    "least-squares": lambda b: LeastSquares(
        b, LeastSquaresConfig(chunk=32, study=3, study_tokens=5, study_prompts="ab|c")
    ),
    "least-squares, chunk alone": lambda b: LeastSquares(b, LeastSquaresConfig(chunk=24, study=0, seen=0, rank=3)),
    "least-squares, more rows than inputs": lambda b: LeastSquares(
        b, LeastSquaresConfig(chunk=24, study=24, study_tokens=12, seen=9)
    ),
    "composed": lambda b: Composed(
        b, ComposedConfig(method="retrieval(N=20,K=8,M=60,sinks=2)", under="generative-adapter(chunk=32)")
    ),
    "composed, packed": lambda b: Composed(
        b, ComposedConfig(method="window(N=100,cache=int4)", under="least-squares(chunk=24,study=0,rank=3)")
    ),
    "composed, scored": lambda b: Composed(
        b, ComposedConfig(method="snapkv(N=20,keep=17,window=6)", under="generative-adapter(chunk=32,modules=*mlp*)")
    ),
    "bm25": lambda b: BM25(b, BM25Config(k=2, chunk=7, recent=20, stride=9)),
    "dense": lambda b: Dense(b, DenseConfig(k=2, chunk=7, recent=20, stride=9)),
    "drop": lambda b: Drop(b, DropConfig(N=20, ratio=0.3)),
    "ultragist": lambda b: UltraGist(b, UltraGistConfig(W=32, ratio=8, sinks=2)),
    "ultragist, few": lambda b: UltraGist(b, UltraGistConfig(W=32, ratio=5, M=9)),
}
OF_LLAMAS_NAMES = (
    *("generative-adapter", "generative-adapter, random", "composed"),
    *(name for name in FORMS if name[:5] == "press"),
)
"""Forms that use parts of layers under names that GPT-NeoX does not have."""


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return load(request.param)


@pytest.fixture(params=list(FORMS))
def method(request: pytest.FixtureRequest, backbone: Backbone) -> Any:
    if not fits(request.param, backbone.name):
        pytest.skip("the method is not installed, or refuses this family")
    return FORMS[request.param](backbone)


def counted(call: Any) -> Any:
    with ProductCounter() as counter:
        result = call()
    return result, counter.flops


def read_in_pieces(method: Any, cuts: Any, *, ahead: Any = None, logprobs: bool = True) -> Any:
    """The state after the pieces; every piece and every state between them agrees with the formula."""
    formula, state, before = method.formula(ahead), method.start(ahead=ahead), 0
    for count in cuts:
        part, at = TEXT[:, before : before + count], state
        (state, _), flops = counted(lambda part=part, at=at: method.read(at, part, logprobs=logprobs))
        assert formula.read([Row(before, count)], logprobs=logprobs) == flops
        before += count
        assert formula.state_bytes(before) == state.nbytes
    return state


@pytest.mark.parametrize("cuts", CUTS)
def test_scored_reading_costs_what_the_formula_says(method: Any, cuts: tuple[int, ...]) -> None:
    read_in_pieces(method, cuts)


@pytest.mark.parametrize("ahead", [None, AHEAD])
def test_a_context_and_what_follows_it_cost_what_the_formula_says(method: Any, ahead: Lengths | None) -> None:
    state, formula = read_in_pieces(method, (AHEAD.context,), ahead=ahead, logprobs=False), method.formula(ahead)
    before = AHEAD.context
    for candidates in (CANDIDATES, LONG):
        _, flops = counted(lambda candidates=candidates: method.score(state, candidates))
        assert formula.score(before, [len(candidate) for candidate in candidates]) == flops
    for prompts in (PROMPTS[:1], PROMPTS):
        written, flops = counted(lambda prompts=prompts: method.generate(state, prompts, max_new_tokens=3, stop=STOP))
        lengths = ([len(sequence) for sequence in texts] for texts in (prompts, written))
        assert formula.generate(before, *lengths, 3) == flops


def test_silent_pieces_cost_what_the_formula_says(method: Any) -> None:
    read_in_pieces(method, (31, 1, 32, 100), logprobs=False)


def test_nothing_costs_nothing(method: Any) -> None:
    formula = method.formula()
    assert formula.read([Row(40, 0)], logprobs=True) == 0
    assert formula.score(40, [0, 0]) == 0
    assert formula.generate(40, [3], [0], 0) == 0


def test_many_candidates_are_read_in_several_passes(backbone: Backbone) -> None:
    method = Window(backbone, WindowConfig(N=100))
    candidates = [[5] * 60] * 69 + [[6, 7]] * 5
    state = method.start()
    _, flops = counted(lambda: method.score(state, candidates))
    assert method.formula().score(0, [len(candidate) for candidate in candidates]) == flops


@pytest.mark.parametrize("family", [name for name in TINY if name not in (*FAMILIES, "tiny-gpt-neox")])
@pytest.mark.parametrize("name", ["full", "memtrm", "evalm", "generative-adapter"])
def test_other_families_have_a_formula(name: str, family: str) -> None:
    read_in_pieces(FORMS[name](load(family)), (31, 1, 100), logprobs=False)


@pytest.mark.parametrize("family", ["tiny-mistral", "tiny-gpt-neox"])
@pytest.mark.parametrize("name", [name for name in FORMS if name not in OF_LLAMAS_NAMES])
def test_own_windows_and_parallel_blocks_are_in_every_formula(name: str, family: str) -> None:
    method = FORMS[name](load(family))
    state = read_in_pieces(method, (150, 90))
    _, flops = counted(lambda: method.score(state, CANDIDATES))
    assert method.formula().score(240, [len(candidate) for candidate in CANDIDATES]) == flops


@pytest.mark.parametrize("rank", [None, 2])
def test_layers_whose_own_window_is_narrower_than_the_view_retrieve_nothing(rank: int | None) -> None:
    method = Retrieval(load("tiny-mistral"), RetrievalConfig(N=30, K=8, M=60, sinks=2, rank=rank))
    read_in_pieces(method, (150, 90))


def test_what_has_no_formula_says_so() -> None:
    backbone, uneven = load("tiny-llama"), load("tiny-mistral")
    uneven.config.layer_types = ["sliding_attention", "full_attention"] * 2
    assert Finetune(backbone).formula() is None
    assert LongMem(backbone, LongMemConfig(N=32, bank_scope="shared")).formula() is None
    assert DynamicEval(backbone, DynamicEvalConfig(parameters="*.mlp.*")).formula() is None
    assert Retrieval(backbone, RetrievalConfig(csz=8, K=16, representatives=2)).formula() is None
    for name in ("full", "closed-book", "longmem", "memtrm", "trime", "evalm", "retrieval", "hso", "dynamic-eval"):
        assert FORMS[name](uneven).formula() is None
    for name in ("generative-adapter", "ultragist", "window, updated"):
        assert FORMS[name](uneven).formula() is None


def test_a_text_that_surprises_may_cost_more_than_the_formula_says() -> None:
    """Dynamic evaluation compares a segment of high loss with the trained weights, which the formula leaves out."""
    method = FORMS["dynamic-eval"](load("tiny-llama"))
    state, formula = read_in_pieces(method, (150, 90)), method.formula()
    _, flops = counted(lambda: method.score(state, LONG))
    assert formula.least
    assert flops > formula.score(240, [len(candidate) for candidate in LONG])


def test_segments_cover_a_text_without_gaps() -> None:
    segments = Segments(50, 20, 32)
    ends, begin = [], 0
    while begin < 150:
        assert segments.bounds(begin) == segments.bounds(segments.bounds(begin)[1] - 1)
        begin = segments.bounds(begin)[1]
        ends.append(begin)
    assert ends == [20, 40, 50, 82, 114, 146, 178]
    assert list(segments.before(114)) == [20, 20, 10, 32, 32]
    assert list(segments.before(113)) == [20, 20, 10, 32]
