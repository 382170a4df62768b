"""Questions in a file of the user's, with written answers or with options."""

from __future__ import annotations

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from contextlab.benchmarks.configs import TurnsConfig
from contextlab.benchmarks.data.own_questions import Layout, Need, OwnQuestions, QuestionColumns, own_questions
from contextlab.benchmarks.data.questions import sample_readings
from contextlab.benchmarks.data.tables import FORMS
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import PLACES, Wording, formatted
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.judge import own_scores
from contextlab.benchmarks.tasks.own import FUNCTION, OwnFiles, count_of, own_dataset, sample_of, text_or_file
from contextlab.errors import UserError, check_known

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import ContextForm, QuestionProtocol, Score

METRICS = ("f1", "exact", "contains", "contains-all", "rouge-l", "choice")
SHORT_ANSWER = 20
SAMPLE_STORIES, SAMPLE_WORDS, SAMPLE_SEED = 8, 130, 41


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class OwnQuestionsConfig(TurnsConfig):
    """What is read, and how it is asked.

    Attributes:
        path: file (jsonl, json, csv, tsv, parquet, also packed as .gz or .xz), folder of such files, or hub:NAME;
            without it the generated sample.
        layout: of the file: `ours`, that of `kvpress`, `longbench` or `scbench`; `auto` tells it from the fields.
        columns: names of columns that differ from the layout's, as {"question":"q","options":["A","B"]}.
        cluster: column that says which contexts belong together; each context alone when "".
        prompt: text or file with {context}, {question} and perhaps {options}, in which `\\n` is a line end; the
            part up to the context is read once. The layout's own when "".
        chat: whether the prompt is a turn of the user in the backbone's chat template.
        cut: side that a context of more than `tokens` tokens loses; `none` refuses it.
    """

    path: str = ""
    layout: Layout = "auto"
    columns: dict[str, str | list[str]] = pydantic.Field(default_factory=dict)
    cluster: str = ""
    prompt: str = ""
    chat: bool = False
    cut: Literal["left", "right", "middle", "none"] = "left"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class QuestionsConfig(OwnQuestionsConfig):
    """How answers are written and compared.

    Attributes:
        metric: how answers are compared: f1, exact, contains (any of the answers), contains-all (share of the answers),
            rouge-l, choice (as in the task `choices`), or path.py:function of (prediction, answers), perhaps also
            (question), with values from 0 to 1.
        max_new_tokens: most tokens of an answer; the file's, else 20, when null.
        lines: an answer ends with its first line (`one`), or has all that is written (`all`); `auto` is `one`, and
            `all` for the layouts of other suites.
    """

    metric: str = "f1"
    max_new_tokens: pydantic.PositiveInt | None = None
    lines: Literal["auto", "one", "all"] = "auto"

    def __post_init__(self) -> None:
        """Check the name of the metric."""
        if FUNCTION not in self.metric:
            check_known("metric", [self.metric], METRICS)


class OwnQuestionsTask(OwnFiles):
    """Base class of the tasks with questions in a file."""

    Config = OwnQuestionsConfig
    config: OwnQuestionsConfig
    forms = FORMS
    named: ClassVar[tuple[str, ...]] = ("path", "prompt", "metric")

    @property
    @abstractmethod
    def choice(self) -> bool:
        """Whether options are ranked."""

    @property
    def lengths(self) -> bool:
        """Whether the file says how long answers may be."""
        return False

    def load(self, split: str, data: Path | None) -> Dataset:
        """Every context with its questions, in the order of the file.

        Raises:
            UserError: when there is no file, or a row of it cannot be used.
        """
        self.check_split(split)
        if not self.config.path:
            return sample_of(_sample(self.choice))
        own = self.own
        questions = sum(len(reading.questions) for reading in own.readings)
        about = f"{count_of(questions, 'question')} about {count_of(len(own.readings), 'text')}"
        return own_dataset(own.readings, self.config.path, own.sha256, about, own.left_out)

    @functools.cached_property
    def own(self) -> OwnQuestions:
        """The questions of the files, read once."""
        settings = self.config
        text = self._prompt
        needed: Need = "if there" if self.choice else "always"
        if text:
            needed = "always" if "{question}" in text else "never"
        columns = QuestionColumns(
            settings.layout, settings.columns, settings.cluster, self.choice, needed, lengths=self.lengths
        )
        return own_questions(self.files(settings.path), columns)

    @property
    def layout(self) -> str:
        """The layout of the file; ours where there is none."""
        settings = self.config
        if settings.layout != "auto" or not settings.path:
            return settings.layout if settings.path else "ours"
        return self.own.layout

    def prompts(self, default: tuple[str, str]) -> tuple[tuple[str, str], ContextForm]:
        """The prompts of a question after a context and alone, and how the context stands before it.

        Args:
            default: names of prompts where neither settings nor layout have others.

        Raises:
            UserError: for a prompt that lacks a part.
        """
        from contextlab.benchmarks.protocols.answers import ContextForm

        text = self._prompt
        if not text and self.config.path:
            text = "{context}{question}" if self.layout == "kvpress" else "" if self.own.asks else "{context}"
        if not text:
            return default, ContextForm(cut=self.config.cut)
        head, tail = _divided(text)
        return (tail, tail.lstrip()), ContextForm(head, "", self.config.cut)

    @functools.cached_property
    def _prompt(self) -> str:
        return self.config.prompt and text_or_file(self.config.prompt, "prompt")

    @property
    def wording(self) -> Wording:
        """Whether the backbone's chat template stands around the prompt."""
        return "chat" if self.config.chat else "plain"

    def ranked(self, context: Control) -> QuestionProtocol:
        """The protocol that ranks options."""
        from contextlab.benchmarks.protocols.answers import RankProtocol

        prompts, form = self.prompts(("recall-question", "recall-question"))
        return RankProtocol(prompts, self.options(context), wording=self.wording, form=form)


