"""Other forms of LongMem: many memory layers, one softmax, a sliding view, two starts, low-rank updates, no memory."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from law_forms import PARTS, broken
from random_texts import read, text
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.attention import KV
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.longmem import LongMem, LongMemConfig, reader
from contextlab.methods.longmem.newgpt import NewGPTConfig, NewGPTForCausalLM
from contextlab.methods.longmem.update import LowRankUpdate, SideUpdate
from contextlab.methods.parts.banks import ChunkBank
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.window import Window, WindowConfig

Settings = dict[str, Any]
SLIDING: Settings = {"local": "sliding", "init": "difference", "softmax": "joint", "storage_dtype": "float32"}
FORMS: dict[str, Settings] = {
    "memory": {"N": 32, "K": 8, "init": "memory"},
    "memory, joint": {"N": 24, "K": 8, "init": "memory", "softmax": "joint", "memory_layers": "2-3", "reduction": 1},
    "difference": {"N": 24, "K": 8, "init": "difference", "memory_layers": "1-3"},
    "difference, sliding": {**SLIDING, "N": 20, "K": 8, "reduction": 1, "memory_layers": "1-3"},
    "gate, sliding": {"N": 20, "K": 8, "csz": 2, "init": "paper", "local": "sliding", "sinks": 1},
    "rank": {"N": 32, "K": 8, "init": "memory", "rank": 2, "memory_layers": "0-3"},
    "rank, difference": {**SLIDING, "N": 20, "K": 8, "rank": 2},
    "rank, identity": {"N": 32, "K": 8, "rank": 1, "softmax": "joint"},
    "off": {"N": 24, "K": 8, "init": "difference", "M": 0},
}
FAMILIES = ("tiny-llama", "tiny-gpt2")


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return backbones.load("tiny-llama", device="cpu")


def built(backbone: Backbone, **settings: Any) -> LongMem:
    return LongMem(backbone, LongMemConfig(**settings))


def local_of(backbone: Backbone, settings: Settings) -> ContextMethod[Any, Any]:
    if settings.get("local") == "sliding":
        return Sliding(backbone, SlidingConfig(N=settings["N"], sinks=settings.get("sinks", 4)))
    return Window(backbone, WindowConfig(N=settings["N"]))


@pytest.mark.parametrize(
    ("form", "family"),
    [
        ("memory, joint", "tiny-gpt2"),
        ("difference", "tiny-llama"),
        ("difference, sliding", "tiny-gpt2"),
        ("gate, sliding", "tiny-llama"),
        ("rank", "tiny-llama"),
    ],
)
@pytest.mark.parametrize("around", PARTS)
def test_laws(form: str, family: str, around: bool) -> None:
    assert broken(lambda b: built(b, **FORMS[form]), family, around=around) == {}


@pytest.mark.parametrize("form", [form for form in FORMS if FORMS[form].get("init") != "paper"])
def test_before_anything_is_in_a_bank_it_is_the_local_view(backbone: Backbone, form: str) -> None:
    settings = FORMS[form]
    empty = settings["N"] * (2 if settings.get("local") == "sliding" else 1)
    tokens = text(3 * empty, rows=2)
    result, expected = read(built(backbone, **settings), tokens), read(local_of(backbone, settings), tokens)
    torch.testing.assert_close(result[:, :empty], expected[:, :empty], atol=1e-6, rtol=1e-6)
    silent = settings.get("M") == 0 or settings.get("init", "identity") == "identity"
    assert torch.allclose(result, expected, atol=1e-5) == silent


@pytest.mark.parametrize("init", ["memory", "difference"])
@pytest.mark.parametrize("softmax", ["gate", "joint"])
@pytest.mark.parametrize("local", ["cold", "sliding"])
def test_a_closed_gate_leaves_the_local_view(backbone: Backbone, init: str, softmax: str, local: str) -> None:
    settings = {"N": 20, "K": 8, "init": init, "softmax": softmax, "local": local, "gate": -1e9, "memory_layers": "1-3"}
    tokens = text(90, rows=2)
    result, expected = read(built(backbone, **settings), tokens), read(local_of(backbone, settings), tokens)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
    opened = read(built(backbone, **{**settings, "gate": 2.0}), tokens)
    assert not torch.allclose(opened[:, 50:], expected[:, 50:], atol=1e-3)


@pytest.mark.parametrize("layer", [0, 3])
def test_read_by_one_layer_it_is_retrieval(backbone: Backbone, layer: int) -> None:
    """Below that layer nothing differs, so that the backbone's keys are retrieval's own; above it the bank is the same
    and what is added travels through copies of the backbone's layers."""
    tokens = text(110, rows=2)
    side = built(backbone, **SLIDING, N=20, K=8, reduction=1, memory_layer=layer)
    plain = Retrieval(backbone, RetrievalConfig(N=20, K=8, first_layer=layer))
    result, expected = read(side, tokens), read(plain, tokens)
    same = 110 if layer == 3 else 40 + 1
    torch.testing.assert_close(result[:, :same], expected[:, :same], atol=1e-5, rtol=1e-5)
    # All layers of retrieval from `first_layer` on have a bank.
    assert torch.allclose(result, expected, atol=1e-4) == (layer == 3)


