from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from contextlab.attention import CacheReader, Layout
from contextlab.backbone import Backbone
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.longmem.newgpt import NewGPTConfig, NewGPTForCausalLM, alibi_slopes
from contextlab.methods.longmem.released import side_weights


def released_model(hyper: Any, arrays: Any) -> Any:
    config = NewGPTConfig(
        vocab_size=hyper["vocab"],
        hidden_size=hyper["heads"] * hyper["head_dim"],
        num_hidden_layers=hyper["backbone_layers"],
        num_attention_heads=hyper["heads"],
        max_position_embeddings=64,
    )
    model = NewGPTForCausalLM(config)
    model.load_state_dict(part(arrays, "backbone."))
    return Backbone(model, None, "released")


def part(arrays: Any, prefix: Any) -> Any:
    return {name.removeprefix(prefix): tensor for name, tensor in arrays.items() if name.startswith(prefix)}


@pytest.mark.parametrize("name", ["f1_fresh_init", "f2_perturbed"])
def test_whole_model_equals_the_released_one_over_segments(fixture: Any, name: str) -> None:
    description, arrays = fixture(f"longmem_e2e/{name}")
    hyper = description["hyper"]
    backbone = released_model(hyper, arrays)
    settings = LongMemConfig(
        N=hyper["segments"][0][1],
        M=hyper["memory_size"],
        K=hyper["k"],
        csz=hyper["chunk_size"],
        reduction=hyper["reduction"],
        memory_layer=hyper["retrieval_layer_index_0based"],
        init="paper",
        last_residual="normed",
        side_arithmetic="released",
        bank_scope="shared",
        eviction="official_two_step",
        short_bank="zero_slot",
    )
    method = LongMem(backbone, settings)
    assert method.memory_block == hyper["memory_side_layer_0based"]
    weights = side_weights(part(arrays, "side."))
    if hyper["fresh_init"]:
        own = method.side.state_dict()
        for key, tensor in weights.items():
            torch.testing.assert_close(own[key], tensor, msg=f"initialisation of {key}")
    method.side.load_state_dict({"gate_H": torch.zeros(hyper["heads"]), **weights})
    close = {"atol": 1e-4, "rtol": 0}
    state = method.start(hyper["segments"][0][0])
    for step in range(len(hyper["segments"])):
        seen = part(arrays, f"s{step}.")
        layout = Layout(torch.arange(seen["tokens"].shape[1]).expand_as(seen["tokens"]))
        reader, side_reader = CacheReader(backbone, state.kv, layout), method.side_reader(state, layout)
        states, final = method.run_backbone(seen["tokens"], layout.position_BT, reader)
        with torch.no_grad():
            side = method.side(states, final, side_reader)
            side_logits = backbone.logits(method.side.norm(side[-1]))
        torch.testing.assert_close(
            torch.stack(states[:-1]), seen["backbone_hidden"][: -1 : hyper["reduction"]], **close
        )
        torch.testing.assert_close(final, seen["backbone_hidden"][-1], **close)
        torch.testing.assert_close(backbone.logits(final), seen["backbone_logits"], **close)
        torch.testing.assert_close(torch.stack(side), seen["side_hidden"], **close)
        torch.testing.assert_close(side_logits, seen["side_logits"], **close)
        rows, heads = seen["tokens"].shape[0], hyper["heads"]
        for cached, name_ in ((reader.k, "cached_k"), (reader.v, "cached_v")):
            flat = cached[method.memory_layer].transpose(1, 2).flatten(2)
            torch.testing.assert_close(flat, seen[name_], atol=1e-5, rtol=0)
        if "chunk_ids" in seen:
            assert side_reader.ids_BHtm is not None
            expected = seen["chunk_ids"].view(heads, -1, rows, seen["chunk_ids"].shape[-1]).permute(2, 0, 1, 3)
            assert torch.equal(side_reader.ids_BHtm, expected)
        before = state
        state, logprobs = method.read(state, seen["tokens"])
        after_first = side_logits.log_softmax(-1)[:, :-1].gather(-1, seen["tokens"][:, 1:, None])[..., 0]
        torch.testing.assert_close(logprobs[:, 1:], after_first, **close)
        assert state.bank.count_B[0] > before.bank.count_B[0]


def test_slopes_of_powers_of_two_and_of_other_head_counts() -> None:
    torch.testing.assert_close(alibi_slopes(8), torch.tensor([2.0 ** -(i + 1) for i in range(8)]))
    slopes = alibi_slopes(6)
    assert slopes[:4].tolist() == [2.0 ** (-2 * (i + 1)) for i in range(4)]
    assert slopes[4:].tolist() == pytest.approx([2 ** (-8 / 8), 2 ** (-24 / 8)])


def test_the_papers_sizes() -> None:
    with torch.device("meta"):
        model = NewGPTForCausalLM(NewGPTConfig())
    blocks = sum(p.numel() for p in model.transformer.h.parameters())
    total = sum(p.numel() for p in model.parameters())
    assert math.isclose(total, 407e6, rel_tol=5e-3)
    assert math.isclose(blocks / 2, 151e6, rel_tol=5e-3)


def test_the_model_alone_and_through_the_seam_agree() -> None:
    model = NewGPTForCausalLM(NewGPTConfig(50, 24, 3, 3, 32)).eval()
    backbone = Backbone(model, None, "tiny")
    position_BT = torch.arange(32)[None]
    tokens_BT = position_BT * 7 % 50
    reader = backbone.reader(1, Layout(position_BT))
    logits = backbone.logits(backbone.forward(tokens_BT, position_BT, reader))
    torch.testing.assert_close(logits, model(tokens_BT).logits, atol=1e-5, rtol=1e-4)
