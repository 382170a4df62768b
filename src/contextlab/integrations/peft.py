"""Adapters as PEFT LoRA folders, for `PeftModel.from_pretrained` and other programs that load such folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from contextlab import files, tensors
from contextlab.errors import UserError
from contextlab.methods.generative_adapter.adapter import Adapter
from contextlab.methods.parts.targets import transposed

PREFIX = "base_model.model."


@torch.no_grad()
def export(adapter: Adapter, folder: Path | str) -> Path:
    """Write an adapter of one row as a LoRA of its backbone, completely or not at all.

    Args:
        adapter: from `GenerativeAdapter.adapter`.
        folder: new folder.

    Returns:
        The path of the folder.

    Raises:
        UserError: for an adapter of several rows, or when the folder exists or cannot be written.
    """
    rows, target = len(adapter.S_BLRR), Path(folder).expanduser()
    if rows != 1:
        raise UserError(f"This adapter has {rows} rows and a LoRA folder holds one: take it from state.index([row]).")
    if target.exists():
        raise UserError(f"{target} is there already: name a new folder.")
    weights = {}
    for layer, pair in zip(adapter.generator.targets, adapter.pairs(), strict=True):
        weights[f"{PREFIX}{layer.name}.lora_A.weight"] = pair.down[0].float().contiguous()
        weights[f"{PREFIX}{layer.name}.lora_B.weight"] = pair.up[0].float().contiguous()
    with files.writing(target, "name another folder"), files.new_folder(target) as fresh:
        tensors.store(fresh / "adapter_model.safetensors", weights, {"format": "pt"})
        files.write(fresh / "adapter_config.json", json.dumps(_lora_config(adapter), indent=2) + "\n")
    return target


def _lora_config(adapter: Adapter) -> dict[str, Any]:
    """PEFT's configuration. PEFT scales by lora_alpha / r, which is 1 here: our scale is part of the weights."""
    generator = adapter.generator
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": generator.backbone.name,
        "inference_mode": True,
        "r": generator.rank,
        "lora_alpha": generator.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": any(map(transposed, generator.targets)),
        "target_modules": [layer.name for layer in generator.targets],
    }
