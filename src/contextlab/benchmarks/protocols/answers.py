"""Questions about a text that is read once: answers are written and compared with references, or options are ranked.

Legend: N options, M tokens of the longest.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.metrics.estimates import proportion, ratio
from contextlab.benchmarks.prompts import Wording, join, prompt, user_turn
from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.errors import UserError
from contextlab.method import Lengths, State
from contextlab.writing import pad

if TYPE_CHECKING:
    from torch import Tensor

    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone

Score = Callable[[str, Question], float]
MetricsOf = Callable[[list[dict[str, Any]]], dict[str, Metric]]

NATS = "nats_per_token"
SEPARATOR = "\n\n"
ENDS = ("\n", "Question:")
SHORT_ANSWER = 20
AT_ONCE = 64
"""Questions that are answered in one batch."""
BORDER = 32
"""Characters of the context that are tokenised again together with a question, since tokens may join both."""


class QuestionProtocol(Protocol):
    """Read a context once and answer all its questions from that one state.

    An empty line separates context and question. Without a context, or with a method that reads none, a question has
    another prompt. `options.tokens` is the number of last tokens of a context that are read. A wrong context is cut
    from the left to the length of the own context; it may be shorter.

    Args:
        prompts: for a question after a context and for one alone: names of prompt files, or texts with `{text}`.
        options: of the run.
        measures: names of the numbers that every question has, between 0 and 1 except for nats; the first is the
            quality.
        by: the detail of a question; the first measure is also reported for each of its values.
        summary: computes the metrics from all records; the measures' means over all questions when None.
        over_works: whether that summary's first metric is the mean over works of the means over their questions.
        wording: whether context and question are plain text or use the backbone's chat template.
        bare: name of the prompt file for a question that is a separate turn.
    """

    def __init__(
        self,
        prompts: tuple[str, str],
        options: Options,
        measures: Sequence[str],
        by: str | None = None,
        summary: MetricsOf | None = None,
        over_works: bool = False,
        wording: Wording = "plain",
        bare: str = "bare-question",
    ) -> None:
        self.over_works = over_works
        self.wording: Wording = wording
        self.after_context, self.alone = (prompt(bare if wording == "chat-question" else name) for name in prompts)
        self.prompt = "\n\n".join(dict.fromkeys((self.after_context, self.alone)))
        if wording != "plain":
            self.prompt += f"\n\nwording: {wording}"
        self.options, self.measures = options, tuple(measures)
        self.measure = Measure(self.measures[0], higher_is_better=True, bounded=True)
        self.summary = summary or functools.partial(means, measures=self.measures, by=by)

    def evaluate(self, meter: Meter, example: Reading, other: Reading) -> dict[str, Any]:
        """Read one context and answer all its questions.

        Raises:
            UserError: when context, question and answer are longer than the method can read as one text.
        """
        own, context = self._contexts(meter.backbone, example, other)
        sequences = [self._sequences(meter, example, question, bool(context)) for question in example.questions]
        ahead = Lengths(len(context), max(map(self.length, sequences)))
        check_fits(meter, ahead.context + ahead.question, "choose a shorter split, keep less with --tokens")
        state = contextualize(meter, context, ahead)
        answers = self.answer(meter, state, example.questions, sequences)
        return {
            "id": example.id,
            "work": example.work,
            "context_tokens": len(context),
            "own_context_tokens": len(own),
            "questions": [
                {"id": question.id, **_details(meter.backbone, example, question), **answer}
                for question, answer in zip(example.questions, answers, strict=True)
            ],
        }

    def whole(self, example: Reading, question: Question) -> str:
        """The own context and the question as one plain text: everything that comes before the answer.

        Raises:
            UserError: when the wording is a chat template, which only a backbone has.
        """
        if self.wording != "plain":
            raise UserError(f"A text in the words of prompt={self.wording} needs a backbone: leave prompt= out.")
        context = example.context.rstrip()
        return context + self._worded(question, bool(context), ("", ""))

    def choices(self, question: Question) -> list[str]:
        """The options of a question, as texts that continue it."""
        return [f" {option}" for option in question.options]

    @abstractmethod
    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The token sequences of one question with the wording `text`; `before` is the end of the context."""

    @abstractmethod
    def length(self, sequences: list[list[int]]) -> int:
        """The most tokens of a question with its answer."""

    @abstractmethod
    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """The record of each question, with its measures."""

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Means over all questions, or the task's own metrics."""
        return self.summary(records)

    def quality(self, record: dict[str, Any]) -> float:
        """The mean of the first measure over the questions of a text: higher is better."""
        return float(sum(entry[self.measures[0]] for entry in record["questions"]) / len(record["questions"]))

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """One part per question. The cluster is the detail `cluster` where questions have it, else the work."""
        names = [self.measures[0], *([NATS] if NATS in self.measures[1:] and not self.over_works else [])]
        return {name: question_parts([record], name, self.over_works) for name in names}

    def _contexts(self, backbone: Backbone, example: Reading, other: Reading) -> tuple[list[int], list[int]]:
        opening = user_turn(backbone)[0] if self.wording == "chat" else ""
        before = backbone.encode(opening) if opening else []
        own = last(backbone.encode(example.context.rstrip()), self.options.tokens)
        wrong = last(backbone.encode(other.context.rstrip()), len(own)) if self.options.context == "wrong" else []
        read = {"own": own, "none": [], "wrong": wrong}[self.options.context]
        return before + own if own else [], before + read if read else []

    def _sequences(self, meter: Meter, example: Reading, question: Question, context: bool) -> list[list[int]]:
        after = context and meter.capabilities.uses_context
        before = example.context.rstrip()[-BORDER:] if after else ""
        turn = ("", "") if self.wording == "plain" else user_turn(meter.backbone)
        return self.tokenise(meter.backbone, before, self._worded(question, after, turn), question)

    def _worded(self, question: Question, after_context: bool, turn: tuple[str, str]) -> str:
        """The question in the prompt with or without a context; `turn` is the text of the chat template around it."""
        opening, closing = turn
        form = self.after_context if after_context else self.alone
        if after_context and self.wording != "chat-question":
            opening = SEPARATOR
        return opening + form.format(text=question.text) + closing


