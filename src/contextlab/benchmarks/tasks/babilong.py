"""BABILong (Kuratov et al. 2024): questions about facts of bAbI that are scattered over sentences of books."""

from __future__ import annotations

import dataclasses
import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.data import babi, generated, proofs, sources
from contextlab.benchmarks.data import noise as noises
from contextlab.benchmarks.data.babi import BabiQuestion
from contextlab.benchmarks.data.noise import Noise, NoiseName, hidden, random_gaps
from contextlab.benchmarks.data.questions import in_turns
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import formatted, published
from contextlab.benchmarks.task import Control, Dataset, Options
from contextlab.benchmarks.tasks.sized import SizedTask
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol
    from contextlab.benchmarks.task import Protocol

LEADERBOARD = ("qa1", "qa2", "qa3", "qa4", "qa5")
CHOSEN = "babilong_test_100_idxs.json"
TOKENS_PER_FACT = 8
"""Questions are left out whose facts, with so many tokens each, would fill the text."""
ENDS = (".", "<context>", "<example>")
SAMPLE_QUESTIONS, SAMPLE_SEED = 200, 52


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class BABILongConfig(Config):
    """How long the texts are, and what stands in them.

    Attributes:
        tokens: the most tokens read of a text, with its prompt and question, which noise fills up; 0 for the facts
            alone.
        samples: the most samples: questions of each task.
        noise: sentences between the facts: of the books of `pg19` or `pg22`, or of generated `stories`; `auto` takes
            pg19 where the data folder has it, else stories.
        seed: of the choice of questions, sentences and places.
        chat: whether the prompt is a turn of the user in the backbone's chat template, whose tokens come on top.
    """

    tokens: pydantic.NonNegativeInt = 1024
    samples: pydantic.PositiveInt = 100
    noise: NoiseName = "auto"
    seed: pydantic.NonNegativeInt = 0
    chat: bool = False


class BABILong(SizedTask):
    """Short answers about people and things, from a few facts in a long text about something else."""

    name: ClassVar[str] = "babilong"
    splits: ClassVar[dict[str, str]] = {
        **{task: name.partition("_")[2].replace("-", " ") for task, name in babi.FILES.items()},
        "all": "qa1 to qa5, with the mean over these tasks",
    }
    default_split: ClassVar[str] = "qa1"
    Config = BABILongConfig
    config: BABILongConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """Texts of one length, each with one question; the tasks in turns.

        Raises:
            UserError: when a file is missing or broken, or no question fits into the length.
        """
        tasks, config = _tasks(self.check_split(split)), self.config
        located = {task: sources.locate("babi", babi.path_of(task), data) for task in tasks}
        paths = {task: location.path for task, location in located.items() if location.path is not None}
        noise = noises.noise(config.noise, data)
        samples = _Samples(self, {task: _questions(task, paths.get(task), config.seed) for task in tasks}, noise)
        settings = {
            **self.made_with(split, "tokens", "samples", "seed"),
            "noise": noise.sha256 if config.tokens else "",
            "chosen": {task: _chosen(task, path) for task, path in paths.items()},
            "facts": {task: proofs.file_item(task, path) for task, path in paths.items()},
        }
        dataset = generated.dataset(settings, samples, "")
        source = located[tasks[0]].source
        note = _note(paths, len(dataset.examples), noise.about if config.tokens else "")
        return dataclasses.replace(dataset, source=source, note=note)

    def protocol(self, split: str, context: Control = "own") -> Protocol:
        """Greedy answers of at most 20 tokens; instruction, examples and context are read before the question."""
        from contextlab.benchmarks.protocols.strata import StrataProtocol

        protocols = {task: self._protocol(task, context) for task in _tasks(self.check_split(split))}
        return protocols[split] if split in protocols else StrataProtocol(protocols)

    def _protocol(self, task: str, context: Control) -> AnswerProtocol:
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm

        before, after = template(task)
        opening = before.removesuffix("<context>\n")
        prompts = (after, formatted(opening, {}) + after.partition("\n\n")[2])
        return AnswerProtocol(
            prompts,
            Options(context),
            {"accuracy": accuracy, "accuracy_words": functools.partial(accuracy, words=True)},
            wording="chat" if self.config.chat else "plain",
            form=ContextForm(before, ""),
            ends=(),
        )


