"""`contextlab ls`."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextlab import harmless
from contextlab.cli import say
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.task import Task


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    tasks = "tasks"
    backbones = "backbones"
    results = "results"


def ls(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    folder: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path("runs"),
    verbose: Annotated[bool, typer.Option("--verbose", help="Show needs, settings, prompts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """List what there is, where it comes from and what it needs."""
    lines: dict[Kind, Callable[[], Iterator[dict[str, Any]]]] = {
        Kind.methods: lambda: _methods(verbose),
        Kind.tasks: lambda: _tasks(verbose),
        Kind.backbones: _backbones,
        Kind.results: lambda: _results(folder),
    }
    for line in lines[kind]():
        prompts = {} if as_json else line.pop("prompts", {})
        say(json.dumps(line) if as_json else harmless.line("  ".join(_words(line))))
        for splits, prompt in prompts.items():
            say(f"\n    {splits}:\n{textwrap.indent(prompt, ' ' * 8)}\n")


def _words(line: dict[str, Any]) -> Iterator[str]:
    name, about, *more = line.items()
    yield f"{name[1]:<14}"
    yield str(about[1])
    for key, value in more:
        if value:
            yield f"[{key}: {', '.join(value) if isinstance(value, list) else value}]"


def _methods(verbose: bool) -> Iterator[dict[str, Any]]:
    """Names and first lines come from the sources; needs and settings take importing all of them, and torch."""
    from contextlab import registry, static

    sources = registry.sources(registry.METHODS)
    for name, package in registry.methods().items():
        line = {"name": name, "about": static.first_line(sources.get(name, "")), "from": package}
        try:
            yield {**line, **(_details(name) if verbose else {})}
        except UserError as error:
            yield {**line, "about": str(error)}


def _details(name: str) -> dict[str, Any]:
    from contextlab import backbone, registry

    kind = registry.method_class(name)
    with registry.foreign(f"The method '{name}' cannot say what it needs", "try it with `contextlab check`"):
        method = kind(backbone.load("tiny-llama", device="cpu"))
        return {
            "about": _first_line(kind),
            "needs": [word for word, needed in _needs(method) if needed],
            "settings": [f"{f.name}={getattr(kind.Config(), f.name)}" for f in dataclasses.fields(kind.Config)],
        }


def _needs(method: Any) -> list[tuple[str, bool]]:
    return [
        ("training", method.learned is not None),
        ("gradients while reading", method.capabilities.needs_gradients),
    ]


def _tasks(verbose: bool) -> Iterator[dict[str, Any]]:
    from contextlab import registry

    for name, package in registry.tasks().items():
        try:
            task = registry.task(name)
            with registry.foreign(f"The task '{name}' cannot tell its prompts", "mend it"):
                prompts = {"prompts": _prompts(task)} if verbose else {}
        except UserError as error:
            yield {"name": name, "about": str(error), "from": package}
            continue
        yield {
            "name": name,
            "about": _first_line(type(task)),
            "from": package,
            "splits": list(task.splits),
            "default": task.default_split,
            **prompts,
        }


def _prompts(task: Task) -> dict[str, str]:
    """Every prompt of a task once, by the splits that it belongs to."""
    from contextlab.benchmarks.task import Options

    found: dict[str, list[str]] = {}
    for split in getattr(task, "prompt_splits", task.splits):
        prompt = str(getattr(task.protocol(split, Options()), "prompt", ""))
        found.setdefault(prompt, []).append(split)
    return {", ".join(splits): prompt for prompt, splits in found.items() if prompt}


def _backbones() -> Iterator[dict[str, Any]]:
    from contextlab import backbone

    for name, about in backbone.known().items():
        yield {"name": name, "about": about}
    yield {"name": "(others)", "about": "any causal language model of transformers, by hub id, folder or GGUF file"}


def _results(folder: Path) -> Iterator[dict[str, Any]]:
    from contextlab.reports.tables import load_results

    for result in load_results(folder):
        name, metric = next(iter(result["metrics"].items()))
        yield {
            "name": result["run_id"],
            "about": f"{name} {metric['value']:.3f}, n = {metric['n']}, context {result['context']}",
            "from": result["data"]["note"],
            "backbone": result["backbone"],
        }


def _first_line(kind: type) -> str:
    return str(kind.__doc__ or "").strip().partition("\n")[0]
