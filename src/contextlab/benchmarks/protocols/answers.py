"""Questions about a context: answers are written and compared with references, or options are ranked.

Legend: N options, M tokens of the longest.
"""

from __future__ import annotations

import dataclasses
import functools
import string
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.metrics.estimates import proportion, ratio
from contextlab.benchmarks.prompts import Wording, between_turns, join, prompt, user_turn
from contextlab.benchmarks.protocols import turns
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.errors import UserError
from contextlab.method import State
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
LETTERS = string.ascii_uppercase
"""Names of options in a prompt."""
SHORT_ANSWER = 20
AT_ONCE = 64
"""Questions that are answered in one batch."""
BORDER = 32
"""Characters of the context that are tokenised again together with a question, since tokens may join both."""


Side = Literal["left", "right", "middle", "none"]
"""Where a text that is too long is cut."""


@dataclasses.dataclass(frozen=True)
class ContextForm:
    """How a context stands in a prompt.

    Attributes:
        head: text before it.
        separator: text between it and a question; when "", that is part of the prompts, which are texts and no names,
            and the context keeps the white space at its end.
        cut: the side that a longer text loses; `none` refuses it.
    """

    head: str = ""
    separator: str = SEPARATOR
    cut: Side = "left"

    def kept(self, tokens: list[int], most: int | None) -> list[int]:
        """The tokens of a text that are read.

        Raises:
            UserError: when there are more than may be, and none may be cut.
        """
        if self.cut == "none" and most is not None and len(tokens) > most:
            raise UserError(f"A text has {len(tokens)} tokens, more than tokens={most}: raise it, or choose cut=left.")
        return tokens if most is None else self.shortened(tokens, most)

    def shortened(self, tokens: list[int], most: int) -> list[int]:
        """At most so many tokens of another text."""
        if len(tokens) <= most:
            return tokens
        first = {"left": 0, "right": most, "middle": most // 2, "none": 0}[self.cut]
        return tokens[:first] + last(tokens, most - first)

    def after(self, context: str) -> str:
        """The text between a context, without white space at its end, and a question."""
        return self.separator or context[len(context.rstrip()) :]

    def end(self, context: str) -> str:
        """The characters at the end of what is read, without white space, that may be joined with a question."""
        return "" if self.cut == "right" else context.rstrip()[-BORDER:]


PLAIN = ContextForm()


class QuestionProtocol(Protocol):
    """Read a context once and answer all its questions from that one state, or in another mode (`options.turns`).

    An empty line separates context and question, and an answer that stays and the next question. Without a context, or
    with a method that reads none, a question has another prompt. `options.tokens` is the number of last tokens of a
    context that are read. A wrong context is cut from the left to the length of the own context; it may be shorter.

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
        form: how the context stands before the question.

    Attributes:
        remedy: the advice where a text is too long.
    """

    remedy: ClassVar[str] = "choose a shorter split, keep less with --tokens"

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
        form: ContextForm = PLAIN,
    ) -> None:
        self.over_works = over_works
        self.form = form
        self.wording: Wording = wording
        named = (bare, bare) if wording == "chat-question" else prompts
        self.after_context, self.alone = map(prompt, named) if form.separator else named
        self.prompt = "\n\n".join(dict.fromkeys((self.after_context, self.alone)))
        if wording != "plain":
            self.prompt += f"\n\nwording: {wording}"
        if form != PLAIN:
            self.prompt += f"\n\ncontext: {form}"
        if options.turns in turns.MULTI_TURN:
            self.prompt += f"\n\nturns: {options.turns}"
        self.options, self.measures = options, tuple(measures)
        self.measure = Measure(self.measures[0], higher_is_better=True, bounded=True)
        self.summary = summary or functools.partial(means, measures=self.measures, by=by)

    def prompt_on(self, backbone: Backbone) -> str:
        """With the chat template's text around a question and between turns, where it is used.

        Raises:
            UserError: when the backbone has no chat template, and one is asked for.
        """
        if self.wording == "plain":
            return self.prompt
        between = [between_turns(backbone)] if self.options.turns in turns.MULTI_TURN else []
        return "\n\n".join([self.prompt, *user_turn(backbone), *between])

    def evaluate(self, meter: Meter, example: Reading, other: Reading) -> dict[str, Any]:
        """Read one context and answer all its questions.

        Raises:
            UserError: when context, question and answer are longer than the method can read as one text.
        """
        own, context = self._contexts(meter.backbone, example, other)
        answers = turns.answers(self, meter, example, context)
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
            UserError: when the wording is a chat template, which only a backbone has, or there are turns before it.
        """
        if self.wording != "plain":
            raise UserError(f"A text in the words of prompt={self.wording} needs a backbone: leave prompt= out.")
        if self.options.turns in turns.MULTI_TURN:
            raise UserError(f"With turns={self.options.turns} no question has a text of its own: leave turns= out.")
        context = self.form.head + example.context.rstrip()
        return context + self._worded(example, question, bool(context), ("", ""))

    def choices(self, question: Question) -> list[str]:
        """The options of a question, as texts that continue it."""
        return [f" {option}" for option in question.options]

    @abstractmethod
    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The token sequences of one question with the wording `text`; `before` is the end of the context."""

    @abstractmethod
    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The most tokens of a question with its answer."""

    @abstractmethod
    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """The record of each question, with its measures."""

    def own_answer(self, record: dict[str, Any], question: Question) -> str:
        """The answer of the method in the record of a question, as a text."""
        return str(record["prediction"])

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Means over all questions, or the task's own metrics; and means of the first measure by turn."""
        return self.summary(records) | by_turn(records, self.measures[0], self.over_works)

    def quality(self, record: dict[str, Any]) -> float:
        """The mean of the first measure over the questions of a text."""
        return float(sum(entry[self.measures[0]] for entry in record["questions"]) / len(record["questions"]))

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """One part per question. The cluster is the detail `cluster` where questions have it, else the work."""
        names = [self.measures[0], *([NATS] if NATS in self.measures[1:] and not self.over_works else [])]
        return {name: question_parts([record], name, self.over_works) for name in names}

    def _contexts(self, backbone: Backbone, example: Reading, other: Reading) -> tuple[list[int], list[int]]:
        opening = (user_turn(backbone)[0] if self.wording == "chat" else "") + self.form.head
        before = backbone.encode(opening) if opening else []
        own = self.form.kept(backbone.encode(example.context.rstrip()), self.options.tokens)
        wrong = backbone.encode(other.context.rstrip()) if self.options.context == "wrong" else []
        wrong = self.form.shortened(wrong, len(own))
        read = {"own": own, "none": [], "wrong": wrong}[self.options.context]
        return before + own if own else [], before + read if read else []

    def sequences(
        self, meter: Meter, example: Reading, number: int, answer: str | None, context: bool
    ) -> list[list[int]]:
        """The token sequences of a question: after the context, or after an `answer` to the question before it.

        Args:
            meter: of the method.
            example: with the questions.
            number: of the question.
            answer: to the question before it, where both stay; a method that ignores what it has read sees neither.
            context: whether a context is read.
        """
        question, encode = example.questions[number], meter.backbone.encode
        if answer is None or not meter.capabilities.uses_context:
            return self._sequences(meter, example, question, context)
        before, text = self._next_turn(meter.backbone, example.questions[number - 1], answer, question, context)
        _, *options = self.tokenise(meter.backbone, "", text, question)
        text = text.rstrip() if options else text
        return [encode(before + text)[len(encode(before)) :], *options]

    def _next_turn(
        self, backbone: Backbone, earlier: Question, answer: str, question: Question, context: bool
    ) -> tuple[str, str]:
        """The end of an earlier question, and the text from its answer up to that of the next question."""
        chat = self.wording != "plain"
        closing = user_turn(backbone)[1] if chat else ""
        before, filled = (self._filled(question, context, closing) for question in (earlier, question))
        white = filled[: len(filled) - len(filled.lstrip())]
        between = between_turns(backbone) if chat else white or self.form.separator or SEPARATOR
        space = " " if answer and not before[-1:].isspace() else ""
        return before[-BORDER:], space + answer + between + filled.lstrip()

    def _sequences(self, meter: Meter, example: Reading, question: Question, context: bool) -> list[list[int]]:
        after = context and meter.capabilities.uses_context
        before = self.form.end(example.context) if after else ""
        turn = ("", "") if self.wording == "plain" else user_turn(meter.backbone)
        return self.tokenise(meter.backbone, before, self._worded(example, question, after, turn), question)

    def _worded(self, example: Reading, question: Question, after_context: bool, turn: tuple[str, str]) -> str:
        """The question in the prompt with or without a context; `turn` is the text of the chat template around it."""
        opening, closing = turn
        if after_context and self.wording != "chat-question":
            opening = self.form.after(example.context)
        return opening + self._filled(question, after_context, closing)

    def _filled(self, question: Question, after_context: bool, closing: str) -> str:
        """The form of a question with its text, options and the given beginning of its answer."""
        form = self.after_context if after_context else self.alone
        options = "\n".join(f"{_letters(number)}. {option}" for number, option in enumerate(question.options))
        return form.format(text=question.text, options=options) + closing + question.prefix


