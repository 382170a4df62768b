"""Updates added into the weights of a backbone: PEFT adapters, and the updates that methods of this package learned.

The sum is an ordinary model, so that every method, kernel and formula of costs treats it as one. `NAME+UPDATE` names
it, and the digests of both parts make its digest: sums differ in their last bits between processors.

Legend: I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

import copy
import hashlib
import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from contextlab import cards, files, tensors, trained
from contextlab.errors import UserError, short, unknown

SIGN = "+"
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def parts(name: str, is_backbone: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The name of a backbone, and those of the updates after it; a path may hold the sign too.

    Args:
        name: as the user wrote it.
        is_backbone: whether a text alone names a backbone.
    """
    pieces = name.split(SIGN)
    ends = [end for end in range(len(pieces), 0, -1) if is_backbone(SIGN.join(pieces[:end]))]
    end = ends[0] if ends else 1
    return SIGN.join(pieces[:end]), list(_joined(pieces[end:]))


def _joined(pieces: Sequence[str]) -> list[str]:
    """The names of updates among pieces of a text between signs: the longest that are there."""
    names, begin = list[str](), 0
    while begin < len(pieces):
        ends = range(len(pieces), begin + 1, -1)
        end = next((end for end in ends if Path(SIGN.join(pieces[begin:end])).exists()), begin + 1)
        names.append(SIGN.join(pieces[begin:end]))
        begin = end
    return names


