"""Examples side by side: what several of them ask of a method at one time is one call, with a row for each of them.

An example is evaluated as it is alone, in a greenlet of its own, up to a call of the method. When every example of the
batch has come to a call, calls of the same kind are made as one, and each example goes on with its row. The state that
a call returns stays whole: as long as the same examples ask again, no row is copied.

Legend: B rows, T tokens of a call, N candidates of a row, M tokens of the longest.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar

import torch
from greenlet import greenlet
from torch import Tensor

from contextlab import process, states
from contextlab.accounting.ledger import Ledger, Meter, Phase, ReadText, TotalCost
from contextlab.formula import FORK_BYTES
from contextlab.method import AnyMethod, Lengths, State

R = TypeVar("R")


class Unsuited(Exception):
    """What examples ask for cannot be done for rows of one state; the text says what."""


class Whole:
    """A state of all examples that made a call together."""

    def __init__(self, state: State) -> None:
        self.state = state


@dataclasses.dataclass(frozen=True)
class RowState(State):
    """The row of one example in a state of several: a value that only its `RowMeter` understands.

    Attributes:
        whole: the state.
        number: of the row.
    """

    whole: Whole
    number: int

    @classmethod
    def of_all(cls, state: State) -> list[RowState]:
        """The rows of a state."""
        whole = Whole(state)
        parts = zip(state.length_B.split(1), state.pending_BC.split(1), strict=True)
        return [cls(length_B, pending_BC, whole, number) for number, (length_B, pending_BC) in enumerate(parts)]

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Refused: only its meter understands it."""
        raise Unsuited("an example makes states of its own")

    def alone(self) -> State:
        """What a state of this text alone would hold."""
        return self.whole.state.row(self.number)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call that an example waits for.

    Attributes:
        kind: calls of one kind are made together.
        row: the example's state; None where the call begins one.
        argument: what the example gives.
    """

    kind: tuple[Hashable, ...]
    row: RowState | None
    argument: Any


Answer: TypeAlias = tuple[Any, TotalCost]
"""The result of a call for one example, and its share of the cost."""


class RowMeter(Meter):
    """The meter of one example of a batch: its calls are rows of the calls of all.

    FLOPs are those of the method's formula for this example alone, and so are the bytes of a state; seconds and energy
    are its share of a call by tokens.

    Args:
        method: the method.
        counting: whether FLOPs are counted.
    """

    def __init__(self, method: AnyMethod, *, counting: bool) -> None:
        super().__init__(method, Ledger(method.backbone.device, counting=False))
        self._counting = counting

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> State:
        """An empty row; costs nothing."""
        if batch_size != 1:
            raise Unsuited("an example begins states of several rows")
        state, _ = _ask(Call(("start",), None, ahead))
        self._texts.put(state, ReadText(self.method.formula(ahead)))
        return state  # type: ignore[no-any-return]

    def read(
        self, phase: Phase, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        """`Meter.read` of one row."""
        text, row = self._texts.of(state), _row_of(state)
        length = tokens_BT.shape[1] if lengths_B is None else int(lengths_B)
        answer, cost = _ask(Call(("read", phase, logprobs), row, (tokens_BT[0], length)))
        after, logprobs_BT = answer
        self._enter(phase, cost, text.read(length, logprobs=logprobs))
        self._texts.put(after, text.after(length))
        self._check_finite(logprobs_BT)
        return after, logprobs_BT

    def score(self, phase: Phase, state: State, candidates: Sequence[Sequence[int]]) -> Tensor:
        """`Meter.score` of one row."""
        logprobs_BNM, cost = _ask(Call(("score", phase), _row_of(state), candidates))
        self._enter(phase, cost, self._texts.of(state).score(candidates))
        self._check_finite(logprobs_BNM)
        return logprobs_BNM  # type: ignore[no-any-return]

    def generate(self, phase: Phase, state: State, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """`Meter.generate` of one row."""
        kind = ("generate", phase, json.dumps(options, sort_keys=True))
        written, cost = _ask(Call(kind, _row_of(state), prompts))
        self._enter(phase, cost, self._texts.of(state).generate(prompts, written, options["max_new_tokens"]))
        return written  # type: ignore[no-any-return]

    def keep(self, state: State) -> None:
        """Record the size that the example's state would have alone."""
        alone = _row_of(state).alone()
        self._texts.put(alone, self._texts.of(state))
        super().keep(alone)

    def _enter(self, phase: Phase, cost: TotalCost, flops: int | None) -> None:
        if self._counting and flops is None:
            raise Unsuited(f"no formula says what its calls cost in {phase}")
        counted = flops if self._counting else None
        self.ledger.enter(phase, dataclasses.replace(cost, flops=counted, flops_formula=flops))


