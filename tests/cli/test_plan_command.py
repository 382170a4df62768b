"""`contextlab plan`: what it prints, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import transformers

from contextlab.cli.main import main
from contextlab.planning.row import PlannedRow

COMMAND = ["plan", "--gpu", "h100", "--length", "8k,16k", "--backbone"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a configuration of two layers."""
    folder = tmp_path_factory.mktemp("model")
    llama = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
    )
    llama.save_pretrained(folder)
    return str(folder / "config.json")


def test_a_row_of_json_has_every_field(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, config, "--method", "full,sliding", "--rows", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = [json.loads(line) for line in out.splitlines()]
    assert err == ""
    assert [(row["method"], row["length"]) for row in rows] == [
        (name, length) for name in ("full", "sliding") for length in (8192, 16384)
    ]
    fields = {field.name for field in dataclasses.fields(PlannedRow)}
    assert all(row.keys() == {"backbone", "gpu", "rows", "dtype"} | fields for row in rows)
    assert {(row["backbone"], row["gpu"], row["rows"], row["dtype"]) for row in rows} == {
        (config, "h100", 2, "bfloat16")
    }
    assert all(row["fits"] for row in rows)


def test_a_table_for_every_length(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, config, "--method", "window"]) == 0
    out = capsys.readouterr().out
    assert out.index("A text of 8,192 tokens") < out.index("A text of 16,384 tokens")
    assert out.count("| window |") == 2
    assert "NVIDIA H100 SXM, 80 GB" in out


def test_no_weights_are_loaded(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_args: object, **_options: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", loaded)
    assert main([*COMMAND, config, "--method", "full", "--json"]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gpu", "h1000"], "did you mean 'h100'"),
        (["--backbone", "lama-3.1-8b"], "did you mean 'llama-3.1-8b'"),
        (["--method", "slidng"], "did you mean 'sliding'"),
        (["--method", "sliding(N=100000)"], "positions"),
        (["--method", "retrieval(stored_in=disk)"], "stored_in=disk is for models on a CPU"),
        (["--dtype", "int8"], "There is no dtype 'int8'"),
        (["--length", "8q"], "give 1k to 16M tokens"),
        (["--length", "3"], "give 1k to 16M tokens"),
        (["--length", "999M"], "give 1k to 16M tokens"),
        (["--length", ","], "give 1k to 16M tokens"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_a_mistake_is_one_line(
    options: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options_by_name = {"--gpu": "h100", "--backbone": config, "--method": "full", "--length": "8k"}
    options_by_name |= dict([options])
    assert main(["plan", *(word for pair in options_by_name.items() for word in pair)]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


def test_help_says_that_speeds_are_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.process_time()
    assert main(["plan", "--help"]) == 0
    assert time.process_time() - started < 0.3
    assert "bounds, not measurements" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_the_embedded_model_needs_its_configuration_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "smollm2-135m", "--method", "full", "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert row["weights_bytes"] == pytest.approx(2 * 134.5e6, rel=0.01)
