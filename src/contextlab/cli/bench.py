"""`contextlab bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contextlab import grammar
from contextlab.cli import announce, console, warn
from contextlab.cli.complete import method_names, task_names
from contextlab.cli.options import (
    Attention,
    BackboneName,
    DataFolder,
    Device,
    DeviceMap,
    check_transformers_options,
)
from contextlab.errors import UserError, short

if TYPE_CHECKING:
    from contextlab.harness.comparison import Results


def bench(
    method: Annotated[
        str,
        typer.Option(
            help="Such as 'longmem,window,evalm-c4,longmem(K=32),path.py:Class'.", autocompletion=method_names
        ),
    ],
    task: Annotated[
        str,
        typer.Option(
            help="Such as 'pg22/S1(tokens=8192),needle'; see `contextlab ls tasks NAME`.", autocompletion=task_names
        ),
    ],
    split: Annotated[str | None, typer.Option(help="Split of all tasks that are named without one.")] = None,
    backbone: BackboneName = "smollm2-135m",
    context: Annotated[str, typer.Option(help="Controls: own, none, wrong; several separated by commas.")] = "own",
    history: Annotated[
        int | None, typer.Option(min=1, help="Tokens read before the scored ones, for all tasks with this setting.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most examples, the first ones.")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens read of a text, for all tasks with this setting.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of a method's random numbers.")] = 0,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting for all methods and tasks that have it."),
    ] = None,
    data: DataFolder = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    device: Device = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    quantise: Annotated[
        str | None, typer.Option(help="8bit or 4bit: linear layers of the backbone, by bitsandbytes.")
    ] = None,
    device_map: DeviceMap = None,
    attn: Attention = None,
    no_count: Annotated[bool, typer.Option("--no-count", help="Do not count FLOPs and peak memory.")] = False,
    batch: Annotated[
        str, typer.Option(metavar="N|auto", help="Most examples that are computed side by side, as rows of one state.")
    ] = "1",
    as_json: Annotated[bool, typer.Option("--json", help="Print only one JSON object per run.")] = False,
) -> None:
    """Run methods on tasks, store the results, and print a table; the same command again resumes."""
    check_transformers_options(device_map, attn)
    settings = settings_of(setting or [])
    if not as_json:
        announce()

    from contextlab.harness import runner

    results = runner.bench(
        method,
        task,
        split=split,
        backbone=backbone,
        context=context,
        history=history,
        limit=limit,
        tokens=tokens,
        seed=seed,
        settings=settings,
        data=data,
        out=out,
        device=device,
        dtype=dtype,
        quantise=quantise,
        counting=not no_count,
        batch=batch,
        progress=False if as_json else None,
        on_result=(lambda result: print(json.dumps(result.as_json()), flush=True)) if as_json else None,
        on_note=warn,
    )
    if as_json:
        for note in results.notes:
            warn(note)
    else:
        _print(results, out)


def settings_of(pairs: list[str]) -> dict[str, Any]:
    """Settings by key, with values in the same form as after a method's name."""
    settings = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UserError(f"--set {short(pair)} names no value: write --set key=value.")
        if key in settings:
            raise UserError(f"--set names {short(key)} twice: name every setting once.")
        settings[key] = grammar.value(value, f"--set {short(key)}")
    return settings


def _print(results: Results, out: Path) -> None:
    """One table for every task, with paired differences to the first method, and those between contexts below it."""
    from contextlab.cli.table import show
    from contextlab.harness import labels
    from contextlab.reports.dimensions import dimensions
    from contextlab.reports.layout import TableLayout
    from contextlab.reports.tables import comparison

    screen = console()
    for note in results.notes:
        screen.print(f"\n{note}")
    tasks = labels.apart([(labels.of_result(run), run.data.sha256) for run in results.runs])
    for task in dict.fromkeys(tasks):
        screen.print(f"\n{task}\n")
        of_task = [run for run, other in zip(results.runs, tasks, strict=True) if other == task]
        methods = list(dict.fromkeys(words["method"] for words in dimensions(of_task)))
        show(comparison(of_task, TableLayout(baselines=tuple(methods[:1] if len(methods) > 1 else ()))), "text")
        for difference in results.differences:
            if difference.task == task and difference.between_contexts:
                m = difference.metric
                interval = "" if m.low is None else f" [{m.low:+.3f}, {m.high:+.3f}]"
                better = {True: "higher is better, ", False: "lower is better, ", None: ""}[difference.higher_is_better]
                line = f"{difference.label}, {difference.measure}: {m.value:+.3f}{interval}"
                screen.print(f"{line} (paired, {better}n = {m.n})")
    screen.print(
        f"Stored below {out}. `contextlab table {out} --notes` says how the numbers were made.", soft_wrap=True
    )