def _ask(call: Call) -> Answer:
    """Wait until all examples of the batch have come to a call."""
    answer: Answer = greenlet.getcurrent().parent.switch(call)
    return answer


def _row_of(state: State) -> RowState:
    if not isinstance(state, RowState) or state.batch_size != 1:
        raise Unsuited("an example makes states of its own")
    return state


class _Side(Generic[R]):
    """One example under way.

    Args:
        evaluate: computes its result; its meter's calls lead back here.
        draws: its random numbers.
    """

    def __init__(self, evaluate: Callable[[], R], draws: process.RandomTurns) -> None:
        self._greenlet, self._draws = greenlet(evaluate), draws
        self._reached: Any = None

    def go_on(self, *answer: Answer) -> None:
        """Evaluate up to the next call, or to the end."""
        with self._draws.turn():
            self._reached = self._greenlet.switch(*answer)

    @property
    def call(self) -> Call | None:
        """The call that it waits for; None at the end."""
        return None if self._greenlet.dead else self._reached

    @property
    def result(self) -> R:
        """Its result, at the end."""
        result: R = self._reached
        return result

    def close(self) -> None:
        """Give up an example that has not come to its end."""
        if not self._greenlet.dead:
            self._greenlet.throw()


def evaluated(
    method: AnyMethod, examples: Sequence[tuple[Callable[[RowMeter], R], process.RandomTurns]], *, counting: bool
) -> list[R]:
    """The results of several examples.

    Args:
        method: whose rows are independent.
        examples: of each the function that evaluates it, and its random numbers.
        counting: whether FLOPs are counted.

    Raises:
        Unsuited: where they cannot be evaluated side by side.
    """
    device = str(method.backbone.device)
    sides = [_Side(_evaluation(evaluate, RowMeter(method, counting=counting)), draws) for evaluate, draws in examples]
    calls = _Calls(method)
    try:
        with process.seeded(0, device):
            before = process.generators(device)
            for side in sides:
                side.go_on()
            while waiting := [(side, side.call) for side in sides if side.call is not None]:
                answers = calls.answers([call for _, call in waiting])
                for (side, _), answer in zip(waiting, answers, strict=True):
                    side.go_on(answer)
            if process.generators(device) != before:
                raise Unsuited("the method draws random numbers")
    finally:
        for side in sides:
            side.close()
    return [side.result for side in sides]


def _evaluation(evaluate: Callable[[RowMeter], R], meter: RowMeter) -> Callable[[], R]:
    return lambda: evaluate(meter)


