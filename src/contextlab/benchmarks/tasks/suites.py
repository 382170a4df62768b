"""Suites of other projects over the files that these publish: LongBench, InfiniteBench, LongMemEval, HELMET, LOFT."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from contextlab import files
from contextlab.benchmarks.configs import ContextConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import sample_dataset
from contextlab.benchmarks.data.sources import Location, locate
from contextlab.benchmarks.data.suites import SuiteTable, SuiteTask, readings, sample, suite
from contextlab.benchmarks.metrics.suites import check_installed
from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.judge import own_scores
from contextlab.benchmarks.tasks.own import FUNCTION, NamesFiles
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.suites import SuiteProtocol


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SuiteConfig(ContextConfig):
    """What is read of a context, and how answers are compared.

    Attributes:
        tokens: the most tokens read of a text, with the part of the prompt in front of it; without it all.
        cut: side that a context of more than `tokens` tokens loses; `none` refuses it.
        chat: whether the prompt is a turn of the user in the backbone's chat template; never in the tasks that upstream
            asks without one.
        metric: how answers are compared: path.py:function of (prediction, answers), perhaps also (question), with
            values from 0 to 1, and the suite's own metric; only the suite's own when "".
    """

    cut: Literal["left", "right", "middle", "none"] = "middle"
    chat: bool = False
    metric: str = ""

    def __post_init__(self) -> None:
        """Check the form of the metric."""
        if self.metric and FUNCTION not in self.metric:
            raise UserError(f"metric={self.metric} names no function: write path.py:function, or leave metric= out.")


class SuiteTasks(NamesFiles):
    """Base class of the suites, whose tables name their tasks, files, prompts and metrics."""

    named: ClassVar[tuple[str, ...]] = ("metric",)
    Config = SuiteConfig
    config: SuiteConfig

    def __init_subclass__(cls) -> None:
        """Take the splits from the table."""
        super().__init_subclass__()
        cls.splits, cls.default_split = suite(cls.name).splits(), suite(cls.name).default

    @property
    def suite(self) -> SuiteTable:
        """What the table says."""
        return suite(self.name)

    @property
    def length(self) -> str:
        """The length of the texts, where there are files of several lengths; else ""."""
        return str(self.config.as_dict().get("length", ""))

    def load(self, split: str, data: Path | None) -> Dataset:
        """Every context with all its questions, task by task, in the order of the files.

        Raises:
            UserError: when the data folder lacks a file, it is broken, or a metric needs a package that is missing.
        """
        tasks = self.suite.chosen(self.check_split(split))
        check_installed(task.metric for task in tasks)
        located = [(task, [locate(self.name, file, data) for file in task.files(self.length)]) for task in tasks]
        if all(location.path is None for _, locations in located for location in locations):
            return sample_dataset([reading for task in tasks for reading in sample(task)], self.suite.title)
        parts = [(task, self._paths(task, locations)) for task, locations in located]
        examples = tuple(reading for task, paths in parts for reading in readings(task, paths))
        count = sum(len(reading.questions) for reading in examples)
        digests = [files.sha256(path) for _, paths in parts for path in paths]
        sha256 = digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
        return Dataset(examples, "local", sha256, proofs.unverified(self.suite.title, count, "question"))

    def protocol(self, split: str, context: Control = "own") -> SuiteProtocol:
        """Greedy answers, compared by the metric of each task; `tokens` keeps both ends of a context.

        Raises:
            UserError: for a metric that cannot be had, or a chat template for tasks with and without one.
        """
        from contextlab.benchmarks.protocols.answers import ContextForm
        from contextlab.benchmarks.protocols.suites import SuiteProtocol

        tasks = self.suite.chosen(self.check_split(split))
        settings = self.config
        judge = own_scores(settings.metric) if settings.metric else {}
        form = ContextForm("", "", settings.cut)
        return SuiteProtocol(tasks, self.options(context), judge, self.suite.by, self._wording(split, tasks), form)

    def _wording(self, split: str, tasks: Sequence[SuiteTask]) -> Wording:
        if self.config.chat and len({task.chat for task in tasks}) > 1:
            raise UserError(f"Some tasks of {self.name}/{split} are asked without a chat template: name one task.")
        return "chat" if self.config.chat and tasks[0].chat else "plain"

    def _paths(self, task: SuiteTask, locations: Sequence[Location]) -> list[Path]:
        for file, location in zip(task.files(self.length), locations, strict=True):
            if location.path is None:
                raise UserError(f"There is no file {self.name}/{file} in the cache: name a data folder that holds it.")
        return [location.path for location in locations if location.path is not None]


class LongBench(SuiteTasks):
    """LongBench: 21 tasks in English, Chinese and code over texts of some thousand words."""

    name: ClassVar[str] = "longbench"


class LongBenchV2(SuiteTasks):
    """LongBench v2: questions with four options about texts of 8,000 to 2 million words."""

    name: ClassVar[str] = "longbench-v2"


class InfiniteBench(SuiteTasks):
    """InfiniteBench: retrieval, books, dialogues, code and numbers over texts of 100,000 tokens and more."""

    name: ClassVar[str] = "infinitebench"


class LongMemEval(SuiteTasks):
    """LongMemEval: questions about the earlier sessions of a user with an assistant."""

    name: ClassVar[str] = "longmemeval"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class HelmetConfig(SuiteConfig):
    """What is read, and how answers are compared.

    Attributes:
        length: of the texts, in upstream's names; tokens of Llama 2 with prompt and answer.
    """

    length: Literal["8k", "16k", "32k", "64k", "128k"] = "8k"


class Helmet(SuiteTasks):
    """HELMET: its questions over retrieved passages, and its values of keys in JSON."""

    name: ClassVar[str] = "helmet"
    Config = HelmetConfig
    config: HelmetConfig


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LoftConfig(SuiteConfig):
    """What is read, and how answers are compared.

    Attributes:
        length: of the texts, in upstream's names; tokens of Gemini in the whole collection.
    """

    length: Literal["32k", "128k", "1m"] = "32k"


class Loft(SuiteTasks):
    """LOFT: a collection of texts is read whole, and asked for answers or for the texts that hold them."""

    name: ClassVar[str] = "loft"
    Config = LoftConfig
    config: LoftConfig
