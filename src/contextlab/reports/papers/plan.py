"""The cost of a recipe before it runs: commands, FLOPs by formula, and the time and memory that follow from them."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from contextlab import grammar, naming
from contextlab.harness.stored import Result
from contextlab.reports.papers.schema import Paper, PaperModel, PaperRun, PaperScale

SPEED = 200e9
"""FLOPs per second of the embedded model in float32 on two cores of an Intel Xeon, in long texts without other load."""
SHORT = 500
"""Tokens of a text at which half of the speed is reached."""
HALF = 40
"""Tokens of a window at which half of the speed is reached, where every window is computed by itself: all weights go
through the processor for every window, however few tokens it has (results/benches/hso.json)."""
PIECE = 1024
"""Tokens that one call reads at most."""
AGAIN = 1.3
"""Time of the largest call of a run, which runs once more, so that its memory is measured; in its own time."""
START = 12.0
"""Seconds of a command beside its calls: to import the package and to load the embedded model."""
FLOAT = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """A decoder's size: parameters of a forward pass, layers, width, and floats of keys and values per token."""

    parameters: int
    layers: int
    width: int
    cached: int
    vocabulary: int = 50_000

    def flops(self, tokens: int, view: float) -> float:
        """Of reading tokens that see `view` others on average; a multiply-add is 2."""
        return tokens * (2 * self.parameters + 4 * self.layers * self.width * view)

    def memory(self, tokens: float) -> float:
        """Bytes of weights, a cache of tokens, and the logits of one piece, in float32."""
        return FLOAT * (self.parameters + tokens * self.cached + PIECE * self.vocabulary)


EMBEDDED = Shape(134_515_584, 30, 576, 2 * 30 * 192)


@dataclasses.dataclass(frozen=True)
class Effort:
    """A method beside plain windows.

    Attributes:
        flops: multiple of a forward pass.
        speed: FLOPs per second, as a part of those of a forward pass.
        view: tokens seen on average; None for half of the text.
        cache: multiple of the cached keys and values.
        window: tokens of a window that is computed by itself; None where the length of the text alone counts.
        again: time of a call that runs once more, as a multiple; many small operations are slow to watch.
        projections: tokens whose keys and values are computed again, and differentiated, for every token.
    """

    flops: float = 1.0
    speed: float = 1.0
    view: float | None = PIECE / 2
    cache: float = 1.0
    window: int | None = None
    again: float = AGAIN
    projections: float = 0.0

    @classmethod
    def of(cls, method: str, settings: Mapping[str, Any]) -> Effort:
        """That of a method with these settings."""
        effort = EFFORTS.get(f"{method}(form={settings.get('form')})") or EFFORTS.get(method, cls())
        if effort.window is None:
            return effort
        k, steps = int(settings.get("k", effort.window)), int(settings.get("steps", 1))
        projections = PIECE / 2 / k if settings.get("states") == "inputs" else 0.0
        return dataclasses.replace(effort, flops=effort.flops * steps, window=k, projections=projections * steps)