class AnswerProtocol(QuestionProtocol):
    """Write an answer greedily up to a line end or `max_new_tokens`, and compare it with the references.

    Up to 64 questions are answered in one batch.
    """

    def __init__(
        self,
        prompts: tuple[str, str],
        options: Options,
        scores: Mapping[str, Score],
        *,
        max_new_tokens: int = SHORT_ANSWER,
        by: str | None = None,
        summary: MetricsOf | None = None,
        over_works: bool = False,
        wording: Wording = "plain",
        bare: str = "bare-question",
    ) -> None:
        super().__init__(prompts, options, tuple(scores), by, summary, over_works, wording, bare)
        self.scores, self.max_new_tokens = scores, max_new_tokens

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question alone."""
        return [join(backbone, before, text)[1]]

    def length(self, sequences: list[list[int]]) -> int:
        """The question and the longest answer."""
        return len(sequences[0]) + self.max_new_tokens

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """The written text and its scores."""
        stop = stop_tokens(meter.backbone)
        for start in range(0, len(questions), AT_ONCE):
            prompts = [tokens for (tokens,) in sequences[start : start + AT_ONCE]]
            written = meter.generate("query", state, prompts, max_new_tokens=self.max_new_tokens, stop=stop)
            for question, tokens in zip(questions[start : start + AT_ONCE], written, strict=True):
                yield self.compare(meter.backbone.decode(tokens), question)

    def compare(self, written: str, question: Question) -> dict[str, Any]:
        """The answer at the beginning of a written text, and its scores."""
        text = _until(written)
        return {"prediction": text, **{name: score(text, question) for name, score in self.scores.items()}}


class RankProtocol(QuestionProtocol):
    """Predict the option with the lowest perplexity per token after the question, as MetaICL does.

    A question is read once for all its options, unless the method's capabilities say that reading a text in two calls
    changes its results.
    """

    def __init__(
        self,
        prompts: tuple[str, str],
        options: Options,
        *,
        by: str | None = None,
        summary: MetricsOf | None = None,
        over_works: bool = False,
        wording: Wording = "plain",
        bare: str = "bare-question",
    ) -> None:
        super().__init__(prompts, options, ("accuracy", NATS), by, summary, over_works, wording, bare)

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question alone, then every option.

        Raises:
            UserError: when the right answer is not among the options.
        """
        if question.answers[0] not in question.options:
            raise UserError(
                f"The right answer of question '{question.id}' is not one of its options: correct the data."
            )
        options = (join(backbone, text, choice)[1] for choice in self.choices(question))
        return [join(backbone, before, text)[1], *options]

    def length(self, sequences: list[list[int]]) -> int:
        """The question and the longest option."""
        return len(sequences[0]) + max(map(len, sequences[1:]))

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """Nats per token of every option, the prediction and the right option."""
        for question, (tokens, *options) in zip(questions, sequences, strict=True):
            logprobs_NM = self._scored(meter, state, tokens, options).double().cpu()
            nats = [-float(row[: len(option)].mean()) for row, option in zip(logprobs_NM, options, strict=True)]
            prediction, right = nats.index(min(nats)), question.options.index(question.answers[0])
            yield {
                "prediction": prediction,
                "answer": right,
                "nats": nats,
                "accuracy": float(prediction == right),
                "nats_per_token": nats[right],
            }

    def _scored(self, meter: Meter, state: State, tokens: list[int], options: list[list[int]]) -> Tensor:
        if not meter.capabilities.exact_streaming:
            return meter.score("query", state, [tokens + option for option in options])[0, :, len(tokens) :]
        after, _ = meter.read("query", state, pad([tokens], state.length_B.device)[0], logprobs=False)
        return meter.score("query", after, options)[0]


