from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.backbone import weights_digest
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.methods.generative_adapter.config import OUTPUT_PROJECTIONS
from contextlab.methods.parts.targets import Pair, adapted, find, is_added, observed, transposed

FAMILIES = ["tiny-llama", "tiny-gpt2"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def opt() -> Any:
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "max_position_embeddings": 64}
    config = transformers.OPTConfig(vocab_size=257, num_hidden_layers=3, num_attention_heads=4, **sizes)
    return backbones.wrap(transformers.OPTForCausalLM(config))


def random_pairs(targets: Any, rows: int, rank: int = 3) -> Any:
    return [Pair(torch.randn(rows, p.outputs, rank), torch.randn(rows, rank, p.inputs)) for p in targets]


def logits(backbone: Backbone, tokens: Tensor) -> Any:
    with torch.no_grad():
        return backbone.model(tokens).logits


def hooks(backbone: Backbone) -> Any:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in backbone.model.modules())


def test_attention_outputs_are_the_default_on_three_families(backbone: Backbone) -> None:
    layer = {"tiny-llama": "model.layers.{}.self_attn.o_proj", "tiny-gpt2": "transformer.h.{}.attn.c_proj"}
    names = [target.name for target in find(backbone, OUTPUT_PROJECTIONS)]
    assert names == [layer[backbone.name].format(i) for i in range(4)]
    assert [p.name for p in find(opt(), OUTPUT_PROJECTIONS)] == [
        f"model.decoder.layers.{i}.self_attn.out_proj" for i in range(3)
    ]


def test_sizes_are_inputs_and_outputs_whichever_way_the_weight_lies() -> None:
    target = find(backbones.load("tiny-gpt2"), "*.1.mlp.c_fc")[0]
    assert (target.inputs, target.outputs) == (32, 128) == tuple(target.layer.weight.shape)
    target = find(backbones.load("tiny-llama"), "*.1.mlp.down_proj")[0]
    assert (target.outputs, target.inputs) == (32, 64) == tuple(target.layer.weight.shape)


def test_patterns_choose_layers_of_some_blocks_too(backbone: Backbone) -> None:
    assert len(find(backbone, "*")) == sum(len(find(backbone, f"*.{i}.*")) for i in range(4))
    assert {p.name.split(".")[2] for p in find(backbone, "*.1.* | *.3.*")} == {"1", "3"}


def test_a_pattern_without_a_match_names_what_there_is(backbone: Backbone) -> None:
    with pytest.raises(UserError, match=r"matches no linear layer of tiny-\w+: choose of .*(o_proj|c_proj)"):
        find(backbone, "*down_project")


def test_a_model_without_blocks_is_refused(backbone: Backbone) -> None:
    backbone = copy.copy(backbone)
    backbone.model = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match="Linear has no list of blocks"):
        find(backbone, "*")


@pytest.mark.parametrize("pattern", [OUTPUT_PROJECTIONS, "*mlp*"])
def test_pairs_equal_weights_with_the_change_merged(backbone: Backbone, pattern: str) -> None:
    targets, tokens = find(backbone, pattern), torch.randint(0, 257, (2, 9))
    pairs = random_pairs(targets, rows=2)
    with adapted(targets, pairs.__getitem__):
        together = logits(backbone, tokens)
    for row in range(2):
        merged = backbones.load(backbone.name)
        for target, pair in zip(find(merged, pattern), pairs, strict=True):
            change = pair.up[row] @ pair.down[row]
            with torch.no_grad():
                target.layer.weight += change.mT if transposed(target) else change
        torch.testing.assert_close(together[row], logits(merged, tokens[row : row + 1])[0], atol=2e-4, rtol=1e-4)


def test_layers_that_flatten_their_rows_are_adapted_too() -> None:
    backbone = opt()
    targets, tokens = find(backbone, "*.fc1"), torch.randint(0, 257, (2, 9))
    pairs = random_pairs(targets, rows=2)
    with adapted(targets, pairs.__getitem__):
        together = logits(backbone, tokens)
    shorter = [Pair(p.up[1:], p.down[1:]) for p in pairs]
    with adapted(targets, shorter.__getitem__):
        torch.testing.assert_close(together[1:], logits(backbone, tokens[1:]), atol=1e-4, rtol=1e-4)


