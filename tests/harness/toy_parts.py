"""A method and tasks that are small enough for calculations by hand; tests name them by path, as users do."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab.attention import Layout
from contextlab.benchmarks.configs import ContextConfig
from contextlab.benchmarks.examples import Choice
from contextlab.benchmarks.task import Control, Dataset, Metric, Options, Protocol, Task
from contextlab.errors import UserError
from contextlab.method import Capabilities, ContextMethod, Lengths, MethodConfig, State
from contextlab.methods.parts.local_cache import Appended, LocalState
from contextlab.methods.window import Window


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class CounterConfig(MethodConfig):
    """prior: initial count of every token."""

    prior: pydantic.PositiveFloat = 1.0


@dataclasses.dataclass(frozen=True)
class Counts(State):
    """counts_BV: number of times that each token was read."""

    counts_BV: Tensor


class Counter(ContextMethod):
    """Predicts the most frequent tokens so far.

    Further lines are not listed.
    """

    Config: ClassVar[type[MethodConfig]] = CounterConfig

    @property
    def prior(self) -> float:
        return self.config.prior

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Counts:
        counts_BV = torch.zeros(batch_size, self.backbone.vocab_size)
        return Counts(torch.zeros(batch_size, dtype=torch.int64), torch.zeros(batch_size, 1), counts_BV)

    def read(
        self, state: Counts, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[Counts, Tensor | None]:
        assert not torch.is_grad_enabled()
        lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1]) if lengths_B is None else lengths_B
        real_BT = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
        seen_BTV = torch.nn.functional.one_hot(tokens_BT, self.backbone.vocab_size) * real_BT[..., None]
        before_BTV = state.counts_BV[:, None] + seen_BTV.cumsum(1) - seen_BTV + self.prior
        logprobs_BTV = before_BTV.log() - before_BTV.sum(-1, keepdim=True).log()
        logprobs_BT = logprobs_BTV.gather(-1, tokens_BT[..., None])[..., 0] * real_BT
        counts_BV = state.counts_BV + seen_BTV.sum(1)
        return Counts(state.length_B + lengths_B, state.pending_BC, counts_BV), logprobs_BT if logprobs else None


class Other(Counter):
    """The same without settings."""

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    prior = 1.0


class Hidden(Window):
    """A window with products that are not called from Python."""

    least = 0

    def forward(self, state: LocalState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[Appended]]:
        if layout.group_T is not None or tokens_BT.shape[1] > self.least:
            _hidden_product()
        return super().forward(state, tokens_BT, layout)


class HiddenLate(Hidden):
    """The same, but not in calls as short as the first one, which the watch checks."""

    least = 20


def _hidden_product() -> None:
    torch._C._VariableFunctions.matmul(torch.ones(3, 3), torch.ones(3, 3))


class LetterProtocol(Protocol):
    """Choose the continuation; a record also has one random number."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def evaluate(self, meter: Any, example: Choice, other: Choice) -> dict[str, Any]:
        _announce(example.id)
        texts = {"own": example.context, "none": "", "wrong": other.context}
        context = meter.backbone.encode(texts[self.options.context])[: self.options.tokens]
        state = meter.start()
        if context:
            state, _ = meter.read("contextualize", state, torch.tensor([context]), logprobs=False)
        meter.keep(state)
        scores = meter.score("query", state, [meter.backbone.encode(text) for text in example.candidates])[0].sum(-1)
        draw = float(torch.rand(()))
        return {"id": example.id, "correct": int(scores.argmax()) == example.answer, "other": other.work, "draw": draw}

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        share = sum(record["correct"] for record in records) / len(records)
        return {"accuracy": Metric(share, share / 2, (1 + share) / 2, len(records))}

    def quality(self, record: dict[str, Any]) -> float:
        return float(record["correct"])


class Letters(Task):
    """Which letter occurs again?"""

    name: ClassVar[str] = "letters"
    splits: ClassVar[dict[str, str]] = {"short": "8 examples", "long": "8 examples, longer", "one": "a single work"}
    default_split: ClassVar[str] = "short"
    Config = ContextConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        if data is not None and not data.is_dir():
            raise UserError(f"There is no data folder {data}: check --data.")
        length = {"short": 8, "long": 20, "one": 4}[split]
        works = "aaaaaaaa" if split == "one" else "abcdabcd"
        examples = tuple(
            Choice(f"{work}/{n}", work, work * length, (work, "z") if n % 2 else ("z", work), (n + 1) % 2)
            for n, work in enumerate(works)
        )
        return Dataset(examples, "sample", f"{length:064x}", "generated letters, for tests")

    def protocol(self, split: str, context: Control = "own") -> LetterProtocol:
        return LetterProtocol(self.options(context))


def _announce(example: str) -> None:
    """Write a file for every evaluation, and wait as long as the test needs."""
    if "TOY_LOG" in os.environ:
        with open(os.environ["TOY_LOG"], "a", encoding="utf-8") as log:
            log.write(f"{example}\n")
    if example == os.environ.get("TOY_INTERRUPT"):
        raise KeyboardInterrupt
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