def _letters(number: int) -> str:
    """The letters of an option by its number from 0: A to Z, then AA, AB and so on."""
    before = _letters(number // len(LETTERS) - 1) if number >= len(LETTERS) else ""
    return before + LETTERS[number % len(LETTERS)]


class AnswerProtocol(QuestionProtocol):
    """Write an answer greedily up to a line end or `max_new_tokens`, and compare it with the references.

    Up to 64 questions are answered in one batch. Without `ends` an answer may have several lines.
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
        form: ContextForm = PLAIN,
        ends: Sequence[str] = ENDS,
    ) -> None:
        super().__init__(prompts, options, tuple(scores), by, summary, over_works, wording, bare, form)
        self.scores, self.max_new_tokens, self.ends = scores, max_new_tokens, ends
        if ends != ENDS:
            self.prompt += f"\n\nends of an answer: {list(ends)}"

    @property
    def functions(self) -> Sequence[Score]:
        """The scores."""
        return tuple(self.scores.values())

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question alone."""
        return [join(backbone, before, text)[1]]

    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The question and the longest answer."""
        return len(sequences[0]) + self.limit(question)

    def limit(self, question: Question) -> int:
        """The most tokens of an answer."""
        return question.max_new_tokens or self.max_new_tokens

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """The written text and its scores."""
        stop = stop_tokens(meter.backbone, lines=bool(self.ends))
        for start in range(0, len(questions), AT_ONCE):
            prompts = [tokens for (tokens,) in sequences[start : start + AT_ONCE]]
            together = questions[start : start + AT_ONCE]
            longest = max(map(self.limit, together))
            written = meter.generate("query", state, prompts, max_new_tokens=longest, stop=stop)
            for question, tokens in zip(together, written, strict=True):
                most = self.limit(question)
                # A greedy answer begins with every shorter one.
                answer = tokens[:most] if most < longest else tokens
                yield self.compare(meter.backbone.decode(answer), question)

    def compare(self, written: str, question: Question) -> dict[str, Any]:
        """The answer at the beginning of a written text, and its scores."""
        text = until(written, self.ends)
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
        form: ContextForm = PLAIN,
    ) -> None:
        super().__init__(prompts, options, ("accuracy", NATS), by, summary, over_works, wording, bare, form)

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question alone, then every option.

        Raises:
            UserError: when the right answer is not among the options.
        """
        if question.answers[0] not in question.options:
            raise UserError(
                f"The right answer of question '{question.id}' is not one of its options: correct the data."
            )
        return continued(backbone, before, text, self.choices(question))

    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The question and the longest option."""
        return len(sequences[0]) + max(map(len, sequences[1:]))

    def own_answer(self, record: dict[str, Any], question: Question) -> str:
        """The option that was chosen."""
        return str(question.options[record["prediction"]])

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """Nats per token of every option, the prediction and the right option."""
        for question, (tokens, *options) in zip(questions, sequences, strict=True):
            logprobs_NM = scored(meter, state, tokens, options).double().cpu()
            nats = [-float(row[: len(option)].mean()) for row, option in zip(logprobs_NM, options, strict=True)]
            prediction, right = nats.index(min(nats)), question.options.index(question.answers[0])
            yield {
                "prediction": prediction,
                "answer": right,
                "nats": nats,
                "accuracy": float(prediction == right),
                "nats_per_token": nats[right],
            }


def continued(backbone: Backbone, before: str, text: str, continuations: Sequence[str]) -> list[list[int]]:
    """The tokens of a question after the end of a context, then those of each of its continuations.

    White space at the end of the question is read with each continuation.
    """
    return [join(backbone, before, text.rstrip())[1], *(join(backbone, text, each)[1] for each in continuations)]


def scored(meter: Meter, state: State, tokens: list[int], options: list[list[int]]) -> Tensor:
    """`logprobs_NM` of options after a question, which is read once where the method's capabilities allow it."""
    if not meter.capabilities.exact_streaming or not tokens:
        return meter.score("query", state, [tokens + option for option in options])[0, :, len(tokens) :]
    after, _ = meter.read("query", state, pad([tokens], state.device)[0], logprobs=False)
    return meter.score("query", after, options)[0]


def document_protocol(options: Options, by: str | None = None, wording: Wording = "plain") -> AnswerProtocol:
    """Questions about documents, with the scores of SQuAD and of GenerativeAdapter (section 4.2)."""
    return AnswerProtocol(("document-question", "question"), options, SQUAD_SCORES, by=by, wording=wording)


def means(records: list[dict[str, Any]], measures: Sequence[str], by: str | None = None) -> dict[str, Metric]:
    """The mean of every measure over all questions, and of the first measure for each value of the detail `by`."""
    metrics = {name: _mean(name, question_parts(records, name)) for name in measures}
    if by is not None:
        values = [entry[by] for record in records for entry in record["questions"]]
        pairs = list(zip(values, question_parts(records, measures[0]), strict=True))
        for value in dict.fromkeys(values):
            metrics[f"{measures[0]}_{value}"] = _mean(measures[0], [part for group, part in pairs if group == value])
    return metrics


def by_turn(records: Sequence[dict[str, Any]], measure: str, over_works: bool = False) -> dict[str, Metric]:
    """The mean of a measure over the questions of each turn; empty where questions are no turns.

    Args:
        records: of the readings.
        measure: its name.
        over_works: whether works have equal weight, whatever the number of their questions.
    """
    parts: dict[str, list[Part]] = {}
    entries = (entry for record in records for entry in record["questions"])
    for entry, part in zip(entries, question_parts(records, measure, over_works), strict=True):
        if "turn" in entry:
            parts.setdefault(turns.group(entry["turn"]), []).append(part)
    ordered = sorted(parts, key=lambda name: int(name.partition("-")[0]))
    return {f"{measure}_turn_{name}": _mean(measure, parts[name]) for name in ordered}


def _mean(measure: str, parts: list[Part]) -> Metric:
    """The mean over questions: of nats, or of numbers between 0 and 1."""
    return ratio(parts) if measure == NATS else proportion(parts)


def question_parts(records: Sequence[dict[str, Any]], measure: str, over_works: bool = False) -> list[Part]:
    """A measure of every question, in the cluster of its detail `cluster`, else its work, and its detail `stratum`.

    Args:
        records: of the readings.
        measure: its name.
        over_works: whether works have equal weight, whatever the number of their questions.
    """
    return [
        Part(entry[measure], 1.0, str(entry.get("cluster", record["work"])), _stratum(record, entry, over_works))
        for record in records
        for entry in record["questions"]
    ]


def _stratum(record: dict[str, Any], entry: dict[str, Any], over_works: bool) -> str:
    return record["work"] if over_works else str(entry.get("stratum", ""))


def stop_tokens(backbone: Backbone, lines: bool = True) -> tuple[int, ...]:
    """The tokenizer's special tokens, and those that consist only of line ends."""
    tokens = set(backbone.tokenizer.all_special_ids)
    for end in ("\n", "\n\n", "\n\n\n") if lines else ():
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


def until(text: str, ends: Sequence[str]) -> str:
    """The answer at the beginning of a written text, up to the first of these ends."""
    for end in ends:
        text = text.partition(end)[0]
    return text.strip()


SQUAD_SCORES: dict[str, Score] = {
    "f1": lambda text, question: qa_metrics.f1(text, question.answers),
    "exact_match": lambda text, question: qa_metrics.exact_match(text, question.answers),
    "f1_shortest": lambda text, question: qa_metrics.f1(text, qa_metrics.shortest(question.answers)),
    "exact_match_shortest": lambda text, question: qa_metrics.exact_match(text, qa_metrics.shortest(question.answers)),
}