class _Samples(generated.ReadingGenerator):
    """Texts with the questions of several tasks, in turns."""

    modules = (noises.__name__, babi.__name__)

    def __init__(self, task: BABILong, questions: dict[str, list[BabiQuestion]], noise: Noise) -> None:
        self.task, self.questions, self.noise = task, questions, noise

    def readings(self) -> Iterator[Reading]:
        """At most `samples` texts of every task.

        Raises:
            UserError: when no question of a task fits into the length.
        """
        yield from in_turns([list(self._of(name)) for name in self.questions])

    def _of(self, name: str) -> Iterator[Reading]:
        config, count = self.task.config, 0
        for question in self.questions[name]:
            if count < config.samples and self._fits(name, question):
                count += 1
                yield self._reading(name, question)
        if not count:
            raise UserError(f"No question of {name} fits into tokens={config.tokens}: raise tokens.")

    def _fits(self, name: str, question: BabiQuestion) -> bool:
        """Whether the facts leave room, as upstream demands, and are not longer than the text."""
        if not self.task.config.tokens:
            return True
        room = self._room(name, question)
        facts = self.task.count(" ".join(question.facts))
        return TOKENS_PER_FACT * len(question.facts) <= room and facts <= room

    def _room(self, name: str, question: BabiQuestion) -> int:
        """Tokens of the text without its prompt and question, for which upstream subtracts 300."""
        before, after = template(name)
        return self.task.config.tokens - self.task.count(before) - self.task.count(after.format(text=question.text))

    def _reading(self, name: str, question: BabiQuestion) -> Reading:
        identity = f"{name}/{question.id}"
        config, count = self.task.config, self.task.count
        context = " ".join(question.facts)
        if config.tokens:
            before, after = template(name)
            draw = random.Random(f"{config.seed}/{identity}")
            sentences = self.noise.sentences(draw, lambda sentence: count(sentence) >= noises.SHORTEST)
            gaps = random_gaps(len(question.facts), draw)
            tokens = config.tokens - count(before)
            context = hidden(question.facts, gaps, sentences, tokens, count, after.format(text=question.text))
        details = {"stratum": name, "facts": len(question.facts)}
        labels = tuple(published("babilong")["labels"][name])
        listed = Question(f"{identity}/question", question.text, (question.answer,), labels, details)
        return Reading(identity, f"{name}/story/{question.story}", context, (listed,))


@functools.cache
def template(task: str) -> tuple[str, str]:
    """The published prompt of a task: the text before the context, and after it with `{text}` for the question."""
    suite = published("babilong")
    before, _, after = suite["template"].partition("{context}")
    for name, text in suite["prompts"][task].items():
        before = before.replace(f"{{{name}}}", text)
    return before, formatted(after, {"question": "text"})


def accuracy(text: str, question: Question, words: bool = False) -> float:
    """1 when exactly the right labels are named, as upstream's metrics.py decides, else 0.

    Labels count where they occur before the first full stop, as parts of words too, unless the question names them.

    Args:
        text: the written answer.
        question: its options are the labels of the task.
        words: whether labels count as whole words only.
    """
    answer = re.split("|".join(map(re.escape, ENDS)), text.lower(), maxsplit=1)[0]
    occurs: Callable[[str], Any] = (lambda label: re.search(rf"\b{label}\b", answer)) if words else answer.__contains__
    labels = {label.lower() for label in question.options}
    named = {label for label in labels if occurs(label) and label not in question.text.lower()}
    return float(named == set(question.answers[0].lower().split(",")))


def _tasks(split: str) -> tuple[str, ...]:
    return LEADERBOARD if split == "all" else (split,)


def _questions(task: str, path: Path | None, seed: int) -> list[BabiQuestion]:
    """The questions of a task in the order in which they are taken: those of BABILong's own sets first."""
    questions = babi.sample(task, SAMPLE_QUESTIONS, SAMPLE_SEED) if path is None else babi.parsed(path)
    first = _chosen(task, path)
    draw = random.Random(f"{seed}/{task}")
    rest = sorted((draw.random(), question.id) for question in questions if question.id not in first)
    return [questions[number] for number in (*(n for n in first if n < len(questions)), *(n for _, n in rest))]


def _chosen(task: str, path: Path | None) -> Sequence[int]:
    """The questions of BABILong's sets of 100, by their numbers in a file; empty where these are not known."""
    listed = None if path is None else path.parents[2] / CHOSEN
    if listed is None or not listed.is_file():
        return ()
    content, _ = sources.json_file(listed)
    if isinstance(content, dict) and task not in content:
        return ()
    numbers: list[int] = sources.field(sources.field(content, task, dict, str(listed)), "here", list, str(listed))
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise UserError(f"{listed} lists questions of {task} that are no numbers: replace it with an intact copy.")
    return numbers


def _note(paths: dict[str, Path], questions: int, noise: str) -> str:
    between = f"in sentences of {noise}" if noise else "without noise"
    if not paths:
        return f"generated questions in the manner of bAbI, not bAbI's, {between}: {questions:,} questions"
    if proofs.verified("babi", [proofs.file_item(task, path) for task, path in paths.items()]):
        return f"re-laid: facts of bAbI {between}, not BABILong's own texts: {questions:,} questions"
    return proofs.unverified("bAbI", questions, "question", f", {between}")