@pytest.mark.parametrize(
    ("sizes", "equal"),
    [
        ({"N": 21, "csz": 3, "K": 9, "sinks": 3}, True),
        ({"N": 21, "csz": 3, "K": 9, "sinks": 0}, True),
        ({"N": 21, "csz": 3, "K": 9, "sinks": 2}, False),
        ({"N": 22, "csz": 4, "K": 8, "sinks": 4}, False),
    ],
)
def test_it_is_retrieval_where_chunks_fill_what_leaves_the_view(llama: Backbone, sizes: Settings, equal: bool) -> None:
    """LongMem leaves out what fills no chunk of its segment; retrieval keeps it for the next window's tokens."""
    tokens = text(110, rows=2)
    side = built(llama, **SLIDING, **{**sizes, "M": 252}, reduction=1, memory_layer=3)
    plain = Retrieval(llama, RetrievalConfig(**sizes, M=252, first_layer=3))
    result, expected = read(side, tokens), read(plain, tokens)
    assert torch.allclose(result, expected, atol=1e-4) == equal


def test_read_by_many_layers_it_is_near_retrieval(llama: Backbone) -> None:
    """Its banks hold the frozen backbone's keys, where those of retrieval carry on what was retrieved before."""
    tokens = text(300, rows=2)
    side = built(llama, **SLIDING, N=20, K=8, reduction=1, memory_layers="1-3")
    plain, sliding = Retrieval(llama, RetrievalConfig(N=20, K=8)), Sliding(llama, SlidingConfig(N=20))
    near, expected, local = (read(method, tokens)[:, 41:] for method in (side, plain, sliding))
    assert 0 < float((near - expected).abs().mean()) < 0.5 * float((local - expected).abs().mean())


@pytest.mark.parametrize(("softmax", "inner"), [("gate", "fuse_memory"), ("joint", "retrieval_attention")])
def test_one_softmax_gives_cold_banks_a_position(
    llama: Backbone, monkeypatch: pytest.MonkeyPatch, softmax: str, inner: str
) -> None:
    """Keys that were stored before rotation are those of position 0 for rotated queries, and of none for others."""
    queries = []

    def recorded(*arguments: Any, **settings: Any) -> Tensor:
        (inputs,) = arguments if softmax == "joint" else (None,)
        queries.append((inputs.q_BHTD, inputs.q_memory_BHTD) if inputs else (None, arguments[1]))
        return plain(*arguments, **settings)

    plain = getattr(reader, inner)
    monkeypatch.setattr(reader, inner, recorded)
    rotate, rotated = reader.rotate, []
    monkeypatch.setattr(reader, "rotate", lambda *arguments: rotated.append(rotate(*arguments)) or rotated[-1])
    read(built(llama, N=16, K=8, softmax=softmax, init="difference", memory_layer=3, reduction=1), text(40))
    assert queries
    for near_BHTD, memory_BHTD in queries:
        assert any(torch.equal(memory_BHTD, q_BHTD) for q_BHTD in rotated) == (softmax == "joint")
        assert near_BHTD is None or torch.equal(near_BHTD, memory_BHTD)


