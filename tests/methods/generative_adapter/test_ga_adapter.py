from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contextlab import backbone as backbones
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.generative_adapter import Adapter, GenerativeAdapter, GenerativeAdapterConfig

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


def make(backbone: Backbone, seed: int = 0) -> Any:
    method = GenerativeAdapter(backbone, GenerativeAdapterConfig(chunk=32, d_r=8, r=4, seed=seed))
    for i in range(len(method.generator.targets)):
        torch.nn.init.normal_(method.generator.layer(i).A1, std=0.5)
    return method


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def method(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(5)
    return make(backbones.load(request.param))


def tokens(rows: int, length: int, seed: int = 0) -> Any:
    return torch.randint(0, 257, (rows, length), generator=torch.Generator().manual_seed(seed))


def state_of(method: Any, length: int = 50, rows: int = 1, seed: int = 0) -> Any:
    text = tokens(rows, length, seed)
    return method.read(method.start(rows, ahead=Lengths(length)), text, logprobs=False)[0]


def changes(adapter: Any) -> Any:
    return torch.cat([(pair.up @ pair.down).flatten() for pair in adapter.pairs()])


def test_applied_it_answers_as_the_state_that_it_was_taken_from(method: Any) -> None:
    state = state_of(method, rows=2)
    applied = method.apply(method.adapter(state))
    assert applied.length_B.tolist() == [0, 0]
    question = [[4, 5, 6], [1]]
    torch.testing.assert_close(method.score(applied, question), method.score(state, question), **CLOSE)
    for seed in (3, 4):
        text = tokens(2, 70, seed)
        torch.testing.assert_close(method.read(applied, text)[1], method.read(state, text)[1], **CLOSE)


def test_documents_are_joined_and_taken_away(method: Any) -> None:
    a, b, c = (method.adapter(state_of(method, seed=seed)) for seed in (0, 1, 2))
    torch.testing.assert_close(changes(a + b), changes(b + a), **CLOSE)
    torch.testing.assert_close(changes(a + b - b), changes(a), atol=2e-3, rtol=1e-2)
    torch.testing.assert_close((a + b + c).S_BLRR, (a + (b + c)).S_BLRR, **CLOSE)
    assert float((changes(a + b) - changes(a)).abs().max()) > 1e-2


def test_an_empty_adapter_is_neutral_and_a_document_twice_is_once(method: Any) -> None:
    a, nothing = method.adapter(state_of(method)), method.adapter(method.start())
    assert not bool(changes(nothing).any())
    assert torch.equal((a + nothing).S_BLRR, a.S_BLRR)
    torch.testing.assert_close(changes(a + a), changes(a), **CLOSE)


def test_a_sum_equals_reading_documents_that_do_not_see_each_other(method: Any) -> None:
    a, b = (method.adapter(state_of(method, length=32, seed=seed)) for seed in (0, 1))
    rows = method.adapter(method.read(method.start(2), torch.cat((tokens(1, 32), tokens(1, 32, 1))))[0])
    torch.testing.assert_close(rows.S_BLRR.sum(0, keepdim=True), (a + b).S_BLRR, **CLOSE)


def test_saved_and_loaded_it_is_the_same(method: Any, tmp_path: Path) -> None:
    adapter = method.adapter(state_of(method))
    adapter.save(tmp_path / "a.safetensors")
    loaded = Adapter.load(tmp_path / "a.safetensors", method.generator)
    assert torch.equal(loaded.S_BLRR, adapter.S_BLRR)
    question = [[4, 5, 6]]
    assert torch.equal(*(method.score(method.apply(x), question) for x in (adapter, loaded)))


def test_what_belongs_to_others_is_refused(method: Any, tmp_path: Path) -> None:
    adapter = method.adapter(state_of(method))
    adapter.save(tmp_path / "a.safetensors")
    elsewhere, other = make(backbones.load("tiny-qwen2")), make(method.backbone, seed=1)
    for stranger, part in ((elsewhere, "backbone"), (other, "generator")):
        for use in (
            lambda m=stranger: m.apply(adapter),
            lambda m=stranger: Adapter.load(tmp_path / "a.safetensors", m.generator),
            lambda m=stranger: m.adapter(m.start()) + adapter,
            lambda m=stranger: adapter - m.adapter(m.start()),
        ):
            with pytest.raises(UserError, match=f"belongs to another {part}"):
                use()


def test_what_is_no_adapter_is_refused(method: Any, tmp_path: Path) -> None:
    (tmp_path / "broken").write_text("nothing")
    state_of(method).save(tmp_path / "state")
    for name in ("missing", "broken", "state"):
        with pytest.raises(UserError, match=r"is not an adapter that was saved here|cannot be read"):
            Adapter.load(tmp_path / name, method.generator)
