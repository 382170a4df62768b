"""Plans: numbers that are known, and laws between rows."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import pytest
import torch
from small_models import method, shapes

from contextlab.errors import UserError
from contextlab.method import Lengths
from contextlab.planning import shapes as models
from contextlab.planning.gpus import GPU, gpu
from contextlab.planning.models import MODELS
from contextlab.planning.plan import REMEDIES, Planner
from contextlab.planning.row import PlannedRow
from contextlab.planning.shaped import built_in, named_on
from contextlab.planning.table import HEAD, cells, markdown, title

K = 1024
SMALL = GPU("a small GPU", 10**9, 1e11, 1e12, 1e11)
HUGE = GPU("a huge GPU", 10**15, 1e20, 1e20, 1e20)


def rows(text: str, lengths: list[int], card: GPU = SMALL, side_by_side: int = 1) -> list[PlannedRow]:
    backbone = shapes()
    planner = Planner(backbone, card, side_by_side, lambda label: None)
    return [row for named in named_on(text, backbone) for row in planner.rows_of(named, lengths)]


@functools.cache
def row(text: str, length: int = 8 * K, card: GPU = SMALL, side_by_side: int = 1) -> PlannedRow:
    (entry,) = rows(text, [length], card, side_by_side)
    return entry


def with_memory(card: GPU, size: int) -> GPU:
    """A card of which so many bytes can be used."""
    card = dataclasses.replace(card, memory=int(size / 0.94) + 2)
    assert size <= card.usable <= size + 2
    return card


@pytest.fixture(scope="module")
def llama() -> PlannedRow:
    backbone = models.backbone_of("llama-3.1-8b", "bfloat16")
    planner = Planner(backbone, gpu("h200"), 1, lambda label: None)
    (planned,) = planner.rows_of(named_on("full", backbone)[0], [128 * K])
    return planned


def test_llamas_weights_and_full_cache_are_the_published_ones(llama: PlannedRow) -> None:
    """16.06 GB of weights, and 2 x 32 x 8 x 128 numbers of two bytes for each of 131,072 tokens: 16 GiB."""
    assert llama.weights_bytes == pytest.approx(16.06e9, rel=1e-3)
    assert llama.state_bytes == pytest.approx(16 * 2**30, rel=1e-4)
    assert cells(llama)[HEAD.index("state GiB")] == "16.00"
    assert llama.fits


def test_llamas_peak_is_more_than_its_parts_and_its_flops_those_of_its_parameters(llama: PlannedRow) -> None:
    assert llama.peak_bytes > llama.weights_bytes + llama.state_bytes
    # 2 FLOPs for each of 7.5 billion weights that every token meets: without embedding and head, which is left out.
    products = 2 * (llama.weights_bytes / 2 - 2 * 4096 * 128256) * 128 * K
    attention = 4 * 32 * 4096 * (128 * K) ** 2 / 2
    assert llama.read_flops == pytest.approx(products + attention, rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_has_the_parameters_of_its_name(name: str) -> None:
    backbone = models.backbone_of(name, "bfloat16")
    count = sum(x.numel() for x in backbone.model.parameters())
    assert 8.0e9 < count < 8.2e9
    assert backbone.device == torch.device("meta")


def test_qwen_has_its_size() -> None:
    backbone = models.backbone_of("qwen3-8b", "bfloat16")
    assert sum(x.numel() for x in backbone.model.parameters()) == 8_190_735_360
    assert (backbone.layers, backbone.max_positions, backbone.family) == (36, 40960, "llama")


def test_a_folder_a_file_and_a_made_model_are_backbones(tmp_path: Path) -> None:
    MODELS["qwen3-8b"]().save_pretrained(tmp_path)
    (tmp_path / "config.json").rename(tmp_path / "mine.json")
    settings = json.loads((tmp_path / "mine.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps({**settings, "num_hidden_layers": 2, "layer_types": None}))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text((tmp_path / "mine.json").read_text())
    for name in (str(folder), str(tmp_path / "mine.json")):
        assert models.backbone_of(name, "float32").layers == 2
    assert models.backbone_of("tiny-gpt2", "float32").family == "gpt2"
    assert models.backbone_of("evalm-350m", "float16").width == 1024


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("llama-3.1-8", "bfloat16", "did you mean 'llama-3.1-8b'"),
        ("tiny-lama", "bfloat16", "did you mean 'tiny-llama'"),
        ("missing/config.json", "bfloat16", "There is no backbone"),
        ("model.gguf", "bfloat16", "There is no backbone"),
        ("tiny-gemma2", "bfloat16", "cannot be planned"),
        ("tiny-llama", "float8", "There is no dtype"),
    ],
)
def test_a_wrong_backbone_is_one_sentence(name: str, dtype: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        models.backbone_of(name, dtype)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_configuration_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"give a folder with a config\.json"):
        models.backbone_of(str(tmp_path), "bfloat16")


def test_longer_texts_and_more_rows_need_no_less() -> None:
    short, long = rows("retrieval", [8 * K, 16 * K])
    many = row("retrieval", side_by_side=3)
    assert short.state_bytes < long.state_bytes
    assert short.peak_bytes < long.peak_bytes
    assert many.state_bytes == 3 * short.state_bytes
    assert many.read_flops == 3 * short.read_flops
    assert short.peak_bytes < many.peak_bytes


def test_a_length_does_not_change_the_row_of_another() -> None:
    assert rows("sliding", [8 * K, 32 * K])[1] == row("sliding", 32 * K)


def test_what_fits_exactly_fits_and_one_byte_less_does_not() -> None:
    peak = row("full").peak_bytes
    assert row("full", card=with_memory(SMALL, peak)).fits
    tight = row("full", card=with_memory(SMALL, peak - 3))
    assert (tight.fits, tight.advice) == (False, "7,168 tokens fit")


def test_the_longest_length_that_is_named_fits_and_the_next_does_not() -> None:
    card = with_memory(SMALL, row("full", 16 * K).peak_bytes)
    advice = row("full", 30 * K, card).advice
    longest = int(advice.split()[0].replace(",", ""))
    assert longest == 16 * K
    assert row("full", longest, card).fits
    assert not row("full", longest + K, card).fits


def test_settings_are_tried_in_their_order_and_the_first_that_fits_is_named() -> None:
    forms = ["", *(f"({key}={value})" for settings in REMEDIES for key, value in settings.items())]
    plain, int8, int4, host = (row(f"retrieval{form}", 24 * K, card=HUGE) for form in forms)
    assert plain.peak_bytes > int8.peak_bytes > int4.peak_bytes
    assert plain.peak_bytes > host.peak_bytes
    for settings, peak in (("storage_dtype=int8", int8.peak_bytes), ("storage_dtype=int4", int4.peak_bytes)):
        assert row("retrieval", 24 * K, with_memory(SMALL, peak)).advice == f"{settings} fits"
    assert host.peak_bytes < int4.peak_bytes
    assert row("retrieval", 24 * K, with_memory(SMALL, host.peak_bytes - 3)).advice.endswith("tokens fit")
    assert row("retrieval", 24 * K, with_memory(SMALL, host.peak_bytes)).advice == "stored_in=host fits"


def test_a_bank_on_the_host_is_in_the_state_and_not_in_the_peak() -> None:
    plain, host = row("retrieval", 24 * K), row("retrieval(stored_in=host)", 24 * K)
    assert host.state_bytes == plain.state_bytes
    assert plain.peak_bytes - host.peak_bytes > 0.4 * plain.state_bytes


def test_weights_that_do_not_fit_are_said_so() -> None:
    weights = row("full").weights_bytes
    assert row("full", card=with_memory(SMALL, weights - 3)).advice == "weights alone do not fit"
    assert row("full", card=with_memory(SMALL, weights)).advice == "not even 1,024 tokens fit"


def test_a_method_adds_its_weights() -> None:
    full, side = row("full"), row("longmem")
    assert full.added_bytes == 0
    assert side.weights_bytes == full.weights_bytes + side.added_bytes
    longmem = method("longmem", shapes())
    assert side.added_bytes >= longmem.added_parameters * 4


@pytest.mark.parametrize(("name", "reason"), [("hso", "needs gradients"), ("dynamic-eval", "needs gradients")])
def test_what_cannot_be_run_on_shapes_has_its_formulas(name: str, reason: str) -> None:
    entry = row(name)
    assert (entry.peak_bytes, entry.read_launches, entry.read_speed, entry.fits) == (None,) * 4
    assert entry.state_bytes > 0
    assert entry.read_flops > 0
    assert reason in entry.notes[0]
    assert row(name, card=with_memory(SMALL, entry.weights_bytes)).fits is False


def test_every_method_has_a_row_for_every_length_and_none_is_an_error() -> None:
    names = built_in()
    lengths = [8 * K, 9 * K]
    backbone = shapes(1)
    planner = Planner(backbone, SMALL, 1, lambda label: None)
    entry = [r for named in named_on(",".join(names), backbone) for r in planner.rows_of(named, lengths, refuse=False)]
    assert [r.length for r in entry] == lengths * len(names)
    assert {r.method.partition("(")[0] for r in entry} == set(names)
    assert all(r.peak_bytes is not None or r.notes for r in entry)


def test_a_method_that_does_not_fit_the_backbone_is_an_error_where_it_was_asked_for() -> None:
    backbone = models.backbone_of("tiny-llama", "float32")
    planner = Planner(backbone, SMALL, 1, lambda label: None)
    (named,) = named_on("window(N=4096)", backbone)
    with pytest.raises(UserError, match="is more than the 128 positions that a window has"):
        planner.rows_of(named, [8 * K])
    (entry,) = planner.rows_of(named, [8 * K], refuse=False)
    assert "128 positions that a window has" in entry.notes[0]


@pytest.mark.parametrize("name", ["sliding", "retrieval"])
def test_a_plan_without_gaps_has_no_notes(name: str) -> None:
    assert row(name).notes == ()


def test_full_says_where_it_starts_again() -> None:
    entry = row("full", 64 * K)
    assert "starts again after 32,768 tokens" in entry.notes[-1]
    assert entry.state_bytes == row("full", 32 * K).state_bytes


def test_speeds_are_those_of_the_bound() -> None:
    slow = dataclasses.replace(SMALL, half_flops=1e6, single_flops=1e6)
    entry = row("full", card=slow)
    assert (entry.read_limit, entry.decoded_limit) == ("compute", "compute")
    assert entry.read_speed == pytest.approx(8 * K / (entry.read_flops / 1e6))
    narrow = dataclasses.replace(SMALL, bandwidth=1e6)
    entry = row("full", card=narrow)
    assert entry.decoded_limit == "memory"
    # The weights and the state, once.
    assert entry.decoded_speed == pytest.approx(1e6 / (entry.weights_bytes + entry.state_bytes), rel=0.01)
    entry = row("full", card=HUGE)
    assert entry.decoded_speed == pytest.approx(1 / (5e-6 * entry.decoded_launches))


def test_unknown_numbers_are_empty_cells() -> None:
    assert cells(PlannedRow("mine", 8 * K)) == ("mine", *[""] * (len(HEAD) - 1))


def test_a_table_has_all_columns_and_says_what_speeds_are() -> None:
    text = markdown(title(8 * K, 2, "shapes", "float32", SMALL), rows("full,sliding", [8 * K]))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {len(HEAD) + 1}
    assert text.startswith("2 texts side by side of 8,192 tokens, shapes in float32")
    assert "94% of its memory" in text
    assert "no measurements" in text


def test_a_method_needs_a_formula_for_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert method("longmem(bank_scope=shared)", shapes()).formula(Lengths(8 * K)) is None
    entry = row("longmem(bank_scope=shared)")
    assert (entry.state_bytes, entry.fits) == (None, None)
    assert "no formula" in entry.notes[-1]
