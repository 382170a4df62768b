"""`contextlab train`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from contextlab import files
from contextlab.cli import announce, say
from contextlab.cli.bench import settings_of
from contextlab.cli.complete import method_names
from contextlab.cli.options import BackboneName

CurveLine = dict[str, Any]


def train(
    method: Annotated[
        str,
        typer.Argument(
            help="Such as longmem, 'evalm(c=8,remote_bias=-2)', path.py:Class.", autocompletion=method_names
        ),
    ],
    corpus: Annotated[str, typer.Option(help="Folder or file of texts (.txt, .jsonl, also .gz, .xz), or hub:NAME.")],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to train on.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of checkpoints, curve, weights and card; again, it resumes. runs/train/METHOD when not given."
        ),
    ] = None,
    backbone: BackboneName = "smollm2-135m",
    device: Annotated[str | None, typer.Option(help="Torch device; the GPU when there is one.")] = None,
    validation: Annotated[
        str | None, typer.Option(help="Texts to validate on; documents of the corpus are held back when not given.")
    ] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Documents side by side.")] = None,
    segment: Annotated[int | None, typer.Option(min=1, help="Tokens that a gradient reaches through.")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate; the method's own when not given.")] = None,
    objective: Annotated[str | None, typer.Option(help="Such as lm or 'teacher(k=64)'.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, draws, and a method's own initial weights.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Further options, as schedule=constant.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as one JSON object.")] = False,
) -> None:
    """Train what a method learns, and write its weights and their card; run again, it resumes."""
    shown = {"rows": rows, "segment": segment, "lr": lr, "objective": objective, "seed": seed}
    options: dict[str, Any] = {name: value for name, value in shown.items() if value is not None}
    for name, value in settings_of(setting or []).items():
        if name in options or name == "tokens":
            raise typer.BadParameter(f"{name} is given twice: keep one of --{name} and --set {name}=.")
        options[name] = value
    if not as_json:
        announce()

    from contextlab.training.run import train as run

    out = out or Path("runs", "train", files.slug(method))
    screen = _live() if sys.stderr.isatty() and not as_json else None
    where: dict[str, Any] = {"out": out, "backbone": backbone, "device": device, "validation_corpus": validation}
    card = run(method, corpus, tokens=tokens, on_line=screen, **where, **options)
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps(card))
    else:
        _say(card, out)


def _live() -> Callable[[CurveLine], None]:
    """Shows where a run is, on one line that is written over."""
    last: CurveLine = {}

    def show(line: CurveLine) -> None:
        last.update(line)
        gain = last.get("validation", {}).get("content_gain")
        words = [f"{last['tokens']:,} tokens"]
        if "loss" in last:
            words += [f"{last['tokens_per_second']:,.0f} tokens/s", f"loss {last['loss']:.3f}"]
        words += [] if gain is None else [f"gain {gain:+.4f}"]
        words += [f"{_clock(last['seconds_left'])} left"] if "seconds_left" in last else []
        print(f"\r\x1b[2K{', '.join(words)}", end="", file=sys.stderr, flush=True)

    return show


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _say(card: CurveLine, out: Path) -> None:
    """The outcome of a run."""
    if sys.stderr.isatty():
        print(file=sys.stderr)
    cost, first, last = card["cost"], card["curve"][0], card["gains"]
    speed = cost["tokens"] / cost["seconds"]
    say(f"{card['label']}: {cost['tokens']:,} tokens in {_clock(cost['seconds'])}, {speed:,.0f} tokens/s")
    say(f"loss on held-back texts {first['loss']:.4f} -> {last['loss']:.4f} nats per token")
    error = last["content_error"]
    spread = "" if error is None else f" (standard error over {last['documents']} documents {error:.4f})"
    say(f"content gain {first['content_gain']:+.4f} -> {last['content_gain']:+.4f}{spread} nats per token")
    if first["share"] is not None and last["share"] is not None:
        say(f"share of full attention's gain {first['share']:.3f} -> {last['share']:.3f}")
    say(f"Weights and card in {out}: use them as {_with_weights(card, out)}.")


def _with_weights(card: CurveLine, out: Path) -> str:
    """The folder as a method; a class in a file is found from its own folder alone, so that it is named itself."""
    from contextlab import grammar

    if ".py" not in card["method"]:
        return grammar.spelled_method(str(out) if len(out.parts) > 1 else f"./{out}", {})
    item = grammar.single(card["label"], "method")
    return grammar.spelled_method(item.name, {**item.settings, "weights": str(out)})
