from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.memory import PeakMemory
from contextlab.attention import KV, Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.memtrm.method import MemTRMState, TokenReader
from contextlab.methods.sliding import Sliding
from contextlab.methods.window import Window, WindowConfig
from contextlab.testing.parts import read

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def built(backbone: Backbone, **settings: Any) -> MemTRM:
    return MemTRM(backbone, MemTRMConfig.parse({"N": 16, "K": 5, "rank": 0, **settings}))


class NoPositions:
    """A model that encodes no positions."""

    slopes_H = None

    def rotary(self, positions: Tensor) -> None:
        return None


def test_one_layer_computes_what_the_public_fixture_says(fixture: Callable[[str], Any]) -> None:
    _, x = fixture("hso_ga/memtrm")
    local = [x[name][None] for name in ("q", "local_k", "local_v")]
    heads, length, width = x["q"].shape
    slots = x["mem_k"].shape[1]
    used_B = torch.tensor([slots])
    empty = (x["q"].new_zeros(1, heads, 0, width),)
    state = MemTRMState(
        used_B,
        torch.zeros(1, 1),
        KV(empty, empty, torch.tensor([0]), frozenset({0})),
        used_B,
        KV((x["mem_k"][None],), (x["mem_v"][None],), used_B),
    )
    positions: Any = NoPositions()
    layout = Layout(torch.arange(length)[None])
    reader = TokenReader(positions, state, layout, 0, x["topk_idx"].shape[2], x["gate_bias"])
    out = reader(0, *local, width**-0.5)
    assert reader.ids_BHtk is not None
    assert torch.equal(reader.ids_BHtk[0].sort(-1).values, x["topk_idx"].sort(-1).values)
    torch.testing.assert_close(out[0], x["out"], rtol=1e-9, atol=1e-12)
    closed = TokenReader(positions, state, layout, 0, 3, torch.full_like(x["gate_bias"], -60.0))
    torch.testing.assert_close(closed(0, *local, width**-0.5)[0], x["local_out"], rtol=1e-9, atol=1e-12)
    opened = TokenReader(positions, state, layout, 0, 3, torch.full_like(x["gate_bias"], 60.0))
    torch.testing.assert_close(opened(0, *local, width**-0.5)[0], x["mem_out"], rtol=1e-9, atol=1e-12)


def test_the_first_segment_is_the_window_bitwise_whatever_the_gate(backbone: Backbone) -> None:
    text = tokens(2, 16)
    window = Window(backbone, WindowConfig(N=16))
    assert torch.equal(read(built(backbone, gate=3), text)[1], read(window, text)[1])


@pytest.mark.parametrize(("local", "kind"), [("cold", Window), ("sliding", Sliding)])
def test_with_closed_gates_it_is_its_local_attention(backbone: Backbone, local: str, kind: type) -> None:
    method, text = built(backbone, gate=-20, local=local, rank=2), tokens(2, 70)
    baseline = method.baseline()
    assert isinstance(baseline, kind)
    torch.testing.assert_close(read(method, text)[1], read(baseline, text)[1], atol=1e-5, rtol=1e-5)
    assert built(backbone, local=local).baseline() is None
    assert method.learned is not None
    with torch.no_grad():
        next(method.learned.parameters()).add_(1)
    assert method.baseline() is None


def test_memory_reaches_over_all_segments_as_far_as_M(backbone: Backbone) -> None:
    text, other = tokens(1, 96), tokens(1, 96)
    other[:, :16] = tokens(1, 16, seed=1)
    for most in (65536, 80, 64):
        method = built(backbone, M=most, gate=2)
        far, changed = (read(method, x)[1][:, 81:] for x in (text, other))
        # The bank's layer lies below all that memory changes, so that nothing carries on what has left it.
        assert torch.equal(far, changed) == (most == 64)
        assert read(method, text)[0].bank.used_B.tolist() == [min(96, most)]


