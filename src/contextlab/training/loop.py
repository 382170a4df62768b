"""The loop: truncated backpropagation in segments, one step of the optimiser after the other.

Legend: B rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import CheckpointError
from transformers.pytorch_utils import Conv1D

from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.products import ProductCounter
from contextlab.attention import recomputing
from contextlab.errors import UserError
from contextlab.method import AnyMethod, State
from contextlab.training import rates
from contextlab.training.objectives import Objective
from contextlab.training.options import TrainConfig
from contextlab.training.processes import Processes
from contextlab.training.streams import Batch, Streams

NARROW = torch.bfloat16
"""Type of products where a training computes narrow."""
WATCHED = 4
"""Steps 1, 4, 16, ... run a second time under the watch, which sees the products that Python's functions do not."""


@dataclasses.dataclass(frozen=True)
class OptimiserStep:
    """One step of the optimiser.

    Attributes:
        tokens: learned from so far, by all processes.
        loss: mean of the objective over its tokens.
        nats: mean of - log P over its tokens; None where the objective predicts none.
        rate: learning rate.
        norm: of the gradient, before it was cut back.
        seconds: it took.
    """

    tokens: int
    loss: float
    nats: float | None
    rate: float
    norm: float
    seconds: float

    def line(self) -> dict[str, Any]:
        """As a line of the curve."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class TrainingProgress:
    """The progress of a run, beside its tensors.

    Attributes:
        tokens: learned from, by all processes.
        steps: of the optimiser.
        flops: of the training, of all processes together.
        seconds: of the steps.
        missed: FLOPs per FLOP that the products showed, as last watched.
    """

    tokens: int = 0
    steps: int = 0
    flops: int = 0
    seconds: float = 0.0
    missed: float = 1.0


class NotFinite(UserError):
    """A loss or a gradient is infinite or not a number."""


class Trainer:
    """A method that learns, its streams, its optimiser, and the state between two segments.

    Args:
        method: with something to learn.
        streams: of this process.
        objective: what is minimised.
        settings: of the run.
        processes: that the gradients are added up over, and the optimiser's moments are dealt over.
    """

    def __init__(
        self,
        method: AnyMethod,
        streams: Streams,
        objective: Objective,
        settings: TrainConfig,
        processes: Processes | None = None,
    ) -> None:
        if method.learned is None:
            raise UserError(
                f"{type(method).__name__} has nothing to learn: train a method that `contextlab ls methods "
                "--verbose` says needs training, or a baseline with a low-rank update, as window(rank=16)."
            )
        self.method, self.streams, self.objective, self.settings = method, streams, objective, settings
        self.processes = processes or Processes()
        self.learned: nn.Module = method.learned
        groups = self._groups()
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.owners = self.processes.owners(self.parameters)
        owned = zip(self.parameters, self.owners, strict=True)
        mine = {weight for weight, owner in owned if owner == self.processes.rank}
        self.optimiser = torch.optim.AdamW(
            [{**group, "params": [weight for weight in group["params"] if weight in mine]} for group in groups],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self.state: State = method.start(len(streams.rows))
        self.progress = TrainingProgress()

    def _groups(self) -> list[dict[str, Any]]:
        """The learned parameters, grouped by the factors of the learning rate."""
        named = {name: parameter for name, parameter in self.learned.named_parameters() if parameter.requires_grad}
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter, factor in zip(named.values(), rates.factors(self.settings.rates, list(named)), strict=True):
            groups.setdefault(factor, []).append(parameter)
        return [{"factor": factor, "params": params} for factor, params in groups.items()]

    def step(self) -> OptimiserStep:
        """Learn from `accumulate` batches and take one step.

        Raises:
            NotFinite: when the loss or its gradient is not; nothing has been changed by then.
        """
        started = time.perf_counter()
        self.learned.train()
        with self._recomputing():
            sums, apart = self._accumulated()
        self.learned.eval()
        step = self._apply(sums)
        seconds = time.perf_counter() - started - apart
        self.progress.seconds += seconds
        return dataclasses.replace(step, seconds=seconds)

    def _accumulated(self) -> tuple[Tensor, float]:
        """Gradients of `accumulate` batches: sums as `_apply` takes them, and seconds that were spent on counting."""
        sums, apart = torch.zeros(3, dtype=torch.float64), 0.0
        for number in range(self.settings.accumulate):
            batch = self.streams.next()
            self.state = self._restarted(batch)
            prepared_flops = self.objective.prepare(batch)
            flops, seconds = self._watched(batch) if number == 0 and self._watch_is_due else (0, 0.0)
            apart += seconds
            with ProductCounter() as products, self._products():
                outcome = self.objective(self.state, batch)
                # A memory that is still empty leaves nothing to learn from.
                if outcome.loss.requires_grad:
                    (outcome.loss / self._scale).backward()
            if flops:
                self.progress.missed = flops / max(products.flops, 1)
            counted = prepared_flops + round(products.flops * self.progress.missed)
            self.progress.flops += counted * self.processes.count
            self.state = outcome.state.detach()
            nats = math.nan if outcome.nats is None else float(outcome.nats)
            sums += torch.tensor(
                [float(outcome.loss.detach()), nats, float(batch.lengths_B.sum())], dtype=torch.float64
            )
        return sums, apart

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Backward passes that compute blocks again, where the settings say so."""
        try:
            with recomputing() if self.settings.recompute else nullcontext():
                yield
        except CheckpointError:
            raise UserError(
                f"{type(self.method).__name__} changes its layers while it reads, and they cannot be computed again: "
                "leave recompute out."
            ) from None

    @property
    def _scale(self) -> int:
        """Tokens of a full batch; losses are divided by it on the way, and gradients by the true count in the end."""
        return self.streams.segment * len(self.streams.rows)

    def _restarted(self, batch: Batch) -> State:
        """The state with the rows empty whose documents begin."""
        if not bool(batch.fresh_B.any()):
            return self.state
        restarted: State = self.method.restart(self.state, batch.fresh_B).detach()
        return restarted

    @property
    def narrow(self) -> bool:
        """Whether products are computed in `NARROW`, as the settings say."""
        on_gpu = self.method.backbone.device.type == "cuda"
        return self.settings.dtype == "bfloat16" or (self.settings.dtype == "auto" and on_gpu)

    def _products(self) -> AbstractContextManager[None]:
        """Products as wide as the settings say, in both directions: what backward computes again must be the same."""
        return narrow_products([self.method.backbone.model, self.learned] if self.narrow else [])

    @property
    def _watch_is_due(self) -> bool:
        number = self.progress.steps + 1
        while number % WATCHED == 0:
            number //= WATCHED
        return number == 1

    def _watched(self, batch: Batch) -> tuple[int, float]:
        """FLOPs of learning from a batch as the watch counts them, and the seconds that takes; its results are dropped,
        for what runs under the watch may round differently.
        """
        started = time.perf_counter()
        devices = [self.method.backbone.device] if self.method.backbone.device.type == "cuda" else []
        with torch.random.fork_rng(devices), FlopCounter() as counter, self._products():
            loss = self.objective(self.state, batch).loss
            if loss.requires_grad:
                torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return counter.flops, time.perf_counter() - started

    def _apply(self, sums: Tensor) -> OptimiserStep:
        """One step of the optimiser with the gradients of all processes.

        Args:
            sums: of the objective, of - log P (NaN where there is none) and of the tokens, of this process.
        """
        active = [parameter for parameter in self.parameters if parameter.grad is not None or self.processes.count > 1]
        for parameter in active:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        own_grads = [weight.grad for weight in active if weight.grad is not None]
        sums, *gradients = self.processes.add([sums, *own_grads])
        loss, nats, tokens = sums.tolist()
        for parameter, gradient in zip(active, gradients, strict=True):
            parameter.grad = gradient.mul_(self._scale / tokens)
        norm = float(nn.utils.clip_grad_norm_(active, self.settings.clip or math.inf))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._zero_grad()
            raise NotFinite(
                f"The loss or its gradient is not finite after {self.progress.tokens:,} tokens: use a smaller --lr, or "
                "--set dtype=float32; the last checkpoint is kept."
            )
        rate = self.settings.rate(self.progress.tokens)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimiser.step()
        self.processes.spread(self.parameters, self.owners)
        self._zero_grad()
        self.progress.tokens += round(tokens)
        self.progress.steps += 1
        predicted = None if math.isnan(nats) else nats / tokens
        return OptimiserStep(self.progress.tokens, loss / tokens, predicted, rate, norm, 0.0)

    def _zero_grad(self) -> None:
        """Of all that is learned; the optimiser knows those alone whose moments this process keeps."""
        for parameter in self.parameters:
            parameter.grad = None


