"""A few questions about one text to several methods: for a look, before a benchmark measures a difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch

from contextlab import backbone as backbones
from contextlab import naming, registry
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.backbone.embedded import EMBEDDED
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import Wording, join
from contextlab.benchmarks.protocols.answers import ENDS, SHORT_ANSWER, QuestionProtocol, scored, stop_tokens, until
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError, short
from contextlab.harness.progress import Progress
from contextlab.harness.runner import seeded_example, warm_meter
from contextlab.harness.selection import BuiltMethod, built, labelled
from contextlab.harness.side_by_side import LOGPROB, MethodAnswers, SideBySide
from contextlab.method import AnyMethod, State
from contextlab.naming import NamedMethod

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from contextlab.backbone import Backbone

    AnyModel: TypeAlias = str | PreTrainedModel | PeftModel | Backbone

ID = "compare"


def compare(
    methods: str | AnyMethod | Sequence[str | AnyMethod],
    context: str,
    questions: str | Sequence[str | tuple[str, str]],
    *,
    backbone: AnyModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    prompt: Wording = "plain",
    tokens: int | None = None,
    max_new_tokens: int = SHORT_ANSWER,
    seed: int = 0,
    device: str | None = None,
    dtype: str | None = None,
    progress: bool | None = None,
) -> SideBySide:
    """Ask several methods the same questions about one text, and show their answers side by side.

    Every method reads the text once and answers all questions from that state, in the words of the task `squad`.
    Nothing is stored. A few questions show how methods answer; whether one is better is for `bench`.

    Args:
        methods: names as in `bench`, or methods that `load` returned.
        context: the text.
        questions: each alone, or with its right answer, whose log-probability is then shown too.
        backbone: of the methods that are given by name: a name, or a model as in `bench`; when None that of the first
            loaded method, or smollm2-135m.
        tokenizer: of a backbone given as a model.
        prompt: the wording of questions, as the setting of `squad`: `plain`, `chat` or `chat-question`.
        tokens: the most tokens read of the text, its last ones.
        max_new_tokens: the most tokens of an answer; it also ends at a line end.
        seed: of a method's random numbers.
        device: of a backbone given by name; the GPU, where there is one, when None.
        dtype: of a backbone given by name; bfloat16 on a GPU and float32 on a CPU when None.
        progress: whether to show progress; when None as a bar on a terminal or in a notebook, else as a line a minute.

    Raises:
        UserError: for a wrong name or setting, a text that a method cannot read as one, or no question.
    """
    listed = _questions(questions if isinstance(questions, list | tuple) else [questions])
    named = _named(methods if isinstance(methods, list | tuple) else [methods])
    if not isinstance(context, str):
        raise UserError(f"The context is of type {type(context).__name__}: give a text.")
    reading = Reading(ID, ID, context, listed)
    protocol = AskProtocol(prompt, Options(tokens=tokens), max_new_tokens)
    with Progress.on_stderr(progress) as bar:
        if backbone is None:
            backbone = _own_model(named)
        bar.loading(backbone if isinstance(backbone, str) else "model")
        model = backbones.resolve(backbone, tokenizer=tokenizer, device=device, dtype=dtype)
        on_models = [on_model for method in named for on_model in _built(method, model)]
        bar.begin(len(on_models), len(on_models))
        answered = []
        for method in on_models:
            for _ in bar.examples([reading], 0, method.label):
                answered.append(_answers(method, protocol, reading, seed))
    return SideBySide(listed, tuple(answered))


class AskProtocol(QuestionProtocol):
    """Read a context once, write an answer to every question, and score its right answer where it has one.

    The scoring is not part of the cost, which is that of a task with the same questions.
    """

    remedy: ClassVar[str] = "give a shorter text, keep its last tokens only with tokens="

    def __init__(self, prompt: Wording, options: Options, max_new_tokens: int) -> None:
        super().__init__(("document-question", "question"), options, (LOGPROB,), wording=prompt)
        self.max_new_tokens = max_new_tokens

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The question alone, then the right answer, if there is one."""
        space = " " if self.wording == "plain" else ""
        # An answer is written after all of the text, the white space at its end included.
        start = len(backbone.encode(text))
        answers = (backbone.encode(text + space + answer)[start:] for answer in question.answers)
        return [join(backbone, before, text)[1], *answers]

    def length(self, question: Question, sequences: list[list[int]]) -> int:
        """The question and the longest answer."""
        return len(sequences[0]) + max(self.max_new_tokens, *map(len, sequences[1:]), 0)

    def answer(
        self, meter: Meter, state: State, questions: Sequence[Question], sequences: Sequence[list[list[int]]]
    ) -> Iterator[dict[str, Any]]:
        """The written text, and the log-probability per token of the right answer."""
        backbone = meter.backbone
        prompts = [tokens for tokens, *_ in sequences]
        stop = stop_tokens(backbone)
        written = meter.generate("query", state, prompts, max_new_tokens=self.max_new_tokens, stop=stop)
        uncounted = Meter(meter.method, Ledger(backbone.device, counting=False))
        for tokens, (prompt, *answers) in zip(written, sequences, strict=True):
            logprobs = [float(scored(uncounted, state, prompt, [own])[0].double().mean()) for own in answers]
            yield {"prediction": until(backbone.decode(tokens), ENDS), LOGPROB: next(iter(logprobs), None)}


