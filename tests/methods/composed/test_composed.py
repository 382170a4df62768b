"""Two methods at once: what each of them computes, what both cost, and which parts are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken
from torch import Tensor

from contextlab import backbone as backbones
from contextlab import calls, naming
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.composed import Composed, ComposedConfig
from contextlab.methods.composed.config import CACHES
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter
from contextlab.methods.parts.targets import transposed
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.window import Window

CLOSE = {"atol": 1e-4, "rtol": 1e-4}
ADAPTER = "generative-adapter(chunk=32,d_r=8,r=4)"
STUDY = "least-squares(chunk=24,study=1,study_tokens=3)"
FORMS = {
    "retrieval": ("retrieval(N=20,K=8,csz=2,sinks=2,M=40)", ADAPTER),
    "window": ("window(N=24)", ADAPTER),
    "study": ("full", STUDY),
    "sinks": ("sinks(sinks=2,recent=21)", ADAPTER),
    "snapkv": ("snapkv(N=24,keep=20,window=6)", ADAPTER),
    "sliding, 4 bits": ("sliding(N=50,recent=70,cache=int4)", ADAPTER),
    "evalm": ("evalm(W=32,c=8,remote_bias=-0.5)", ADAPTER),
}


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 257, (rows, length), generator=torch.Generator().manual_seed(seed))


def composed(backbone: Backbone, method: str, under: str = ADAPTER) -> Composed:
    """With an adapter that changes weights."""
    both = Composed(backbone, ComposedConfig(method=method, under=under))
    if isinstance(both.weights, GenerativeAdapter):
        random, generator = torch.Generator().manual_seed(1), both.weights.generator
        for i in range(len(generator.targets)):
            torch.nn.init.normal_(generator.layer(i).A1, std=0.5, generator=random)
    return both


def merged(both: Composed, state: Any) -> Backbone:
    """A model with the weights of a state's only row in the place of its own."""
    backbone = both.backbone
    model = copy.deepcopy(backbone.model)
    with torch.no_grad():
        for target, pair in zip(both.weights.targets, state.weights.pairs, strict=True):
            change = pair.up[0] @ pair.down[0]
            model.get_submodule(target.name).weight += change.mT if transposed(target) else change
    return Backbone(model, backbone.tokenizer, backbone.name)


def test_a_chunk_is_read_with_the_weights_of_those_before_it(backbone: Backbone) -> None:
    """Keys and values of earlier chunks stay as the weights of their time have made them."""
    both, tokens = composed(backbone, "full"), text(1, 96)
    state, full = both.start(), Full(backbone)
    plain, parts, expected = full.start(), [], []
    for begin in range(0, 96, 32):
        part = tokens[:, begin : begin + 32]
        changed = Full(merged(both, state))
        with calls.within(changed):
            plain, logprobs = changed.read(plain, part)
        expected.append(logprobs)
        state, logprobs = both.read(state, part)
        parts.append(logprobs)
    torch.testing.assert_close(torch.cat(parts, 1), torch.cat(expected, 1), **CLOSE)
    assert not torch.allclose(parts[1], full.read(full.start(), tokens)[1][:, 32:64], atol=1e-2)


@pytest.mark.parametrize("name", FORMS)
def test_weights_are_those_that_their_method_makes_alone(backbone: Backbone, name: str) -> None:
    both, tokens, lengths = composed(backbone, *FORMS[name]), text(2, 80), torch.tensor([80, 47])
    state, _ = both.read(both.start(2, ahead=Lengths(70, 5)), tokens, lengths)
    alone, _ = both.weights.read(both.weights.start(2, ahead=Lengths(70, 5)), tokens, lengths, logprobs=False)
    for part, expected in alone.tensors().items():
        torch.testing.assert_close(state.weights.tensors()[part], expected, **CLOSE)


def test_without_a_change_the_cache_reads_as_alone(backbone: Backbone) -> None:
    both = Composed(backbone, ComposedConfig(method="retrieval(N=20,K=8)", under=ADAPTER))
    alone, tokens = Retrieval(backbone, RetrievalConfig(N=20, K=8)), text(1, 90)
    assert both.untrained
    assert isinstance(both.baseline(), Retrieval)
    torch.testing.assert_close(both.read(both.start(), tokens)[1], alone.read(alone.start(), tokens)[1], **CLOSE)
    assert composed(backbone, "window").baseline() is None
    assert not composed(backbone, "window").untrained


SLOW = ("study", "sinks", "evalm")
"""Forms whose laws are slow tests."""


@pytest.mark.parametrize("around", PARTS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FORMS])
def test_compositions_keep_the_laws(name: str, around: bool) -> None:
    assert broken(lambda b: composed(b, *FORMS[name]), "tiny-llama", around=around) == {}