def document_protocol(options: Options, by: str | None = None, wording: Wording = "plain") -> AnswerProtocol:
    """Questions about documents, with the scores of SQuAD and of GenerativeAdapter (section 4.2)."""
    return AnswerProtocol(("document-question", "question"), options, SQUAD_SCORES, by=by, wording=wording)


def means(records: list[dict[str, Any]], measures: Sequence[str], by: str | None = None) -> dict[str, Metric]:
    """The mean of every measure over all questions, and of the first measure for each value of the detail `by`."""
    metrics = {}
    for name in measures:
        parts = question_parts(records, name)
        metrics[name] = ratio(parts) if name == NATS else proportion(parts)
    if by is not None:
        values = [entry[by] for record in records for entry in record["questions"]]
        pairs = list(zip(values, question_parts(records, measures[0]), strict=True))
        for value in dict.fromkeys(values):
            metrics[f"{measures[0]}_{value}"] = proportion([part for group, part in pairs if group == value])
    return metrics


def question_parts(records: Sequence[dict[str, Any]], measure: str, over_works: bool = False) -> list[Part]:
    """A measure of every question; its cluster is the detail `cluster`, else the work.

    Args:
        records: of the readings.
        measure: its name.
        over_works: whether works have equal weight, whatever the number of their questions.
    """
    return [
        Part(entry[measure], 1.0, str(entry.get("cluster", record["work"])), record["work"] if over_works else "")
        for record in records
        for entry in record["questions"]
    ]


def stop_tokens(backbone: Backbone) -> tuple[int, ...]:
    """Tokens that consist only of line ends, and the tokenizer's special tokens."""
    tokens = set(backbone.tokenizer.all_special_ids)
    for end in ("\n", "\n\n", "\n\n\n"):
        token = backbone.encode(end)[-1]
        if backbone.decode([token]) == end:
            tokens.add(token)
    return tuple(sorted(tokens))


def last(tokens: list[int], count: int | None) -> list[int]:
    """The last `count` tokens; all when None."""
    return tokens if count is None else tokens[max(len(tokens) - count, 0) :]


def _details(backbone: Backbone, example: Reading, question: Question) -> dict[str, Any]:
    if question.place is None:
        return dict(question.details)
    return {**question.details, "distance": len(backbone.encode(example.context[question.place :]))}


def _until(text: str) -> str:
    for end in ENDS:
        text = text.partition(end)[0]
    return text.strip()


SQUAD_SCORES: dict[str, Score] = {
    "f1": lambda text, question: qa_metrics.f1(text, question.answers),
    "exact_match": lambda text, question: qa_metrics.exact_match(text, question.answers),
    "f1_shortest": lambda text, question: qa_metrics.f1(text, qa_metrics.shortest(question.answers)),
    "exact_match_shortest": lambda text, question: qa_metrics.exact_match(text, qa_metrics.shortest(question.answers)),
}
