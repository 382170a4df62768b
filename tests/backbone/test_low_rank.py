from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from contextlab import attention
from contextlab import backbone as backbones
from contextlab.backbone import Backbone, UpdatedBackbone, linear_layers
from contextlab.errors import UserError

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-qwen2", "tiny-phi3", "tiny-gpt-neox"]
PER_LAYER = {
    **dict.fromkeys(("tiny-llama", "tiny-qwen2"), (4, 7)),
    **dict.fromkeys(("tiny-gpt2", "tiny-phi3", "tiny-gpt-neox"), (2, 4)),
    "tiny-opt": (4, 6),
}


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return backbones.load(request.param, device="cpu")


def updated(backbone: Backbone, rank: int = 3) -> UpdatedBackbone:
    return UpdatedBackbone(backbone, linear_layers(backbone), rank)


def moved(network: UpdatedBackbone) -> UpdatedBackbone:
    with torch.no_grad():
        for parameter in network.updates.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return network


def hidden(backbone: Backbone) -> torch.Tensor:
    tokens_BT = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(1))
    position_BT = torch.arange(40).expand(2, -1)
    with torch.no_grad():
        return backbone.forward(tokens_BT, position_BT, backbone.reader(2, attention.Layout(position_BT)))


def test_all_linear_layers_of_the_blocks_are_there_and_no_others(backbone: Backbone) -> None:
    layers = linear_layers(backbone)
    of_attention, all_of_them = PER_LAYER[backbone.name]
    assert len(layers) == all_of_them * backbone.layers
    assert sum(layer.of_attention for layer in layers) == of_attention * backbone.layers
    assert [layer.block for layer in layers] == sorted(layer.block for layer in layers)
    for layer in layers:
        assert isinstance(backbone.model.get_submodule(layer.path), nn.Linear | Conv1D)
        assert layer.path.endswith(f".{layer.block}.{layer.name}")


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("tiny-llama", {"k_proj", "v_proj"}),
        ("tiny-gpt2", {"c_attn"}),
        ("tiny-opt", {"k_proj", "v_proj"}),
        ("tiny-phi3", {"qkv_proj"}),
        ("tiny-gpt-neox", {"query_key_value"}),
    ],
)
def test_layers_that_keys_and_values_come_from(family: str, names: set[str]) -> None:
    layers = linear_layers(backbones.load(family, device="cpu"))
    assert {layer.name.rpartition(".")[2] for layer in layers if layer.of_keys_and_values} == names


def test_an_update_starts_as_nothing_bitwise(backbone: Backbone) -> None:
    assert torch.equal(hidden(updated(backbone)), hidden(backbone))


def test_an_update_is_added_to_the_weight(backbone: Backbone) -> None:
    network = moved(updated(backbone))
    merged = copy.deepcopy(backbone.model)
    for layer in linear_layers(backbone):
        pair: Any = network.updates.get_submodule(layer.path)
        change = pair.lora_B.weight @ pair.lora_A.weight
        target: Any = merged.get_submodule(layer.path)
        target.weight.data += change.T if isinstance(target, Conv1D) else change
    expected = hidden(Backbone(merged, backbone.tokenizer, "merged"))
    torch.testing.assert_close(hidden(network), expected.detach(), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(expected, hidden(backbone), atol=1e-2)


def test_the_frozen_model_is_shared_and_stays_as_it_is(backbone: Backbone) -> None:
    model = backbone.model
    next(model.parameters()).requires_grad_(False)
    before = (
        backbones.weights_digest(model),
        [parameter.requires_grad for parameter in model.parameters()],
        [type(module) for module in model.modules()],
        hidden(backbone),
    )
    network = moved(updated(backbone))
    assert before[:3] == (
        backbones.weights_digest(model),
        [parameter.requires_grad for parameter in model.parameters()],
        [type(module) for module in model.modules()],
    )
    assert torch.equal(hidden(backbone), before[3])
    updates = {parameter.data_ptr() for parameter in network.updates.parameters()}
    held = {x.data_ptr() for x in (*network.model.parameters(), *network.model.buffers())} - updates
    assert held == {x.data_ptr() for x in (*model.parameters(), *model.buffers())}


def test_two_updates_of_one_model_do_not_meet(backbone: Backbone) -> None:
    first, second = updated(backbone), updated(backbone)
    moved(first)
    assert torch.equal(hidden(second), hidden(backbone))
    assert not torch.equal(hidden(first), hidden(backbone))


def test_only_the_updates_and_all_of_them_are_listed_by_path(backbone: Backbone) -> None:
    network = updated(backbone, rank=3)
    names = {name for layer in linear_layers(backbone) for name in (f"{layer.path}.lora_A", f"{layer.path}.lora_B")}
    weights = network.updates.state_dict()
    assert set(weights) == {f"{name}.weight" for name in names}
    assert all(3 in tensor.shape for tensor in weights.values())
    assert all(parameter.requires_grad for parameter in network.updates.parameters())


def test_it_starts_alike_every_time_and_leaves_random_numbers_alone(backbone: Backbone) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = updated(backbone).updates.state_dict()
    assert torch.equal(torch.rand(3), expected)
    second = updated(backbone).updates.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(bool(tensor.any()) == name.endswith("lora_A.weight") for name, tensor in first.items())


@pytest.mark.parametrize(("dtype", "wide"), [("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_updates_have_the_weights_type_or_float32(dtype: str, wide: str) -> None:
    backbone = backbones.load("tiny-llama", device="cpu", dtype=dtype)
    network = updated(backbone)
    assert {parameter.dtype for parameter in network.updates.parameters()} == {getattr(torch, wide)}
    assert torch.equal(hidden(network), hidden(backbone))
    assert hidden(moved(network)).dtype == backbone.dtype


def test_the_state_in_front_of_a_text_follows_the_updates(backbone: Backbone) -> None:
    network = updated(backbone)
    assert torch.equal(network.bos_hidden_C, backbone.bos_hidden_C)
    moved(network)
    assert not torch.equal(network.bos_hidden_C, backbone.bos_hidden_C)
    assert not network.bos_hidden_C.requires_grad
    assert network.after_bos().requires_grad


def test_gradients_reach_every_update_and_none_of_the_frozen_weights() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    network = moved(updated(backbone))
    with backbone.frozen():
        network.after_bos().sum().backward()
    tokens_BT = torch.arange(9)[None]
    with backbone.frozen():
        network.forward(tokens_BT, tokens_BT, network.reader(1, attention.Layout(tokens_BT))).sum().backward()
    assert all(parameter.grad is not None for parameter in network.updates.parameters())
    assert all(parameter.grad is None for parameter in backbone.model.parameters())


def test_what_cannot_be_updated_is_one_sentence() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    with pytest.raises(UserError, match="give at most 32"):
        updated(backbone, rank=33)
    with pytest.raises(UserError, match="has no linear layers in its blocks"):
        UpdatedBackbone(backbone, [], 2)
    with torch.inference_mode():
        made_for_inference = backbones.load("tiny-llama", device="cpu")
    with pytest.raises(UserError, match="has no gradients"):
        updated(made_for_inference)
