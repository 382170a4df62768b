"""The cost of a recipe before it runs: commands, FLOPs by formula, and the time and memory that follow from them."""

from __future__ import annotations

import dataclasses
import shlex
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from contextlab import naming
from contextlab.harness.stored import Result
from contextlab.reports.papers.schema import Paper, PaperEntry, PaperModel, PaperRun

SPEED = 200e9
"""FLOPs per second of the embedded model in float32 on two cores of an Intel Xeon, in long texts without other load."""
SHORT = 500
"""Tokens of a text at which half of the speed is reached."""
PIECE = 1024
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
        kept: multiple of the cached keys and values.
    """

    flops: float = 1.0
    speed: float = 1.0
    view: float | None = PIECE / 2
    kept: float = 1.0


# Ratios of stored results (results/pg22-s2, results/hso-fewshot) to the window's.
EFFORTS = {
    "full": Effort(view=None),
    "sliding": Effort(view=1.5 * PIECE),
    "sinks": Effort(view=PIECE),
    "retrieval": Effort(1.05, 0.5, view=1.5 * PIECE),
    "longmem": Effort(1.9, 0.6, view=1.5 * PIECE),
    "memtrm": Effort(1.05, 0.5),
    "trime": Effort(1.2, 0.8),
    "hso": Effort(2.3, 0.35, kept=3.0),
    "dynamic-eval": Effort(3.0, 0.3, kept=2.0),
    "evalm": Effort(1.05, 0.9),
    "generative-adapter": Effort(1.05, 0.9),
}


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """One run of a plan with its estimates: FLOPs, seconds, and bytes at its highest."""

    command: str
    examples: int
    flops: float
    seconds: float
    memory: float


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
            effort = EFFORTS.get(result.method, Effort())
            speeds.append(sum(flops) / seconds / effort.speed / _part(tokens))
    return statistics.median(speeds) if speeds else None


def whole(paper: Paper, entry: PaperEntry, speed: float) -> PlannedRun:
    """One method over the paper's whole evaluation, with the paper's model."""
    scale, size = entry.paper, shape(paper.model)
    flops = size.flops(scale.tokens, scale.context / 2)
    words = f"one method reads {scale.tokens:,} tokens, each sees at most {scale.context:,}"
    return PlannedRun(words, 1, flops, flops / speed, size.memory(scale.context))


def shape(model: PaperModel) -> Shape:
    """The size of a paper's model, with as many key heads as query heads."""
    return Shape(model.parameters, model.layers, model.width, 2 * model.layers * model.width)


def command(run: PaperRun, **options: Any) -> str:
    """The `contextlab bench` command of a run."""
    words = ["contextlab", "bench", "--method", ",".join(run.methods), "--task", run.task]
    given = {"limit": run.limit, **{name: value for name, value in options.items() if value is not None}}
    words += [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(words)


def _step(run: PaperRun, size: Shape, speed: float, total: int | None, options: Mapping[str, Any]) -> PlannedRun:
    limit = options.get("limit") or run.limit
    examples = limit or max(1, round((total or run.tokens) / run.tokens))
    efforts = [EFFORTS.get(naming.method_of(method), Effort()) for method in run.methods]
    flops = [effort.flops * examples * size.flops(run.tokens, _view(effort, run.tokens)) for effort in efforts]
    seconds = [
        amount / (speed * effort.speed * _part(run.tokens)) for amount, effort in zip(flops, efforts, strict=True)
    ]
    memory = max(size.memory(effort.kept * run.tokens) for effort in efforts)
    return PlannedRun(command(run, **options), examples, sum(flops), sum(seconds), memory)


def _view(effort: Effort, tokens: int) -> float:
    half = tokens / 2
    return half if effort.view is None else min(effort.view, half)


def _part(tokens: float) -> float:
    """The part of the speed that texts of this length reach."""
    return tokens / (tokens + SHORT)