@contextmanager
def narrow_products(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let every linear layer with a weight of these modules compute under autocast, for the duration of a block.

    A backbone with updates has layers of its own around the weights of the frozen one, so that weights tell which
    layers these are. Autocast around a whole method would reach caches, banks and summaries, which have their types,
    and operations outside of torch, which it does not cast. Weights stay as they are, gradients have their type, and
    what a layer returns has the type of its input. Frozen weights are cast once.
    """
    weights = {weight for module in modules for weight in module.parameters()}
    forwards = {kind: kind.forward for kind in (nn.Linear, Conv1D)}
    try:
        for kind, forward in forwards.items():
            type.__setattr__(kind, "forward", _narrow(forward, weights))
        yield
    finally:
        for kind, forward in forwards.items():
            type.__setattr__(kind, "forward", forward)


def _narrow(forward: Callable[[Any, Tensor], Tensor], weights: Set[nn.Parameter]) -> Callable[[Any, Tensor], Tensor]:
    """The forward pass of a kind of layers, narrow for those with one of the weights."""
    frozen: dict[nn.Parameter, Tensor] = {}

    @functools.wraps(forward)
    def narrow(layer: Any, x: Tensor) -> Tensor:
        weight = layer.weight
        if weight not in weights:
            return forward(layer, x)
        with torch.autocast(x.device.type, NARROW):
            if weight.requires_grad:
                return forward(layer, x).to(x.dtype)
            if weight not in frozen:
                frozen[weight] = weight.detach().to(NARROW)
            narrow_y: Tensor = functional_call(layer, {"weight": frozen[weight]}, (x,))
            return narrow_y.to(x.dtype)

    return narrow
