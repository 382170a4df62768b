"""Settings that several tasks have."""

from __future__ import annotations

from typing import Annotated

import pydantic

from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.task import SCORED, Answer, Target, TurnMode
from contextlab.config import Config


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class PerplexityConfig(Config):
    """How much of a document is read.

    Attributes:
        history: tokens read before the scored ones; without it the whole document is scored.
        tokens: the most tokens read of a text, its first ones; without it all.
        begin: tokens of a document in front of the history, which are left out, as a table of contents.
        scored: tokens scored after a history.
        target: what is scored after it: `completion`, the text that follows; or `reconstruction`, the end of the
            history once more, without its first token, which nothing announces.
    """

    history: pydantic.PositiveInt | None = None
    tokens: pydantic.PositiveInt | None = None
    begin: pydantic.NonNegativeInt = 0
    scored: Annotated[int, pydantic.Field(ge=2)] = SCORED
    target: Target = "completion"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ContextConfig(Config):
    """How much is read before a question.

    Attributes:
        tokens: the most tokens read of a text, its last ones; without it all.
    """

    tokens: pydantic.PositiveInt | None = None


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TurnsConfig(ContextConfig):
    """What is read before each of several questions.

    Attributes:
        turns: `requests`: the context, read once for all questions; `gold`: also the questions before with their
            reference answers; `own`: the same with the model's own answers; `prompts`: the context, read again for
            every question.
    """

    turns: TurnMode = "requests"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class QuestionConfig(TurnsConfig):
    """The wording of questions.

    Attributes:
        prompt: `plain` text; `chat`: context, instruction and question as one turn of the user; `chat-question`: the
            context as plain text, and after it the bare question as a turn of the user.
    """

    prompt: Wording = "plain"


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class AnswerConfig(QuestionConfig):
    """What of an answer is measured.

    Attributes:
        answer: `written` by the method and compared with the references; or the first `reference`, of which the nats
            per token are measured.
    """

    answer: Answer = "written"
