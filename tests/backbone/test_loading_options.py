"""Options of transformers' loading: passed on, or refused with a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import contextlab
from contextlab import backbone as backbones
from contextlab.backbone import loading
from contextlab.cli.main import main
from contextlab.errors import UserError
from contextlab.testing import laws


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A small Llama whose layers are wide enough to be quantised."""
    small = backbones.load("tiny-llama", device="cpu")
    config = transformers.LlamaConfig(
        vocab_size=257,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=256,
        eos_token_id=256,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    small.tokenizer.save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")


def test_linear_layers_in_8_bits_keep_the_laws_and_have_a_name_and_digest_of_their_own(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes")
    plain = backbones.load(folder, device="cpu")
    backbone = backbones.load(folder, device="cpu", quantise="8bit")
    assert backbone.name == f"{folder} (8bit)"
    assert backbone.digest != plain.digest
    assert backbone.family is None
    with pytest.raises(UserError, match="quantised"):
        backbone.check_differentiable()
    digest = backbone.digest
    monkeypatch.setattr(laws.backbones, "load", lambda *_, **__: backbone)
    for law in ("causality", "rows", "score is pure", "forks"):
        assert laws.Case(law, folder, "float32").broken(lambda b: contextlab.load("sliding", b)) is None
    assert backbone.digest == digest


@pytest.mark.parametrize(
    ("name", "quantise", "message"),
    [
        ("{folder}", "3bit", "did you mean '8bit'|did you mean '4bit'"),
        ("{folder}", "4bit", "use --quantise 8bit, or a GPU"),
        ("tiny-llama", "8bit", "has no checkpoint to quantise"),
    ],
)
def test_what_cannot_be_quantised_is_one_sentence(
    folder: str, name: str, quantise: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda _: object())
    with pytest.raises(UserError, match=message):
        backbones.load(name.format(folder=folder), device="cpu", quantise=quantise)


def test_a_missing_package_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'contextlab\[quantise\]'"):
        backbones.load(folder, device="cpu", quantise="8bit")


def test_a_model_in_memory_is_not_quantised() -> None:
    model = backbones.load("tiny-llama", device="cpu").model
    with pytest.raises(UserError, match="leave quantise= out"):
        backbones.resolve(model, quantise="8bit")


def test_a_model_on_several_devices_is_refused() -> None:
    model = backbones.load("tiny-llama", device="cpu").model
    model.lm_head.to("meta")
    with pytest.raises(UserError, match="divided over several devices"):
        backbones.wrap(model)


@pytest.mark.parametrize(("option", "message"), [("--device-map", "with --device"), ("--attn", "CONTEXTLAB_KERNELS")])
def test_options_that_mean_nothing_here_say_what_to_do(
    option: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--method", "full", "--task", "needle", option, "auto"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_weights_go_from_their_file_to_the_device(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = list[Any]()

    def load(*_args: Any, device_map: Any = None, **_options: Any) -> Any:
        wanted.append(device_map)
        raise OSError("not on this machine")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", load)
    for device in ("cpu", "cuda:1"):
        with pytest.raises(UserError, match="not on this machine"):
            loading._pretrained(folder, torch.float32, torch.device(device))
    assert wanted == [None, {"": torch.device("cuda:1")}]