def test_the_bank_holds_what_the_backbone_computes(llama: Backbone) -> None:
    """Also of a block whose side network differs from it."""
    tokens = text(64)
    method = built(llama, N=32, K=8, init="difference", memory_layers="0-3", reduction=1, storage_dtype="float32")
    state, _ = method.read(method.start(), tokens)
    reader_kv = []
    window = Window(llama, WindowConfig(N=32))
    inner = window.start()
    for begin in (0, 32):
        before, _ = window.read(inner, tokens[:, begin : begin + 31])
        reader_kv.append(before.kv)
        inner, _ = window.read(before, tokens[:, begin + 31 : begin + 32])
    for layer in range(4):
        values = torch.cat([kv.v[layer] for kv in reader_kv], 2)
        held = state.bank.tokens(layer)[1].flatten(2, 3)
        kept = [*range(31), *range(32, 63)]
        torch.testing.assert_close(held[:, :, kept], values, atol=1e-5, rtol=1e-5)


def gradients(method: LongMem, tokens: Tensor) -> dict[str, Tensor]:
    assert method.learned is not None
    method.learned.zero_grad()
    method.learn(method.start(len(tokens)), tokens)[1].logprobs_BT.mean().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in method.learned.named_parameters()
    }


@pytest.mark.parametrize("softmax", ["gate", "joint"])
@pytest.mark.parametrize("init", ["memory", "difference"])
def test_queries_and_gates_have_a_gradient_from_the_first_step(llama: Backbone, init: str, softmax: str) -> None:
    method = built(llama, N=20, K=8, init=init, softmax=softmax, memory_layers="1-3")
    result = gradients(method, text(60))
    assert bool(result["gate_H" if len(method.side.reading) == 1 else "gate_LH"].any())
    for block in method.side.reading:
        assert bool(result[f"blocks.{block - method.side.first}.self_attn.q_proj.weight"].any())


def test_what_is_silent_has_a_gradient_into_its_outputs(backbone: Backbone) -> None:
    result = gradients(built(backbone, N=20, K=8, init="memory"), text(60))
    outputs = [name for name in result if re.search(r"\b(o|down|c)_proj\.", name)]
    assert outputs
    assert all(bool(result[name].any()) for name in outputs)


def test_below_the_lowest_memory_layer_differences_need_no_blocks(llama: Backbone) -> None:
    assert len(built(llama, init="difference", memory_layers="2-3", reduction=1).side.blocks) == 2
    assert len(built(llama, init="difference", memory_layers="2-3").side.blocks) == 1
    assert len(built(llama, init="memory", memory_layers="2-3").side.blocks) == 2


def test_memory_layers_are_those_that_blocks_copy(llama: Backbone) -> None:
    def reading(**settings: Any) -> dict[int, int]:
        return built(llama, **settings).side.reading

    assert reading() == {1: 2}
    assert reading(init="difference") == reading(init="memory") == {1: 2}
    assert reading(memory_layers="0-3") == {0: 1, 1: 3}
    assert reading(memory_layers="0-3", init="memory") == {0: 0, 1: 2}
    assert reading(memory_layers="3") == {1: 3}
    assert reading(memory_layers="1-2", reduction=1, init="difference") == {1: 1, 2: 2}
    every: dict[str, Any] = {"memory_layers": "0-3", "reduction": 1, "init": "difference"}
    assert reading(**every, blocks_per_bank=3) == {0: 0, 1: 0, 2: 0, 3: 3}
    assert reading(**every, blocks_per_bank=9) == dict.fromkeys(range(4), 0)


def of(kv: KV, layers: tuple[int, ...]) -> KV:
    """A cache with some of the layers of another."""
    return kv.replace(tuple(kv.k[i] for i in layers), tuple(kv.v[i] for i in layers if kv.v), kv.used_B)


