"""Models of which only the shapes exist: on torch's meta device, where nothing is stored and nothing computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from contextlab import backbone as backbones
from contextlab import process
from contextlab.backbone import Backbone
from contextlab.backbone.embedded import EMBEDDED, GGUF_SHA256, embedded_folder
from contextlab.backbone.loading import MADE
from contextlab.backbone.toys import PAPER_SHAPES, paper_shape, tiny
from contextlab.errors import UserError, unknown
from contextlab.planning.models import MODELS

META = torch.device("meta")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def backbone_of(name: str, dtype: str) -> Backbone:
    """A backbone without weights.

    Args:
        name: of `MODELS`, of `contextlab ls backbones`, a folder or file with a configuration, or a hub id.
        dtype: of its weights; one of `DTYPES`.

    Raises:
        UserError: for an unknown name or type, or a model without formulas.
    """
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    with process.ALONE:
        model = _model(name).to(DTYPES[dtype])
    backbone = Backbone(model, None, name, digest=GGUF_SHA256 if name == EMBEDDED else "shapes alone")
    if backbone.family is None:
        raise UserError(
            f"{name} cannot be planned: its blocks have no formula; choose a Llama-, GPT-2-, GPT-NeoX- or OPT-style "
            "model, not quantised, that does not see a narrow window in some layers only."
        )
    return backbone


def _model(name: str) -> Any:
    with META:
        if name in MADE:
            return paper_shape(name) if name in PAPER_SHAPES else tiny(name)
        build: Any = transformers.AutoModelForCausalLM.from_config
        return build(_config(name), trust_remote_code=False)


def _config(name: str) -> Any:
    """The configuration of a model; no weights are loaded."""
    if name in MODELS:
        return MODELS[name]()
    path = embedded_folder() if name == EMBEDDED else Path(name).expanduser()
    if not path.exists() and ("/" not in name or path.suffix in (".json", ".gguf")):
        raise unknown("backbone", name, [*MODELS, *backbones.known()])
    try:
        return transformers.AutoConfig.from_pretrained(path if path.exists() else name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        message = str(error).strip().partition("\n")[0]
        raise UserError(
            f"Backbone '{name}' has no configuration that can be read ({message}): give a folder with a config.json, "
            "or check the name."
        ) from error
