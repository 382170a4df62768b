"""Reference answers that are scored instead of compared with a written one.

A model that writes few right answers still gives them probabilities, by which methods differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.protocols.answers import (
    NATS,
    PLAIN,
    AnswerProtocol,
    ContextForm,
    QuestionProtocol,
    continued,
    document_protocol,
    scored,
)
from contextlab.benchmarks.protocols.turns import reference
from contextlab.benchmarks.task import Answer, Measure, Options
from contextlab.errors import UserError
from contextlab.method import State

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone


class ReferenceProtocol(QuestionProtocol):
    """Score the first reference answer of every question: nats per token of the answer, the mean over questions.

    A question is read once before its answer, unless the method's capabilities say that reading a text in two calls
    changes its results.

    Raises:
        UserError: when the method's own answers should stay, for it writes none.
    """

    def __init__(
        self,
        prompts: tuple[str, str],
        options: Options,
        *,
        by: str | None = None,
        wording: Wording = "plain",
        form: ContextForm = PLAIN,
    ) -> None:
        if options.turns == "own":
            raise UserError("With answer=reference a method writes no answers of its own: use turns=gold.")
        super().__init__(prompts, options, (NATS,), by, wording=wording, form=form)
        self.measure = Measure(NATS, higher_is_better=False)

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question, then its answer with the white space between them.

        Raises:
            UserError: when the question has no reference answer.
        """
        answer = reference(question)
        if not answer:
            raise UserError(f"Question '{question.id}' has no reference answer: use answer=written, or add one.")
        space = "" if text[-1:].isspace() else " "
        return continued(backbone, before, text, [space + answer])

    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The question and its answer."""
        return sum(map(len, sequences))

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """Nats per token of the answer."""
        for question, (tokens, answer) in zip(questions, sequences, strict=True):
            logprobs_1M = scored(meter, state, tokens, [answer]).double().cpu()
            yield {"answer": reference(question), NATS: -float(logprobs_1M.mean())}


def answers_of_documents(
    options: Options, answer: Answer, by: str | None = None, wording: Wording = "plain"
) -> AnswerProtocol | ReferenceProtocol:
    """Questions about documents whose answers are written, or whose reference answers are scored."""
    if answer == "written":
        return document_protocol(options, by=by, wording=wording)
    return ReferenceProtocol(("document-question", "question"), options, by=by, wording=wording)