@pytest.mark.parametrize("local", ["cold", "sliding"])
def test_blocks_that_share_a_bank_read_that_of_the_first_of_them(llama: Backbone, local: str) -> None:
    settings = {"init": "difference", "memory_layers": "1-3", "reduction": 1, "local": local, "N": 24, "K": 8}
    shared, own = (built(llama, **settings, blocks_per_bank=together) for together in (2, 1))
    states = [method.read(method.start(2), text(100, rows=2), logprobs=False)[0] for method in (shared, own)]
    few, every = (state.bank for state in states)
    assert isinstance(every, ChunkBank)
    of_blocks = (0, 0, 2)
    bank = dataclasses.replace(every, kv=of(every.kv, of_blocks), mean=of(every.mean, of_blocks))
    assert len(few.kv.k) == 2
    for x, y in zip(few.kv.k, (every.kv.k[0], every.kv.k[2]), strict=True):
        assert torch.equal(x, y)
    future = text(10, rows=2)
    expected = own.read(dataclasses.replace(states[0], bank=bank), future)[1]
    assert torch.equal(shared.read(states[0], future)[1], expected)


@pytest.mark.parametrize("form", ["memory", "difference, sliding", "rank", "rank, difference"])
def test_continuations_share_the_banks(backbone: Backbone, form: str) -> None:
    method = built(backbone, **FORMS[form])
    prompts = [[3, 5, 7, 9], [], [11], [20, 21, 22, 23, 24, 25]]
    for length in (70, 41, 99):
        state, _ = method.read(method.start(), text(length))
        scores, copies = method.score(state, prompts), ContextMethod.score(method, state, prompts)
        torch.testing.assert_close(scores, copies, atol=1e-5, rtol=1e-5)
        written = method.generate(state, prompts, max_new_tokens=4)
        assert written == [
            ContextMethod.generate(method, state, [candidate], max_new_tokens=4)[0] for candidate in prompts
        ]


def test_only_cold_segments_are_placed_by_what_is_ahead(llama: Backbone) -> None:
    cold, sliding = (built(llama, N=20, K=8, local=local) for local in ("cold", "sliding"))
    assert cold.capabilities.segment == 20
    assert sliding.capabilities.segment is None
    assert [method.start(ahead=Lengths(50)).left_B.tolist() for method in (cold, sliding)] == [[10], [20]]


def test_without_memory_it_is_its_baseline(backbone: Backbone) -> None:
    for settings in ({"init": "memory"}, {"init": "difference"}, {"init": "difference", "local": "sliding"}):
        method = built(backbone, N=20, K=8, M=0, **settings)
        baseline = method.baseline()
        assert baseline is method.view
        tokens = text(90, rows=2)
        torch.testing.assert_close(read(method, tokens), read(baseline, tokens), atol=1e-6, rtol=1e-6)
        assert built(backbone, N=20, K=8, **settings).baseline() is None
    assert built(backbone, M=0, init="paper").baseline() is None
    assert method.read(method.start(), text(90))[0].bank.count_B.tolist() == [0]