@pytest.mark.parametrize("around", PARTS)
def test_learned_positions_keep_the_laws(around: bool) -> None:
    assert broken(lambda b: composed(b, *FORMS["retrieval"]), "tiny-gpt2", around=around) == {}


def test_rows_of_candidates_and_of_prompts_are_read_with_their_own_weights(backbone: Backbone) -> None:
    """Also where a candidate does not fit the segment, so that each is read from a copy of its row."""
    both, tokens = composed(backbone, "window(N=40)"), text(3, 40)
    state, _ = both.read(both.start(3, ahead=Lengths(36, 4)), tokens, torch.tensor([36, 36, 40]), logprobs=False)
    candidates = [[5, 6, 7], [8] * 20]
    together = both.score(state, candidates)
    for row in range(3):
        torch.testing.assert_close(both.score(state.row(row), candidates), together[row : row + 1], **CLOSE)
        own = both.score_rows(state.row(row), [candidates])
        torch.testing.assert_close(own, together[row : row + 1], **CLOSE)
    written = both.generate(state, [[5], [6], [7]], max_new_tokens=6)
    assert written == [both.generate(state.row(row), [[5 + row]], max_new_tokens=6)[0] for row in range(3)]


def test_the_state_is_that_of_both(backbone: Backbone) -> None:
    both = composed(backbone, *FORMS["retrieval"])
    state, _ = both.read(both.start(), text(1, 80), logprobs=False)
    assert state.nbytes == state.cache.nbytes + state.weights.nbytes + state.pending_BC.nbytes + 8
    assert state.cached == state.cache.cached
    assert both.added_parameters == both.weights.added_parameters > 0


def test_a_state_of_two_texts_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    both = composed(backbone, *FORMS["retrieval"])
    short, long = (both.read(both.start(), text(1, length), logprobs=False)[0] for length in (40, 80))
    mixed = type(long)(long.length_B, long.pending_BC, long.cache, short.weights).own(both)
    mixed.save(tmp_path / "state")
    with pytest.raises(UserError, match=r"weights.length_B is out of range"):
        both.load_state(tmp_path / "state")


def test_a_run_depends_on_what_both_have_learned_and_read(tmp_path: Path) -> None:
    llama = backbones.load("tiny-llama", device="cpu")
    plain, changed = Composed(llama, ComposedConfig(under=ADAPTER)), composed(llama, "sliding")
    assert plain.weights_digest != changed.weights_digest
    assert Composed(llama, ComposedConfig(under=STUDY)).weights_digest is None
    digests = []
    for content in ("Some pages of a book.", "Other pages of a book."):
        (tmp_path / "generic").write_text(content * 20)
        under = f"{STUDY[:-1]},generic={tmp_path / 'generic'})"
        digests.append(Composed(llama, ComposedConfig(under=under)).weights_digest)
    assert None not in digests
    assert len(set(digests)) == 2


def test_a_composition_is_named_on_one_line() -> None:
    named = naming.single("composed(method=retrieval(N=20,K=8),under=least-squares(chunk=32))")
    assert named.config == ComposedConfig(method="retrieval(N=20,K=8)", under="least-squares(chunk=32)")
    both: Any = named.build(backbones.load("tiny-llama", device="cpu"))
    assert (both.cache.local.segment, both.weights.local.segment) == (20, 32)


def test_the_name_of_trained_weights_stands_for_their_settings() -> None:
    config = ComposedConfig(under="generative-adapter-128")
    with pytest.raises(UserError, match="matches no linear layer of tiny-llama"):
        config.weights(backbones.load("tiny-llama", device="cpu"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "memtrm"}, "There is no method to compose 'memtrm': choose one of evalm, full"),
        ({"method": "slidng"}, "did you mean 'sliding'"),
        ({"under": "retrieval"}, "There is no method to compose 'retrieval': choose one of generative-adapter, least"),
        ({"method": "window(M=3)"}, "There is no setting of window 'M'"),
        ({"under": "least-squares(chunk=0)"}, "Setting chunk='0' of least-squares is not valid"),
        ({"method": "window,full"}, "names 2 methods"),
    ],
)
def test_parts_that_are_none_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ComposedConfig(**settings)


@pytest.mark.parametrize("method", ["window(rank=2)", "full(rope=linear)", "evalm(rank=2)"])
def test_a_method_with_weights_or_positions_of_its_own_is_refused(method: str) -> None:
    with pytest.raises(UserError, match="leave its rank and rope out"):
        Composed(backbones.load("tiny-llama", device="cpu"), ComposedConfig(method=method))


def test_every_cache_can_be_composed() -> None:
    llama = backbones.load("tiny-llama", device="cpu")
    for name in CACHES:
        both, tokens = composed(llama, name), text(1, 70)
        _, logprobs = both.read(both.start(), tokens)
        assert logprobs is not None
        assert logprobs.isfinite().all()
    assert isinstance(Composed(llama, ComposedConfig(method="window")).cache, Window)
