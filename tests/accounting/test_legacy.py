from __future__ import annotations

import json
from pathlib import Path

import pytest

from contextlab.accounting import legacy
from contextlab.accounting.flops import llama_block_flops

MI = 2**20


def test_the_numbers_of_table_1() -> None:
    assert legacy.MISTRAL_7B.macs_per_token == 7_110_397_952
    assert round(legacy.printed_macs(71, 0) / 1e12, 3) == 0.505
    assert round(legacy.printed_macs(69, 2513) / 1e12, 3) == 2.059
    assert legacy.pair_floats() == 32 * MI
    assert legacy.kv_floats(2048) == 128 * MI == legacy.released_floats()
    assert legacy.kv_floats(2500) > 128 * MI


def test_what_is_computed_instead() -> None:
    question, context = 69, 2500
    assert 0.53e12 < legacy.cached_macs(question, context) < 0.55e12
    assert legacy.uncached_macs(question, context) / legacy.printed_macs(71, 0) == pytest.approx(38, rel=0.01)
    excess = legacy.printed_macs(question, context) - question * legacy.MISTRAL_7B.macs_per_token
    pairs = question * context
    assert excess == question * pairs * legacy.MISTRAL_7B.macs_per_pair // 2


def test_reference_cases(shared: Path) -> None:
    index = json.loads((shared / "fixtures/hso_ga/index.json").read_text())["cost_mistral7b"]
    for case in index["cases"]:
        question, context = case["n_in"], case["n_ctx"]
        assert question * legacy.MISTRAL_7B.macs_per_token == case["linear_macs"]
        assert legacy.printed_macs(question, context) == case["reported_ops"]
        assert legacy.attention_macs(question, context) == case["attn_macs_cached"]
        assert legacy.kv_floats(context) == case["kv_floats"]
        assert legacy.pair_floats() == case["lora_floats"]
        assert legacy.factor_floats() == case["factor_floats"]
        assert legacy.sum_floats() == case["state_floats"]
        assert legacy.generator_parameters() == case["generator_params"]


@pytest.mark.parametrize(("question", "context"), [(1, 0), (7, 0), (7, 100)])
def test_correct_counts_agree_with_the_ledgers_formula(question: int, context: int) -> None:
    from transformers import LlamaConfig

    sizes = legacy.ModelSizes(64, 3, 4, 2, 16, 96, 50)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96
    )
    pairs = question * (question + 1) // 2 + question * context
    flops = 3 * llama_block_flops(question, pairs, config) + 2 * question * 64 * 50
    assert 2 * (legacy.cached_macs(question, context, sizes) - question * 64) == flops


def test_without_a_context_only_the_questions_own_attention_is_missing() -> None:
    for question in (1, 30, 500):
        missing = legacy.cached_macs(question, 0) - legacy.printed_macs(question, 0)
        assert missing == legacy.attention_macs(question, 0)
    assert legacy.uncached_macs(30, 470) == legacy.cached_macs(500, 0)


def test_storage_grows_with_the_right_sizes() -> None:
    assert legacy.kv_floats(10) == 10 * legacy.kv_floats(1)
    assert legacy.pair_floats(rank=256) == 2 * legacy.pair_floats()
    assert legacy.factor_floats() < legacy.pair_floats() == legacy.sum_floats()
    assert legacy.sum_floats(d_r=512) * 4 == legacy.sum_floats()