class Questions(OwnQuestionsTask):
    """Written answers to questions about texts, from a file of yours."""

    name: ClassVar[str] = "questions"
    Config = QuestionsConfig
    config: QuestionsConfig

    @property
    def choice(self) -> bool:
        """Whether options are ranked."""
        return self.config.metric == "choice"

    @property
    def lengths(self) -> bool:
        """Whether the file says how long answers may be."""
        return self.config.max_new_tokens is None

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Greedy answers that are compared with those of the file, or ranked options.

        Raises:
            UserError: for a prompt that lacks a part, or a metric that cannot be had.
        """
        from contextlab.benchmarks.protocols.answers import ENDS, AnswerProtocol

        self.check_split(split)
        if self.choice:
            return self.ranked(context)
        settings = self.config
        prompts, form = self.prompts(("document-question", "question"))
        one_line = settings.lines == "one" or (settings.lines == "auto" and self.layout == "ours")
        return AnswerProtocol(
            prompts,
            self.options(context),
            _scores(settings.metric),
            max_new_tokens=settings.max_new_tokens or SHORT_ANSWER,
            wording=self.wording,
            form=form,
            ends=ENDS if one_line else (),
        )


class Choices(OwnQuestionsTask):
    """Questions with options, or texts with continuations to choose from, from a file of yours."""

    name: ClassVar[str] = "choices"

    @property
    def choice(self) -> bool:
        """Always."""
        return True

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Predicts the option with the lowest perplexity per token.

        Raises:
            UserError: for a prompt that lacks a part.
        """
        self.check_split(split)
        return self.ranked(context)


def _divided(text: str) -> tuple[str, str]:
    """The part of a prompt before the context, and the form of the part after it.

    Raises:
        UserError: when the context does not stand in it once, before everything that belongs to a question.
    """
    places = PLACES.findall(text)
    check_known("placeholder of a prompt", places, ("context", "question", "options"))
    if places[:1] != ["context"] or places.count("context") > 1:
        raise UserError(
            "A prompt has {context} once, before {question} and {options}, because a context is read once for all its "
            "questions: write it so."
        )
    head, _, tail = text.partition("{context}")
    return head, formatted(tail, {"question": "text", "options": "options"})


def _scores(metric: str) -> dict[str, Score]:
    """The measures of a metric by their names, that of the metric first."""
    from contextlab.benchmarks.metrics import qa

    if FUNCTION in metric:
        return own_scores(metric)
    if metric == "rouge-l":
        qa.rouge_l("", [""])  # refuses a missing package before anything is read
    scores = {
        "f1": ("f1", qa.f1),
        "exact": ("exact_match", qa.exact_match),
        "contains": ("contains", qa.contains),
        "contains-all": ("contains_all", qa.contains_all),
        "rouge-l": ("rouge_l", qa.rouge_l),
    }
    name, function = scores[metric]
    first = {name: _on_answers(function)}
    return first | {"f1": _on_answers(qa.f1), "exact_match": _on_answers(qa.exact_match)}


def _on_answers(function: Callable[[str, Sequence[str]], float]) -> Score:
    return lambda text, question: function(text, question.answers)


def _sample(choice: bool) -> tuple[Reading, ...]:
    """Generated stories with questions; the options are the answers of the same story."""
    readings = sample_readings(SAMPLE_STORIES, SAMPLE_WORDS, SAMPLE_SEED)
    if not choice:
        return readings
    return tuple(dataclasses.replace(reading, questions=tuple(_with_options(reading))) for reading in readings)


def _with_options(reading: Reading) -> Iterator[Question]:
    options = tuple(sorted({question.answers[0] for question in reading.questions}))
    return (dataclasses.replace(question, options=options) for question in reading.questions)