def test_the_bank_holds_what_the_frozen_layer_computes(backbone: Backbone) -> None:
    """Keys before rotation and values, in the order of reading, whatever is learned and retrieved above."""
    method = built(backbone, rank=3, targets="all", storage_dtype="float32", gate=1)
    text = tokens(1, 40)
    before = read(method, text)[0].bank
    assert method.learned is not None
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.add_(torch.randn(parameter.shape))
    after = read(method, text)[0].bank
    assert torch.equal(before.k[0], after.k[0])
    assert torch.equal(before.v[0], after.v[0])
    assert before.used_B.tolist() == [32]
    kv = Window(backbone, WindowConfig(N=16)).start().kv
    first = method.read(method.start(), text[:, :15])[0].kv
    assert kv.slots == 0
    torch.testing.assert_close(before.k[0][:, :, :15], first.k[method.memory_layer], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(before.v[0][:, :, :15], first.v[method.memory_layer], atol=1e-5, rtol=1e-5)


def test_in_sliding_form_every_token_enters_the_bank_once(backbone: Backbone) -> None:
    text = tokens(2, 50)
    cold, sliding = (
        read(built(backbone, local=local, gate=-20, storage_dtype="float32", memory_layer=0), text)[0].bank
        for local in ("cold", "sliding")
    )
    assert sliding.used_B.tolist() == cold.used_B.tolist() == [48, 48]
    # The lowest layer's keys know no context, but for what models that learn positions add to the input.
    if not backbone.learned_positions:
        torch.testing.assert_close(sliding.k[0], cold.k[0], atol=1e-5, rtol=1e-5)


def test_rows_have_banks_of_their_own(backbone: Backbone) -> None:
    method, text = built(backbone, M=24), tokens(3, 70)
    state, _ = method.read(method.start(3), text, torch.tensor([70, 15, 33]))
    assert state.bank.used_B.tolist() == [24, 0, 24]
    alone, _ = method.read(method.start(), text[2:, :33])
    torch.testing.assert_close(state.bank.k[0][2, :, :24], alone.bank.k[0][0], atol=1e-2, rtol=1e-2)


def test_what_is_ahead_moves_the_boundaries(backbone: Backbone) -> None:
    method = built(backbone)
    state, _ = method.read(method.start(ahead=Lengths(20)), tokens(1, 36))
    assert state.bank.used_B.tolist() == [36]
    assert state.kv.used_B.tolist() == [0]


def test_contextualising_without_scores_leaves_the_same_state(backbone: Backbone) -> None:
    method, text = built(backbone, gate=1, rank=2), tokens(2, 60)
    scored, _ = method.read(method.start(2), text)
    silent, nothing = method.read(method.start(2), text, logprobs=False)
    assert nothing is None
    for name, tensor in scored.tensors().items():
        torch.testing.assert_close(silent.tensors()[name], tensor, atol=2e-3, rtol=2e-3)


def test_state_size_is_bank_plus_segment() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    state, _ = read(built(backbone), tokens(1, 40))
    per_token = 2 * backbone.kv_heads * backbone.head_width
    caches = 32 * per_token * 2 + 8 * per_token * 4 * backbone.layers
    assert state.nbytes == caches + 4 * 8 + backbone.width * 4


@pytest.mark.parametrize(
    ("family", "targets", "below", "above"),
    [("tiny-llama", "attention", 2, 4), ("tiny-llama", "all", 5, 7), ("tiny-gpt2", "attention", 1, 2)],
)
def test_updates_are_those_of_the_memory_layer_and_above(family: str, targets: str, below: int, above: int) -> None:
    """But for the memory layer's keys and values, and the projection of all three of GPT-2."""
    method = built(backbones.load(family, device="cpu"), rank=2, targets=targets)
    assert method.learned is not None
    names = [name for name, _ in method.learned.named_parameters() if name.endswith("lora_A.weight")]
    assert method.memory_layer == 2
    assert len([name for name in names if ".2." in name]) == below
    assert len([name for name in names if ".3." in name]) == above
    assert len(names) == below + above
    assert not any("k_proj" in name or "v_proj" in name or "c_attn" in name for name in names if ".2." in name)


def test_many_continuations_do_not_copy_the_bank() -> None:
    method = built(backbones.load("tiny-llama", device="cpu"), K=16, N=32)
    state, _ = method.read(method.start(), tokens(1, 6000), logprobs=False)
    bank_bytes = sum(tensor.nbytes for name, tensor in state.tensors().items() if name.startswith("bank."))
    prompts = [[token] for token in range(12)]
    with PeakMemory() as memory:
        method.score(state, prompts)
        method.generate(state, prompts, max_new_tokens=1)
    assert memory.peak_bytes < len(prompts) * bank_bytes / 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"memory_layer": 4}, "layers 0 to 3"), ({"N": 500}, "use N=128"), ({"local": "sliding", "N": 100}, "use N=62")],
)
def test_settings_that_do_not_fit_the_backbone(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        built(backbones.load("tiny-llama", device="cpu"), **settings)
