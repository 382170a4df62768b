from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contextlab import attention
from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.evalm import eva_attention_of
from contextlab.methods.window import Window

TOKENS = torch.arange(24)[None] % 256
MASK = torch.tensor([[0] * 5 + [1] * 19])


@pytest.fixture(params=["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-mistral"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


class Paused:
    """An `attend` that waits in its first layer until it is told to go on."""

    def __init__(self, backbone: Backbone) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.reader = backbone.reader(1, attention.Layout(torch.arange(24)[None]))

    def __call__(self, layer: int, *args: Any) -> Tensor:
        if layer == 0:
            self.entered.set()
            assert self.go_on.wait(60)
        return self.reader(layer, *args)


@contextmanager
def passing(backbone: Backbone) -> Iterator[None]:
    """While another thread is within a pass through the seam."""
    paused = Paused(backbone)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(backbone.forward, TOKENS, torch.arange(24)[None], paused)
        assert paused.entered.wait(60)
        try:
            yield
        finally:
            paused.go_on.set()
            future.result()


@pytest.mark.parametrize("own", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", [None, MASK])
@torch.no_grad()
def test_the_model_computes_its_own_attention_beside_a_pass(backbone: Backbone, own: str, mask: Tensor | None) -> None:
    backbone.model.set_attn_implementation(own)

    def logits() -> Tensor:
        out: Tensor = backbone.model(input_ids=TOKENS, attention_mask=mask, use_cache=False).logits
        return out

    alone = logits()
    with passing(backbone):
        assert backbone.config._attn_implementation != own
        assert torch.equal(logits(), alone)
    assert backbone.config._attn_implementation == own
    assert torch.equal(logits(), alone)


@torch.no_grad()
def test_the_model_writes_beside_a_pass_and_afterwards(backbone: Backbone) -> None:
    def write() -> list[int]:
        written: list[int] = backbone.model.generate(TOKENS, max_new_tokens=4, do_sample=False, pad_token_id=0).tolist()
        return written

    alone = write()
    with passing(backbone):
        assert write() == alone
    assert write() == alone


@torch.no_grad()
def test_a_model_that_is_copied_within_a_pass_computes_too(backbone: Backbone) -> None:
    with passing(backbone):
        copied = copy.deepcopy(backbone.model)
    expected = backbone.model(input_ids=TOKENS, use_cache=False).logits
    torch.testing.assert_close(copied(input_ids=TOKENS, use_cache=False).logits, expected)


def test_an_error_within_a_pass_leaves_the_model_as_it_was(backbone: Backbone) -> None:
    own = backbone.config._attn_implementation

    def fails(*_: Any) -> Tensor:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            backbone.forward(TOKENS, torch.arange(24)[None], fails)
    assert backbone.config._attn_implementation == own
    backbone.check_seam()


def test_a_configuration_that_is_forgotten_is_not_kept() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    number, uses = id(backbone.config), vars(sys.modules["contextlab.attention.seam"])["_USES"]
    backbone.check_seam()
    assert number in uses
    del backbone
    gc.collect()
    assert number not in uses


def in_another_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


def test_a_model_that_attends_for_a_block_is_refused_to_other_threads() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    method, own = Window(backbone), backbone.config._attn_implementation
    expected = method.read(method.start(), TOKENS)[1]
    assert expected is not None
    with eva_attention_of(backbone.model) as eva:
        for call in (
            lambda: method.read(method.start(), TOKENS),
            lambda: backbone.check_seam(),
            lambda: in_block(eva.as_attention),
        ):
            with pytest.raises(UserError, match="Another thread has given this model"):
                in_another_thread(call)
        # The thread of the block may use the model, in blocks within it too.
        assert torch.equal(method.read(method.start(), TOKENS)[1], expected)
        in_block(eva.as_attention)
        with pytest.raises(UserError, match="Another thread"):
            in_another_thread(lambda: method.read(method.start(), TOKENS))
    assert backbone.config._attn_implementation == own
    assert torch.equal(in_another_thread(lambda: method.read(method.start(), TOKENS)[1]), expected)


def in_block(block: Any) -> None:
    with block():
        pass


def test_checkpointed_layers_attend_again_in_the_backward_pass() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    model = backbone.model
    gradients = []
    for checkpointed in (False, True):
        with eva_attention_of(model):
            model.train()
            if checkpointed:
                model.gradient_checkpointing_enable()
            model.zero_grad()
            model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
            gradients.append(model.get_input_embeddings().weight.grad.clone())
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(("name", "scaled"), [("tiny-llama", False), ("tiny-qwen3", False), ("tiny-llama-yarn", True)])
def test_a_pass_leaves_out_a_rotation_that_changes_nothing(
    name: str, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = backbones.load(name, device="cpu")
    file = sys.modules[type(backbone.model).__module__]
    half, turned = file.rotate_half, list[Tensor]()  # type: ignore[attr-defined]
    monkeypatch.setattr(file, "rotate_half", lambda x: turned.append(x) or half(x))
    position_BT = torch.arange(24)[None]
    hidden_BTC = backbone.forward(TOKENS, position_BT, backbone.reader(1, attention.Layout(position_BT)))
    assert bool(turned) == scaled
    turned.clear()
    own_BTC = backbone.model.base_model(input_ids=TOKENS, use_cache=False).last_hidden_state
    assert len(turned) == 2 * backbone.layers
    torch.testing.assert_close(hidden_BTC, own_BTC, atol=1e-5, rtol=1e-4)


def test_the_rotation_of_a_file_is_wrapped_once() -> None:
    model = backbones.load("tiny-llama", device="cpu").model
    file = sys.modules[type(model).__module__]
    once = file.apply_rotary_pos_emb  # type: ignore[attr-defined]
    attention.skip_rotation(model)
    assert file.apply_rotary_pos_emb is once  # type: ignore[attr-defined]


def test_attention_functions_stay_what_they_are_whatever_is_set_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by packages that wrap them all when they are imported; what is registered later is not hidden."""
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    with attention.attention_functions_kept():
        ALL_ATTENTION_FUNCTIONS.update(dict.fromkeys(before, print))
    assert dict(ALL_ATTENTION_FUNCTIONS.items()) == before
    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", print)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is print