def test_a_change_of_nothing_is_bitwise_nothing(backbone: Backbone) -> None:
    targets, tokens = find(backbone, OUTPUT_PROJECTIONS), torch.randint(0, 257, (2, 9))
    nothing = [Pair(torch.zeros_like(p.up), p.down) for p in random_pairs(targets, rows=2)]
    plain = logits(backbone, tokens)
    with adapted(targets, nothing.__getitem__):
        assert torch.equal(logits(backbone, tokens), plain)


def test_states_are_those_that_enter_the_block(backbone: Backbone) -> None:
    targets, tokens = find(backbone, OUTPUT_PROJECTIONS), torch.randint(0, 257, (1, 9))
    seen = {}
    zeros = [Pair(torch.zeros(1, p.outputs, 1), torch.zeros(1, 1, p.inputs)) for p in targets]
    with adapted(targets, zeros.__getitem__, seen.__setitem__), torch.no_grad():
        states = backbone.model(tokens, output_hidden_states=True).hidden_states
    assert list(seen) == [0, 1, 2, 3]
    for i, hidden in seen.items():
        assert torch.equal(hidden, states[i])


def test_nothing_is_left_in_the_model_after_an_error(backbone: Backbone) -> None:
    targets, tokens = find(backbone, OUTPUT_PROJECTIONS), torch.randint(0, 257, (1, 9))
    digest, before = weights_digest(backbone.model), hooks(backbone)

    def broken(i: Any) -> None:
        assert hooks(backbone) == before + 2 * len(targets)
        raise RuntimeError("no pair")

    def run() -> None:
        with adapted(targets, broken, lambda i, hidden: None):
            logits(backbone, tokens)

    with pytest.raises(RuntimeError, match="no pair"):
        run()
    assert hooks(backbone) == before
    assert weights_digest(backbone.model) == digest


DOWN = "*mlp.down_proj|*mlp.c_proj|*fc2|*dense_4h_to_h"


def test_what_is_observed_is_added_to_the_states_that_leave_a_block(backbone: Backbone) -> None:
    targets, tokens = find(backbone, DOWN), torch.tensor([[5, 6, 7]])
    plain = backbone.model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    left, after = {}, {}

    def leave(i: Any, x: Any, hidden: Any) -> Any:
        left[i] = (x, hidden)
        return torch.ones_like(hidden) if i == 1 else None

    with observed(targets, leave), observed(targets, lambda i, _x, hidden: after.update({i: hidden})):
        backbone.model(tokens, use_cache=False)
    assert list(left) == list(range(backbone.layers))
    assert all(x.shape == (1, 3, target.inputs) for (x, _), target in zip(left.values(), targets, strict=True))
    torch.testing.assert_close(left[0][1], plain[1])
    assert torch.equal(after[0], left[0][1])
    assert torch.equal(after[1], left[1][1] + 1)
    # What the blocks above are given has changed too, and nothing is left of it.
    assert not torch.allclose(left[2][1], plain[3])
    again = backbone.model(tokens, use_cache=False, output_hidden_states=True).hidden_states
    assert torch.equal(again[3], plain[3])


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-gpt-neox", "tiny-phi3", "tiny-qwen3"])
def test_down_projections_are_added_to_the_residual_stream(family: str) -> None:
    backbone = backbones.load(family, device="cpu")
    assert is_added(backbone, find(backbone, DOWN))


@pytest.mark.parametrize(
    ("family", "pattern"), [("tiny-olmo2", DOWN), ("tiny-llama", "*q_proj"), ("tiny-gpt2", "*c_fc")]
)
def test_other_layers_are_not(family: str, pattern: str) -> None:
    backbone = backbones.load(family, device="cpu")
    assert not is_added(backbone, find(backbone, pattern))
