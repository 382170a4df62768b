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
from contextlab.cli.options import From, OutOfReader, check_reads
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.task import Task
    from contextlab.config import Config

Listing = dict[str, Any]


class ListKind(StrEnum):
    """Kinds of things that can be listed."""

    methods = "methods"
    tasks = "tasks"
    backbones = "backbones"
    weights = "weights"
    results = "results"
    columns = "columns"


def ls(
    kind: Annotated[ListKind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(help="Show one method or task with its splits and settings.")] = None,
    folder: From = Path("runs"),
    verbose: Annotated[bool, typer.Option("--verbose", help="Show requirements, settings and prompts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    out: OutOfReader = None,
) -> None:
    """List methods, tasks, backbones, results, or the columns of `contextlab.results`, with what is known of them."""
    check_reads(out)
    if name is not None:
        _show(kind, name, verbose, as_json)
        return
    lines: dict[ListKind, Callable[[], Iterator[Listing]]] = {
        ListKind.methods: lambda: _methods(verbose),
        ListKind.tasks: lambda: _tasks(verbose),
        ListKind.backbones: _backbones,
        ListKind.weights: _weights,
        ListKind.results: lambda: _results(folder),
        ListKind.columns: _columns,
    }
    for line in lines[kind]():
        _say(line, as_json)


def _say(line: Listing, as_json: bool) -> None:
    prompts = {} if as_json else line.pop("prompts", {})
    say(json.dumps(line) if as_json else harmless.line("  ".join(_words(line))))
    for splits, prompt in prompts.items():
        say(f"\n    {splits}:\n{textwrap.indent(prompt, ' ' * 8)}\n")


def _words(line: Listing) -> Iterator[str]:
    name, about, *more = line.items()
    yield f"{name[1]:<14}"
    yield str(about[1])
    for key, value in more:
        if value:
            yield f"[{key}: {', '.join(value) if isinstance(value, list) else value}]"


def _show(kind: ListKind, name: str, verbose: bool, as_json: bool) -> None:
    """One method or task, its splits and its settings."""
    if kind not in (ListKind.methods, ListKind.tasks):
        raise UserError(f"`contextlab ls {kind}` shows all {kind}: leave {name} out.")
    line, splits, config = _method(name, verbose) if kind == ListKind.methods else _task(name, verbose)
    settings = _settings_of_method(name, config) if kind == ListKind.methods else _settings(name, config)
    if as_json:
        say(json.dumps({**line, **({"splits": splits} if splits else {}), "settings": settings}))
        return
    _say(line, as_json)
    for split, about in splits.items():
        say(harmless.line(f"  /{split:<13} {about}"))
    for setting in settings:
        say(harmless.line(f"  {setting['name']:<14} {setting['type']}, default {setting['default']}"))
        say(textwrap.indent(textwrap.fill(harmless.line(setting["about"]), 100), " " * 17))


def _settings(name: str, config: type[Config]) -> list[dict[str, str]]:
    from contextlab import registry
    from contextlab.config import described

    with registry.foreign(f"The settings of '{name}' cannot be read", "correct its Config"):
        return [dataclasses.asdict(setting) for setting in described(config)]


def _settings_of_method(name: str, config: type[Config]) -> list[dict[str, str]]:
    """The settings of a method for which the name of trained weights stands, after the word for its own form."""
    from contextlab import naming
    from contextlab.grammar import spelled_value

    weights = naming.meaning(name).weights
    named = {} if weights is None else weights.card.named
    forms = [
        {
            "name": "form",
            "type": "paper",
            "default": stands_for,
            "about": "the method's own defaults, as with any setting",
        }
        for stands_for in _stands_for(name)
    ]
    return forms + [
        {**setting, "default": spelled_value(named[setting["name"]])} if setting["name"] in named else setting
        for setting in _settings(name, config)
    ]


def _method(name: str, verbose: bool) -> tuple[Listing, dict[str, str], type[Config]]:
    from contextlab import cards, naming, registry

    meaning = naming.meaning(name)
    line = {"name": name, "about": _first_line(meaning.kind), "from": registry.methods().get(name, "")}
    if meaning.weights is not None:
        tokens = cards.short_count(meaning.weights.card.cost.tokens)
        line |= {
            "about": f"{meaning.weights.card.label} trained on {tokens} tokens",
            "from": str(meaning.weights.file.parent),
        }
    needs = {"needs": _details(meaning.name)["needs"]} if verbose else {}
    return {**line, **needs, "stands for": _stands_for(name)}, {}, meaning.kind.Config


def _stands_for(name: str) -> list[str]:
    """The weights that a method's name alone stands for, on some backbone."""
    from contextlab import trained

    return [
        f"{weights.name} beside {weights.card.backbone.name}"
        for (method, _), weights in trained.recommendations().items()
        if method == name
    ]


def _task(name: str, verbose: bool) -> tuple[Listing, dict[str, str], type[Config]]:
    from contextlab import registry

    task = registry.task(name)
    line = {"name": name, "about": _first_line(type(task)), "from": registry.tasks().get(name, "")}
    prompts = {"prompts": _prompts(task)} if verbose else {}
    return {**line, "default": task.default_split, **prompts}, task.splits, task.Config


def _methods(verbose: bool) -> Iterator[Listing]:
    """Names and first lines are read from the sources; requirements and settings need an import of torch."""
    from contextlab import registry, static

    sources = registry.sources(registry.METHODS)
    for name, package in registry.methods().items():
        line = {"name": name, "about": static.first_line(sources.get(name, "")), "from": package}
        try:
            yield {**line, **(_details(name) if verbose else {})}
        except UserError as error:
            yield {**line, "about": str(error)}


def _details(name: str) -> Listing:
    from contextlab import backbone, registry
    from contextlab.config import described

    kind = registry.method_class(name)
    with registry.foreign(f"The method '{name}' cannot say what it needs", "try it with `contextlab check`"):
        try:
            needs = _needs(kind(backbone.load("tiny-llama", device="cpu")))
        except UserError as error:  # as where a library is missing
            needs = [str(error)]
        return {
            "about": _first_line(kind),
            "needs": needs,
            "settings": [f"{setting.name}={setting.default}" for setting in described(kind.Config)],
        }


def _needs(method: Any) -> list[str]:
    needs = {
        "training": method.learned is not None,
        "gradients while reading": method.capabilities.needs_gradients,
    }
    return [word for word, needed in needs.items() if needed]


def _tasks(verbose: bool) -> Iterator[Listing]:
    from contextlab import registry

    for name, package in registry.tasks().items():
        try:
            task = registry.task(name)
            with registry.foreign(f"The task '{name}' cannot show its prompts", "correct it"):
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
    """Every prompt of a task, by the splits that use it."""
    splits: dict[str, list[str]] = {}
    for split, worded in task.worded():
        splits.setdefault(worded.protocol(split).prompt, []).append(worded.spelled(split))
    return {", ".join(of_one): prompt for prompt, of_one in splits.items() if prompt}


def _backbones() -> Iterator[Listing]:
    from contextlab import backbone

    for name, about in backbone.known().items():
        yield {"name": name, "about": about}
    yield {"name": "(others)", "about": "any causal language model of transformers, by hub id, folder or GGUF file"}
    yield {"name": "NAME+UPDATE", "about": "one of these with trained weights or a PEFT adapter added to its weights"}


def _weights() -> Iterator[Listing]:
    """Trained weights by the names that `--method` takes; a broken card takes no other from the list."""
    from contextlab import cards, trained

    for path, name in zip(trained.listed(), trained.names(), strict=True):
        try:
            card = cards.read(path.parent / cards.CARD)
        except UserError as error:
            yield {"name": name, "about": str(error)}
            continue
        yield {
            "name": name,
            "about": f"{card.label} trained on {cards.short_count(card.cost.tokens)} tokens",
            "backbone": card.backbone.name,
            "size": f"{path.stat().st_size / 2**20:.1f} MiB",
            "free": list(card.free or ()),
            "stands for": card.method if card.recommended else "",
            "from": str(path.parent),
        }


def _results(folder: Path) -> Iterator[Listing]:
    from contextlab.reports.stored import summaries

    for result in summaries(folder):
        name, metric = next(iter(result.metrics.items()))
        yield {
            "name": result.run_id,
            "about": f"{name} {metric.value:.3f}, n = {metric.n}, context {result.context}",
            "from": result.data.note,
            "backbone": result.backbone,
        }


def _columns() -> Iterator[Listing]:
    from contextlab.reports.frame import COLUMNS

    for name, (kind, about) in COLUMNS.items():
        yield {"name": name, "about": about, "type": kind}


def _first_line(kind: type) -> str:
    return str(kind.__doc__ or "").strip().partition("\n")[0]