# Ratios of stored results (results/pg22-s2, results/hso-fewshot) to the window's.
EFFORTS = {
    "full": Effort(view=None),
    "sliding": Effort(view=1.5 * PIECE),
    "sinks": Effort(view=PIECE),
    "retrieval": Effort(1.05, 0.5, view=1.5 * PIECE),
    "longmem": Effort(1.6, 0.9, view=1.5 * PIECE),
    "longmem(form=paper)": Effort(1.15, view=1.5 * PIECE),
    "memtrm": Effort(1.05, 0.5),
    "trime": Effort(1.2, 0.8),
    "hso": Effort(2.3, cache=3.0, window=25, again=1.9),
    "dynamic-eval": Effort(3.0, 0.3, cache=2.0),
    "evalm": Effort(1.05, 0.9),
    "generative-adapter": Effort(1.05, 0.9),
}


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run of a plan with its estimates: FLOPs and seconds of its calls, and bytes at its highest."""

    command: str
    examples: int
    flops: float
    seconds: float
    memory: float

    @property
    def whole_seconds(self) -> float:
        """Seconds from the start of the command to its end."""
        return START + self.seconds


def steps(
    runs: Iterable[PaperRun], size: Shape, speed: float, total: int | None = None, **options: Any
) -> list[PlannedRun]:
    """The runs as commands with estimates.

    Args:
        runs: of a recipe.
        size: of the backbone.
        speed: FLOPs per second of plain long texts.
        total: tokens of the whole evaluation, for runs without a limit.
        **options: of the command, such as `backbone`; None for those that are left out.
    """
    return [_step(run, size, speed, total, options) for run in runs]


def speed_of(results: Iterable[Result]) -> float | None:
    """FLOPs per second of plain long texts, from stored results of the embedded model; None without any."""
    speeds = []
    for result in results:
        costs = result.cost.phases().values()
        seconds, tokens = sum(cost.seconds for cost in costs), sum(cost.tokens for cost in costs)
        flops = [cost.flops for cost in costs if cost.flops is not None]
        if seconds and tokens and len(flops) == len(costs):
            effort = Effort.of(result.method, result.method_config)
            speeds.append(sum(flops) / seconds / _rate(effort, tokens))
    return statistics.median(speeds) if speeds else None


def whole(paper: Paper, scale: PaperScale, speed: float) -> PlannedRun:
    """One method over the paper's whole evaluation, with the paper's model."""
    size = shape(paper.model)
    flops = size.flops(scale.tokens, scale.context / 2)
    words = f"one method reads {scale.tokens:,} tokens, each sees at most {scale.context:,}"
    return PlannedRun(words, 1, flops, flops / speed, size.memory(scale.context))


def shape(model: PaperModel) -> Shape:
    """The size of a paper's model, with as many key heads as query heads."""
    return Shape(model.parameters, model.layers, model.width, 2 * model.layers * model.width)


def command(run: PaperRun, **options: Any) -> str:
    """The `contextlab bench` command of a run."""
    words = ["contextlab", "bench", "--method", ",".join(run.methods), "--task", run.task]
    named = {"limit": run.limit, **{name: value for name, value in options.items() if value is not None}}
    words += [word for name, value in named.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(words)


def _step(run: PaperRun, size: Shape, speed: float, total: int | None, options: Mapping[str, Any]) -> PlannedRun:
    limit = options.get("limit") or run.limit
    examples = limit or max(1, round((total or run.tokens) / run.tokens))
    named = ((naming.method_of(text), grammar.single(text, "method").settings) for text in run.methods)
    efforts = [Effort.of(method, settings) for method, settings in named]
    texts = [_Text.of(effort, size, run.tokens) for effort in efforts]
    again = min(run.tokens, PIECE) / run.tokens
    seconds = [
        (examples + effort.again * again) * text.at_speed / speed for text, effort in zip(texts, efforts, strict=True)
    ]
    flops = [text.flops for text in texts]
    memory = max(size.memory(effort.cache * run.tokens) for effort in efforts)
    return PlannedRun(command(run, **options), examples, examples * sum(flops), sum(seconds), memory)


@dataclasses.dataclass(frozen=True)
class _Text:
    """A method that reads one text.

    Attributes:
        flops: of it.
        at_speed: as many as plain long texts would have in the same time.
    """

    flops: float
    at_speed: float

    @classmethod
    def of(cls, effort: Effort, size: Shape, tokens: int) -> _Text:
        windows = effort.flops * size.flops(tokens, _view(effort, tokens))
        # Large products, forwards and backwards.
        projections = tokens * min(1.0, tokens / PIECE) * effort.projections * 4 * size.width * size.cached
        return cls(windows + projections, windows / _rate(effort, tokens) + projections)


def _view(effort: Effort, tokens: int) -> float:
    half = tokens / 2
    return half if effort.view is None else min(effort.view, half)


def _rate(effort: Effort, tokens: float) -> float:
    """The part of the speed of plain long texts that a method reaches in texts of this length."""
    if effort.window is not None:
        return effort.speed * effort.window / (effort.window + HALF)
    return effort.speed * tokens / (tokens + SHORT)
