"""Several questions about a context: what a method has read when it is asked one of them, as in SCBench.

* `requests` (SCBench's multi-request): the context is read once, and every question follows it alone.
* `gold` and `own` (multi-turn): a question follows the context and all turns before it, a turn being a question with
  its answer: the reference answer (`gold`, SCBench's default) or what the method has answered (`own`).
* `prompts`: as `requests`, but the context is read again for every question, as if each came with its own prompt.

A method is told the same lengths in `requests` and in `prompts`, so that these differ in nothing but their cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.method import Lengths, State
from contextlab.writing import pad

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.benchmarks.examples import Question, Reading
    from contextlab.benchmarks.task import Options, TurnMode

Answers = Iterator[dict[str, Any]]
MULTI_TURN = ("gold", "own")
"""Modes in which questions stay in the context with their answers."""
APART = 8
"""The first turns, each of which has a metric; later ones share theirs."""


class Asks(Protocol):
    """What a protocol with questions does for every mode."""

    remedy: ClassVar[str]
    options: Options

    def sequences(
        self, meter: Meter, example: Reading, number: int, answer: str | None, context: bool
    ) -> list[list[int]]:
        """The token sequences of a question: after the context, or after an `answer` to the question before it."""

    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The most tokens of a question with its answer."""

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Answers:
        """The record of each question, with its measures."""

    def own_answer(self, record: dict[str, Any], question: Question) -> str:
        """The answer of the method in the record of a question, as a text."""


def answers(protocol: Asks, meter: Meter, example: Reading, context: list[int]) -> Answers:
    """The record of every question of a reading, in the protocol's mode.

    Args:
        protocol: that asks.
        meter: of the method.
        example: the reading.
        context: the tokens that are read before the questions.

    Raises:
        UserError: when a text is longer than the method can read as one.
    """
    return MODES[protocol.options.turns](protocol, meter, example, context)


def _requests(protocol: Asks, meter: Meter, example: Reading, context: list[int]) -> Answers:
    sequences, ahead = _apart(protocol, meter, example, context)
    state = contextualize(meter, context, ahead)
    yield from protocol.answer(meter, state, example.questions, sequences)


def _prompts(protocol: Asks, meter: Meter, example: Reading, context: list[int]) -> Answers:
    sequences, ahead = _apart(protocol, meter, example, context)
    for question, tokens in zip(example.questions, sequences, strict=True):
        state = contextualize(meter, context, ahead)
        yield from protocol.answer(meter, state, [question], [tokens])


def _apart(protocol: Asks, meter: Meter, example: Reading, context: list[int]) -> tuple[list[list[list[int]]], Lengths]:
    """The token sequences of all questions, each after the context, and the lengths of context and longest question."""
    numbers = range(len(example.questions))
    sequences = [protocol.sequences(meter, example, number, None, bool(context)) for number in numbers]
    ahead = Lengths(len(context), max(map(protocol.length, example.questions, sequences)))
    check_fits(meter, ahead.context + ahead.question, protocol.remedy)
    return sequences, ahead


def _multi_turn(protocol: Asks, meter: Meter, example: Reading, context: list[int]) -> Answers:
    ahead = Lengths(len(context), _longest(protocol, meter, example, bool(context)))
    check_fits(meter, ahead.context + ahead.question, protocol.remedy)
    state = contextualize(meter, context, ahead)
    answer, before = None, len(context)
    for number, question in enumerate(example.questions):
        tokens, *options = protocol.sequences(meter, example, number, answer, bool(context))
        # Own answers are encoded again, which may take more tokens than they were written with.
        check_fits(meter, before + protocol.length(question, [tokens, *options]), protocol.remedy)
        answering, unread = state, tokens
        if number + 1 < len(example.questions):
            state, _ = meter.read("query", state, pad([tokens], state.device)[0], logprobs=False)
            meter.keep(state)
            if meter.capabilities.exact_streaming:
                answering, unread = state, []
        (record,) = protocol.answer(meter, answering, [question], [[unread, *options]])
        yield {"turn": number + 1, **record}
        own = protocol.options.turns == "own"
        answer = protocol.own_answer(record, question) if own else reference(question)
        before += len(tokens)


def _longest(protocol: Asks, meter: Meter, example: Reading, context: bool) -> int:
    """The most tokens of all turns: with their reference answers, or with the longest that may be written."""
    longest, before, answer = 0, 0, None
    for number, question in enumerate(example.questions):
        sequences = protocol.sequences(meter, example, number, answer, context)
        longest = max(longest, before + protocol.length(question, sequences))
        own = protocol.options.turns == "own"
        before, answer = (longest, "") if own else (before + len(sequences[0]), reference(question))
    return longest


MODES: dict[TurnMode, Callable[[Asks, Meter, Reading, list[int]], Answers]] = {
    "requests": _requests,
    "gold": _multi_turn,
    "own": _multi_turn,
    "prompts": _prompts,
}


def reference(question: Question) -> str:
    """The first right answer of a question."""
    return question.answers[0].strip() if question.answers else ""


def group(turn: int) -> str:
    """The name of the turns that share a metric with this one: itself, or 9-16, 17-32, and so on."""
    last = APART
    while last < turn:
        last *= 2
    return f"{turn}" if turn <= APART else f"{last // 2 + 1}-{last}"