def _answers(built_method: BuiltMethod, protocol: AskProtocol, reading: Reading, seed: int) -> MethodAnswers:
    method = built_method.method
    with torch.set_grad_enabled(method.capabilities.needs_gradients):
        meter = warm_meter(method, seed, counting=True)
        with seeded_example(seed, reading.id, str(meter.backbone.device)):
            records = protocol.evaluate(meter, reading, reading)["questions"]
    measures = meter.take()
    answers = tuple(record["prediction"] for record in records)
    logprobs = tuple(record[LOGPROB] for record in records)
    return MethodAnswers(built_method.label, answers, logprobs, {**measures["cost"], "state": measures["state"]})


def _questions(questions: Sequence[Any]) -> tuple[Question, ...]:
    pairs = [tuple(item) if isinstance(item, list | tuple) else (item,) for item in questions]
    for pair in pairs:
        if len(pair) > 2 or not all(isinstance(part, str) and part.strip() for part in pair) or not pair:
            raise UserError(f"{short(repr(pair))} is no question: give a text, or a pair of a question and its answer.")
    if not pairs:
        raise UserError("There are no questions: give at least one.")
    return tuple(Question(str(number), question, tuple(answer)) for number, (question, *answer) in enumerate(pairs))


def _named(methods: Sequence[Any]) -> list[NamedMethod | AnyMethod]:
    """The methods by what names say, and those that are loaded already."""
    listed: list[NamedMethod | AnyMethod] = []
    for item in methods:
        if isinstance(item, str):
            listed += [meaning.with_settings(named.settings) for named, meaning in naming.methods(item)]
        elif hasattr(item, "capabilities"):
            listed.append(item)
        else:
            raise UserError(f"{short(repr(item))} is no method: give a name, or what contextlab.load returned.")
    if not listed:
        raise UserError("There are no methods: give at least one.")
    return listed


def _built(method: NamedMethod | AnyMethod, model: Backbone) -> list[BuiltMethod]:
    if isinstance(method, NamedMethod):
        return built([method.on(model)], model)
    return [labelled(_name(method), method)]


def _own_model(methods: Sequence[NamedMethod | AnyMethod]) -> AnyModel:
    """The model of the methods that are named, where none is given."""
    loaded = (method.backbone for method in methods if not isinstance(method, NamedMethod))
    return next(loaded, EMBEDDED)


def _name(method: AnyMethod) -> str:
    """The registered name of a method that is loaded; that of its class where it has none."""
    target = f"{type(method).__module__}:{type(method).__qualname__}"
    names = (name for name, source in registry.sources(registry.METHODS).items() if source == target)
    return next(names, type(method).__name__)