class TestRank:
    """All that is learned is an update of low rank, and the gates."""

    def test_it_starts_bitwise_as_without(self, backbone: Backbone) -> None:
        tokens = text(100, rows=2)
        for form in ("rank", "rank, difference", "rank, identity"):
            settings = FORMS[form]
            whole = {name: value for name, value in settings.items() if name != "rank"}
            assert torch.equal(read(built(backbone, **settings), tokens), read(built(backbone, **whole), tokens))

    def test_every_update_has_a_gradient_from_the_first_step(self, backbone: Backbone) -> None:
        result = gradients(built(backbone, **FORMS["rank, difference"]), text(90))
        assert set(result) >= {"gate"}
        assert all(bool(gradient.any()) for name, gradient in result.items() if not name.endswith("down_rI"))

    def test_weights_of_the_backbone_are_held_once(self, backbone: Backbone) -> None:
        before = backbones.weights_digest(backbone.model)
        method = built(backbone, N=32, K=8, init="difference", reduction=1, memory_layers="0-3", rank=2)
        own = {parameter.data_ptr() for parameter in backbone.model.parameters()}
        learned = {parameter.data_ptr() for parameter in method.side.learned.parameters()}
        assert all(parameter.data_ptr() in own | learned for parameter in method.side.parameters())
        assert not own & learned
        gradients(method, text(40))
        assert backbones.weights_digest(backbone.model) == before

    def test_silent_starts_leave_the_backbones_weights_alone(self, backbone: Backbone) -> None:
        before = backbones.weights_digest(backbone.model)
        built(backbone, init="memory", rank=2)
        built(backbone, init="identity", rank=2)
        assert backbones.weights_digest(backbone.model) == before
        assert all(parameter.requires_grad for parameter in backbone.model.parameters())

    def test_files_hold_the_updates_alone(self, backbone: Backbone, tmp_path: Path) -> None:
        method = built(backbone, **FORMS["rank, difference"])
        assert method.untrained
        assert isinstance(method.learned, SideUpdate)
        with torch.no_grad():
            for parameter in method.learned.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        method.save_weights(tmp_path / "w")
        assert (tmp_path / "w").stat().st_size < 4 * method.added_parameters + 10_000
        again = built(backbone, **FORMS["rank, difference"], weights=tmp_path / "w")
        tokens = text(90)
        assert torch.equal(read(method, tokens), read(again, tokens))
        assert not again.untrained
        assert torch.equal(again.start().pending_BC, method.start().pending_BC)

    def test_the_first_prediction_follows_the_updates(self, backbone: Backbone) -> None:
        method = built(backbone, N=32, K=8, rank=2, init="difference")
        start = method.start().pending_BC.clone()
        assert method.learned is not None
        with torch.no_grad():
            for parameter in method.learned.parameters():
                parameter.add_(0.1)
        assert not torch.equal(method.start().pending_BC, start)

    def test_an_update_is_a_change_of_the_weight(self) -> None:
        layer, update = torch.nn.Linear(5, 3), LowRankUpdate(5, 3, 2, torch.empty(0))
        x = torch.randn(2, 4, 5)
        assert torch.equal(update(layer, (x,), layer(x)), layer(x))
        with torch.no_grad():
            update.up_Or.normal_()
        changed = layer.weight + update.up_Or @ update.down_rI
        expected = torch.nn.functional.linear(x, changed, layer.bias)
        torch.testing.assert_close(update(layer, (x,), layer(x)), expected)

    def test_a_few_steps_learn(self, llama: Backbone) -> None:
        method, tokens, losses = built(llama, **FORMS["rank, difference"]), text(100), []
        assert method.learned is not None
        optimiser = torch.optim.Adam(method.learned.parameters(), lr=1e-2)
        for _ in range(8):
            loss = -method.learn(method.start(), tokens)[1].logprobs_BT.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0] - 0.1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"memory_layer": 1, "memory_layers": "1"}, "give one of the two"),
        ({"memory_layers": "2-9"}, "memory_layers=2-9 names no layers that side blocks copy: .* layers 0 to 3"),
        ({"memory_layers": "1", "init": "difference"}, "memory_layers=1 names no layers that side blocks copy"),
        ({"memory_layer": 3, "init": "memory"}, "No side block copies memory_layer=3: use memory_layer=2."),
        ({"init": "difference", "last_residual": "normed"}, "init=difference equals the backbone only with"),
        ({"local": "sliding", "bank_scope": "shared"}, "use local=cold"),
    ],
)
def test_settings_that_do_not_fit(llama: Backbone, settings: Settings, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        built(llama, **settings)


@pytest.mark.parametrize("settings", [{"softmax": "joint"}, {"local": "sliding"}])
def test_models_with_alibi_keep_the_papers_form(settings: Settings) -> None:
    backbone = Backbone(NewGPTForCausalLM(NewGPTConfig(50, 24, 4, 3, 32)), None, "tiny")
    built(backbone, N=16)
    with pytest.raises(UserError, match="use local=cold and softmax=gate"):
        built(backbone, N=16, **settings)