class _Calls:
    """Makes the calls that examples wait for."""

    def __init__(self, method: AnyMethod) -> None:
        self.method = method
        self.ledger = Ledger(method.backbone.device, counting=False)

    def answers(self, calls: Sequence[Call]) -> list[Answer]:
        """The answers, in the order of the calls."""
        answers: dict[int, Answer] = {}
        for kind in dict.fromkeys(call.kind for call in calls):
            of_kind = [number for number, call in enumerate(calls) if call.kind == kind]
            kind_answers = self._answers_of_kind(kind, [calls[number] for number in of_kind])
            answers |= dict(zip(of_kind, kind_answers, strict=True))
        return [answers[number] for number in range(len(calls))]

    def _answers_of_kind(self, kind: tuple[Any, ...], calls: Sequence[Call]) -> list[Answer]:
        name, *options = kind
        arguments = [call.argument for call in calls]
        if name == "start":
            states_of_rows = [self.method.start(1, ahead=ahead) for ahead in arguments]
            return [(row, TotalCost()) for row in RowState.of_all(states.joined(states_of_rows))]
        state = _joined([call.row for call in calls if call.row is not None])
        phase, *options = options
        if name == "read":
            return self._shared(phase, lambda: self._read(state, arguments, *options), [n for _, n in arguments])
        if name == "score":
            tokens = [sum(map(len, candidates)) for candidates in arguments]
            return self._shared(phase, lambda: self._scored(state, arguments), tokens)
        return self._shared(phase, lambda: self._written(state, arguments, json.loads(options[0])), None)

    def _shared(self, phase: Phase, make: Callable[[], list[Any]], tokens: list[int] | None) -> list[Answer]:
        """Results of a call, and the share of each row in its cost."""
        results = self.ledger.call(phase, make, tokens=0, kind="batch")
        cost = self.ledger.take()[phase]
        if tokens is None:
            tokens = [count for _, count in results]
            results = [result for result, _ in results]
        shares = [count / sum(tokens) if any(tokens) else 1 / len(tokens) for count in tokens]
        return [
            (result, TotalCost(None, None, cost.seconds * share, count, joules=_part(cost.joules, share)))
            for result, share, count in zip(results, shares, tokens, strict=True)
        ]

    def _read(self, state: State, texts: Sequence[tuple[Tensor, int]], logprobs: bool) -> list[Any]:
        tokens_BT = torch.nn.utils.rnn.pad_sequence([tokens_T for tokens_T, _ in texts], batch_first=True)
        lengths = [length for _, length in texts]
        level = min(lengths) == tokens_BT.shape[1]
        lengths_B = None if level else torch.tensor(lengths)
        after, logprobs_BT = self.method.read(state, tokens_BT, lengths_B, logprobs=logprobs)
        rows = RowState.of_all(after)
        if logprobs_BT is None:
            return [(row, None) for row in rows]
        return [(row, logprobs_BT[row.number, None, : len(texts[row.number][0])]) for row in rows]

    def _scored(self, state: State, candidates: Sequence[Sequence[Sequence[int]]]) -> list[Any]:
        logprobs_BNM = self.method.score_rows(state, candidates)
        longest = [max(map(len, row), default=0) for row in candidates]
        cut = zip(logprobs_BNM.split(1), candidates, longest, strict=True)
        return [logprobs_1NM[:, : len(row), :tokens] for logprobs_1NM, row, tokens in cut]

    def _written(
        self, state: State, prompts: Sequence[Sequence[Sequence[int]]], options: dict[str, Any]
    ) -> list[tuple[list[list[int]], int]]:
        """What follows every row's prompts, and its number of tokens; each prompt has a copy of its row."""
        pairs = [(number, prompt) for number, row in enumerate(prompts) for prompt in row]
        together = max(state.batch_size, FORK_BYTES * state.batch_size // max(state.nbytes, 1))
        written: list[list[int]] = []
        for begin in range(0, len(pairs), together):
            numbers, texts = zip(*pairs[begin : begin + together], strict=True)
            rows = state if [*numbers] == [*range(state.batch_size)] else state.index(numbers)
            written += self.method.generate(rows, texts, **options)
        continuations = iter(written)
        of_rows = [[next(continuations) for _ in row] for row in prompts]
        return [(of_row, sum(map(len, (*row, *of_row)))) for row, of_row in zip(prompts, of_rows, strict=True)]


def _joined(rows: Sequence[RowState]) -> State:
    """Rows as one state: the one that they are, where they are all of one."""
    whole, numbers = rows[0].whole, [row.number for row in rows]
    if any(row.whole is not whole for row in rows):
        return states.joined([row.alone() for row in rows])
    return whole.state if numbers == [*range(whole.state.batch_size)] else whole.state.index(numbers)


def _part(amount: float | None, share: float) -> float | None:
    return None if amount is None else amount * share
