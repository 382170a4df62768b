"""The identity of a run (everything that could change its result) and its provenance (machine, versions, time)."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from contextlab import files, registry
from contextlab.accounting import COUNTING
from contextlab.backbone import Backbone
from contextlab.backbone.updates import SIGN
from contextlab.benchmarks.task import Dataset, Options, Protocol, Task
from contextlab.harness import code
from contextlab.harness.store import digest
from contextlab.harness.stored import SCHEMA, Provenance, minor
from contextlab.kernels import dispatch
from contextlab.method import AnyMethod
from contextlab.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]


def identity(
    method: tuple[str, AnyMethod],
    task: tuple[str, Task],
    split: str,
    options: Options,
    dataset: Dataset,
    protocol: Protocol,
    seed: int,
) -> dict[str, Any]:
    """Everything that the result of an example depends on, with the names of method and task in the command.

    The number of examples is not part of it: a higher limit continues the same run. Neither are versions of the package
    and its commit: `code` changes with what is computed.
    """
    backbone = method[1].backbone
    return {
        "schema": SCHEMA,
        "counting": COUNTING,
        "code": digest(code_of(method[1], task[1], protocol)),
        "method": registry.without_folder(method[0]),
        "method_config": _settings(method[1]),
        "method_files": files.digests_of(_settings(method[1])),
        "method_weights": method[1].weights_digest,
        "backbone": without_folders(backbone.name),
        "backbone_config": digest(_architecture(backbone)),
        "weights_sha256": backbone.digest,
        "tokenizer_sha256": backbone.tokenizer_digest,
        "task": registry.without_folder(task[0]),
        "split": task[1].identified(split),
        "context": options.context,
        "history": options.history,
        "tokens": options.tokens,
        "data_sha256": dataset.sha256,
        "prompt_sha256": prompt_digest(protocol.prompt_on(backbone)),
        "seed": seed,
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "device": backbone.device.type,
        "kernels": dispatch.forced_form(),
        # Patches mend builds; new kernels of torch and new models of transformers come with minor versions.
        "torch": minor(torch.__version__),
        "transformers": minor(transformers.__version__),
    }


def without_folders(backbone: str) -> str:
    """The name of a backbone without the folders that its parts are in, which depend on the working directory."""
    parts = ((part, Path(part).expanduser()) for part in backbone.split(SIGN))
    return SIGN.join(path.absolute().name if path.exists() else part for part, path in parts)


def _settings(method: AnyMethod) -> dict[str, Any]:
    """The settings that count: how learned weights were named does not, because their digest stands beside them."""
    settings = method.config.as_dict()
    return {name: value for name, value in settings.items() if name != "weights" or method.learned is None}


def code_of(method: AnyMethod, task: Task, protocol: Protocol) -> dict[str, str]:
    """Digests of the code that computes a run, by module."""
    return code.modules([type(method), type(task), type(protocol), type(method.backbone), *protocol.functions])


def provenance(method: AnyMethod, task: Task, protocol: Protocol, seed: int) -> Provenance:
    """Versions, machine and time, as stored with a result."""
    backbone = method.backbone
    return Provenance(
        contextlab=__version__,
        commit=commit(),
        code=code_of(method, task, protocol),
        counting=COUNTING,
        torch=str(torch.__version__),
        transformers=transformers.__version__,
        device=hardware(backbone.device),
        threads=torch.get_num_threads(),
        instructions=torch.backends.cpu.get_cpu_capability(),
        dtype=str(backbone.dtype).removeprefix("torch."),
        seed=seed,
        prompt_sha256=prompt_digest(protocol.prompt_on(backbone)),
        weights_sha256=backbone.digest,
        started=datetime.now(UTC).isoformat(timespec="milliseconds"),
        command=command(),
    )


def prompt_digest(prompt: str) -> str:
    """sha256 of the prompt of a protocol, which may be empty."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def command() -> str:
    """The command line of this process."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


@cache
def commit() -> str | None:
    """The commit of the checkout that the package runs from; None for an installed package."""
    git = ["git", "-C", str(PACKAGE), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        answer = subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        return None
    # An installed package may be inside the checkout of another project.
    return answer[1] if Path(answer[0]) / "src" / "contextlab" == PACKAGE else None


@cache
def hardware(device: torch.device) -> str:
    """The description of a device."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({_processor()}, {os.cpu_count()} cores)"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _architecture(backbone: Backbone) -> dict[str, Any]:
    """The model's configuration without the fields that only name its source or the library that wrote it.

    A tokenizer may have another BOS token than the configuration, and then it is the tokenizer's that is read.
    """
    config: dict[str, Any] = backbone.model.config.to_dict() | {"bos_token_id": backbone.bos}
    return {key: value for key, value in config.items() if key not in ("_name_or_path", "transformers_version")}