def holds_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT."""
    return (folder / PEFT_CONFIG).is_file()


def add(model: Any, update: str, backbone_digest: str) -> tuple[Any, str]:
    """A model with an update added into its weights, in place, and the digest of both.

    Args:
        model: of transformers, which nobody else uses.
        update: folder of a PEFT adapter or of trained weights, or the name of listed weights.
        backbone_digest: of the model so far.

    Raises:
        UserError: when there is no such update, or no name, it does not fit the model, or the model is quantised.
    """
    if not update:
        raise UserError(f"The name of the backbone has no update after {SIGN}: name one, or leave {SIGN} out.")
    if getattr(model, "hf_quantizer", None) is not None:
        raise UserError(f"{update} cannot be added to quantised weights: load the backbone in float32 or bfloat16.")
    weights = trained.find(update)
    if weights is not None:
        _add_learned(model, weights, backbone_digest)
        own = weights.digest
    elif holds_adapter(Path(update).expanduser()):
        folder = Path(update).expanduser()
        model = _with_peft(model, folder)
        own = "".join(files.sha256(folder / name) for name in (PEFT_CONFIG, PEFT_WEIGHTS))
    elif Path(update).expanduser().is_dir():
        raise UserError(f"{update} holds neither {PEFT_CONFIG} nor trained weights: give the folder of an update.")
    else:
        raise unknown("update", update, trained.names())
    _check_finite(model, update)
    tensors.align(model)
    return model, hashlib.sha256(f"{backbone_digest}{SIGN}{own}".encode()).hexdigest()


@torch.no_grad()
def _add_learned(model: Any, weights: trained.Trained, backbone_digest: str) -> None:
    """Add what a method learned, where that is an update of the backbone and nothing else."""
    if weights.card.backbone.digest != backbone_digest:
        raise UserError(
            f"{weights.name} was trained beside {weights.card.backbone.name}: write {weights.card.backbone.name}{SIGN}"
            f"{weights.name}, or train an update on this backbone."
        )
    cards.beside(weights.file)
    stored, _ = tensors.read(weights.file)
    if stored.keys() == model.state_dict().keys():
        misfit = tensors.load_into(model, stored)
    else:
        misfit = _add_low_rank(model, stored)
    if misfit:
        raise UserError(f"{weights.name} is no update of this backbone's weights ({misfit}): use it as --method.")


def _add_low_rank(model: nn.Module, stored: Mapping[str, Tensor]) -> str | None:
    """Add low-rank updates, all or none; None when it was done, else what does not fit."""
    changed: list[tuple[Tensor, Tensor]] = []
    layers = dict(model.named_modules())
    paths = {name.removesuffix(DOWN).removesuffix(UP) for name in stored}
    for path in sorted(paths):
        layer, down_rI, up_Or = layers.get(path), stored.get(path + DOWN), stored.get(path + UP)
        if down_rI is None or up_Or is None or not isinstance(layer, nn.Linear | Conv1D):
            return f"it holds {short(path)}"
        weight: Tensor = layer.weight
        change = up_Or.to(weight.device, torch.float32) @ down_rI.to(weight.device, torch.float32)
        change = change.T if isinstance(layer, Conv1D) else change
        if change.shape != weight.shape:
            return f"{path} has another shape"
        changed.append((weight, change))
    for weight, change in changed:
        weight.copy_(weight.to(torch.promote_types(weight.dtype, torch.float32)) + change)
    return None


def _with_peft(model: Any, folder: Path) -> Any:
    """A model with a PEFT adapter merged, in place.

    Raises:
        UserError: when the folder holds no adapter that can be merged, or one that does not fit.
    """
    # Heavy, and needed only for such folders.
    import peft

    if not (folder / PEFT_WEIGHTS).is_file():
        raise UserError(f"{folder} holds {PEFT_CONFIG} and no {PEFT_WEIGHTS}: save the adapter with safetensors.")
    stored = _stored(folder / PEFT_WEIGHTS)
    try:
        # It warns of what is missing or has another shape, which is refused below.
        with warnings.catch_warnings(action="ignore"):
            adapted = peft.PeftModel.from_pretrained(model, str(folder), ignore_mismatched_sizes=True)
            # By the name PEFT would look up on the network whether tokens were added to the vocabulary.
            adapted.active_peft_config.base_model_name_or_path = None
            own = peft.get_peft_model_state_dict(adapted)
        # Embeddings that were stored with an adapter are in the model under their own names.
        whole = {name: weight for name, weight in adapted.state_dict().items() if name in stored}
        misfit = _misfit(stored, {**whole, **own})
    except Exception as error:  # of peft and transformers, for files of any content
        message = str(error).strip().partition("\n")[0]
        raise _unfit(folder, f"{type(error).__name__}: {short(message)}") from error
    if misfit:
        raise _unfit(folder, misfit)
    return merged(adapted, str(folder))


def note(update: str, names: Sequence[str]) -> str:
    """A sentence where a PEFT adapter says that it was trained on a model of another name; empty for all others.

    Args:
        update: as for `add`.
        names: those of the model that it is added to, the last of them with the updates before this one.

    Raises:
        UserError: when the settings of the adapter are damaged.
    """
    folder = Path(update).expanduser()
    if trained.find(update) is not None or not holds_adapter(folder):
        return ""
    base = _settings(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base or _last(base) in map(_last, names):
        return ""
    return f"{update} says that it was trained on {short(base)}; here it is added to {names[-1]}."


def _last(name: str) -> str:
    """The last component of a path or hub id, in small letters."""
    return Path(name).name.lower()


def _settings(folder: Path) -> dict[str, Any]:
    """The settings of a PEFT adapter."""
    file = folder / PEFT_CONFIG
    try:
        settings = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(file) from error
    if not isinstance(settings, dict):
        raise _damaged(file)
    return settings


def _stored(file: Path) -> dict[str, Tensor]:
    """The tensors of a PEFT adapter."""
    try:
        return tensors.read(file)[0]
    except UserError as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> UserError:
    return UserError(f"{file} is damaged: copy the adapter again.")


def _misfit(stored: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str | None:
    """The first tensor of a file that is not as in the model with the adapter; None where all are."""
    for name in sorted(stored.keys() ^ own.keys()):
        return f"{name} is missing or unknown"
    for name in sorted(stored):
        if stored[name].shape != own[name].shape:
            return f"{name} has the shape {tuple(stored[name].shape)} and not {tuple(own[name].shape)}"
    return None


def _unfit(folder: Path, reason: str) -> UserError:
    return UserError(
        f"The adapter in {folder} does not fit this backbone ({reason}): add it to the model that it was trained on."
    )


def merged(adapted: Any, name: str) -> Any:
    """The model inside of a PEFT model with its adapters merged into the weights, in place.

    Raises:
        UserError: when they cannot be merged, as those that add tokens to the input.
    """
    if not hasattr(adapted.base_model, "merge_and_unload"):
        kind = getattr(adapted.active_peft_config.peft_type, "value", adapted.active_peft_config.peft_type)
        raise UserError(f"{name} is an adapter of kind {kind}, which is no update of weights: give a LoRA or the like.")
    return adapted.eval().base_model.merge_and_unload().eval()


def without_adapters(model: Any) -> tuple[Any, str]:
    """A model whose PEFT adapters are merged, and its name; a model without adapters as it is.

    What is merged is a copy that shares all other weights: the model stays as it is.

    Raises:
        UserError: as `merged`, or for adapters inside of a model of transformers.
    """
    # A model can be of peft only where that is imported.
    peft = sys.modules.get("peft")
    adapted = peft is not None and isinstance(model, peft.PeftModel)
    inner = model.get_base_model() if adapted else model
    name = str(getattr(inner.config, "_name_or_path", "") or type(inner).__name__)
    if not adapted and getattr(model, "_hf_peft_config_loaded", False):
        raise UserError(f"{name} has adapters inside: load them with peft.PeftModel.from_pretrained, or merge them.")
    if not adapted:
        return model, name
    from peft.tuners.tuners_utils import BaseTunerLayer

    modules: list[nn.Module] = list(model.modules())
    changed = {id(own) for layer in modules if isinstance(layer, BaseTunerLayer) for own in nn.Module.parameters(layer)}
    shared = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in changed]
    name = SIGN.join((name, *model.active_adapters))
    return merged(copy.deepcopy(model, {id(tensor): tensor for tensor in shared}), name), name


def _check_finite(model: nn.Module, update: str) -> None:
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise UserError(f"With {update}, {name} has numbers that are not finite: give an intact update.")
