from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.errors import UserError
from contextlab.integrations.peft import export
from contextlab.method import Lengths
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.parts.targets import adapted

peft = pytest.importorskip("peft")


def adapter_of(name: str, **settings: Any) -> Any:
    method = GenerativeAdapter(backbones.load(name), GenerativeAdapterConfig(chunk=32, d_r=8, r=4, **settings))
    for i in range(len(method.generator.targets)):
        torch.nn.init.normal_(method.generator.layer(i).A1, std=2.0)
    text = torch.randint(0, 257, (1, 64))
    return method.adapter(method.read(method.start(ahead=Lengths(64)), text, logprobs=False)[0])


@torch.no_grad()
def logits(model: Any, tokens: Tensor) -> Any:
    return model(tokens).logits


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tiny-llama", {}),
        ("tiny-gpt2", {}),
        ("tiny-llama", {"modules": "*.down_proj|*.q_proj", "alpha": 3.0}),
        ("tiny-gpt2", {"modules": "*.c_fc", "normalisation": "frobenius"}),
    ],
)
def test_peft_loads_and_merges_what_the_adapter_does(
    name: str, settings: dict[str, float | str], tmp_path: Path
) -> None:
    adapter, tokens = adapter_of(name, **settings), torch.randint(0, 257, (2, 20))
    generator = adapter.generator
    plain = logits(generator.backbone.model, tokens)
    pairs = [type(p)(p.up.expand(2, -1, -1), p.down.expand(2, -1, -1)) for p in adapter.pairs()]
    with adapted(generator.targets, pairs.__getitem__):
        expected = logits(generator.backbone.model, tokens)
    folder = export(adapter, tmp_path / "new" / "lora")
    loaded = peft.PeftModel.from_pretrained(backbones.load(name).model, folder)
    scale = float(expected.abs().max())
    assert float((expected - plain).abs().max()) > 1e-3 * scale
    torch.testing.assert_close(logits(loaded, tokens) / scale, expected / scale, atol=1e-5, rtol=0)
    merged = logits(loaded.merge_and_unload(), tokens)
    torch.testing.assert_close(merged / scale, expected / scale, atol=1e-5, rtol=0)


def test_the_folder_says_that_nothing_is_left_to_scale(tmp_path: Path) -> None:
    config = json.loads((export(adapter_of("tiny-llama"), tmp_path / "lora") / "adapter_config.json").read_text())
    assert config["lora_alpha"] == config["r"] == 4
    assert not config["fan_in_fan_out"]
    assert config["target_modules"] == [f"model.layers.{i}.self_attn.o_proj" for i in range(4)]
    assert peft.LoraConfig.from_pretrained(tmp_path / "lora").r == 4


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = adapter_of("tiny-llama")
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match="is there already"):
        export(adapter, tmp_path / "taken")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(adapter, tmp_path / "file" / "lora")

    def full_disk(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(UserError, match=r"lora cannot be written \(no space left on device\): make room there or name"):
        export(adapter, tmp_path / "lora")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


def test_only_one_row_fits_into_a_folder(tmp_path: Path) -> None:
    adapter = adapter_of("tiny-llama")
    two = type(adapter)(adapter.S_BLRR.repeat(2, 1, 1, 1), adapter.generator)
    with pytest.raises(UserError, match="has 2 rows"):
        export(two, tmp_path / "lora")
