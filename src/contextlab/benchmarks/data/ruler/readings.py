"""All samples of a split as readings: each as long as its limit allows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from contextlab.benchmarks.data import generated
from contextlab.benchmarks.data.ruler import extraction, variables
from contextlab.benchmarks.data.ruler.documents import DocumentCorpus, DocumentQuestion, DocumentSample
from contextlab.benchmarks.data.ruler.extraction import CommonWords, FrequentWords
from contextlab.benchmarks.data.ruler.needles import Needles
from contextlab.benchmarks.data.ruler.sizing import most_units
from contextlab.benchmarks.data.ruler.variables import Variables
from contextlab.benchmarks.data.ruler.variants import Sample, Variant, variant
from contextlab.benchmarks.data.ruler.words import generator
from contextlab.benchmarks.examples import Question, Reading
from contextlab.errors import UserError

PACKAGE = __name__.rpartition(".")[0]


@dataclasses.dataclass(frozen=True)
class Material:
    """The texts that samples are made of.

    Attributes:
        essay: sentences of the essay haystack; empty where no variant has it.
        corpora: by variant, documents with questions.
    """

    essay: Sequence[str] = ()
    corpora: Mapping[str, DocumentCorpus] = dataclasses.field(default_factory=dict)


class Samples(generated.ReadingGenerator):
    """The readings of some variants, in turns, so that the first ones are of all variants.

    Args:
        names: of the variants.
        tokens: the most tokens of a prompt and its answer.
        samples: of each variant.
        seed: of all that is drawn.
        haystack: of the variants with needles; "" for their own.
        material: the texts.
        count: tokens of a text.
    """

    modules = (
        *(f"{PACKAGE}.{name}" for name in ("documents", "extraction", "needles", "sizing", "variables", "variants")),
        *(f"{PACKAGE}.words", "contextlab.benchmarks.data.sample", "contextlab.benchmarks.data.phrases"),
    )

    def __init__(
        self,
        names: Sequence[str],
        tokens: int,
        samples: int,
        seed: int,
        haystack: str,
        material: Material,
        count: Callable[[str], int],
    ) -> None:
        self._variants = [variant(name) for name in names]
        self._tokens, self._samples, self._seed = tokens, samples, seed
        self._haystack, self._material, self._count = haystack, material, count

    def readings(self) -> Iterable[Reading]:
        """All readings.

        Raises:
            UserError: when a sample cannot be as short as it must be.
        """
        questions = {name: self._shuffled(name, corpus) for name, corpus in self._material.corpora.items()}
        for index in range(self._samples):
            for form in self._variants:
                yield self._reading(form, index, questions.get(form.name, iter(())))

    def _shuffled(self, name: str, corpus: DocumentCorpus) -> Iterator[DocumentQuestion]:
        """The questions of a variant in an order that is drawn."""
        order = list(corpus.questions)
        generator(self._seed, name, "questions").shuffle(order)
        return iter(order)

    def _reading(self, form: Variant, index: int, questions: Iterator[DocumentQuestion]) -> Reading:
        """The first of the possible samples that is short enough."""
        for sample in self._possible(form, f"{self._seed}/{form.name}/{index}", questions):
            length = functools.partial(self._length, form, sample)
            units = most_units(length, self._tokens, sample.least, sample.most)
            if units is not None:
                return self._as_reading(form, f"{form.name}/{index}", sample, units)
        advice = "raise tokens=, or lower samples=" if form.kind == "qa" else "raise tokens="
        raise UserError(f"{form.name} has no text of at most {self._tokens} tokens for its sample {index}: {advice}.")

    def _possible(self, form: Variant, identity: str, questions: Iterator[DocumentQuestion]) -> Iterator[Sample]:
        """Samples of a variant, the best first: with a worked example and without, or of one question after another."""
        if form.kind == "niah":
            haystack = self._haystack or form.args["type_haystack"]
            yield Needles(form, haystack, self._material.essay, identity, self._seed)
        elif form.kind == "variable_tracking":
            yield Variables(form, identity, before=variables.example(form, identity, self._count))
            yield Variables(form, identity)
        elif form.kind == "common_words_extraction":
            # With tokens of a byte even 4,096 of them are few.
            for limit in dict.fromkeys((self._tokens, min(self._tokens, extraction.SHORT - 1))):
                yield CommonWords(form, identity, limit, before=extraction.example(form, identity, limit))
                yield CommonWords(form, identity, limit)
        elif form.kind == "freq_words_extraction":
            yield FrequentWords(form, identity, self._tokens)
        else:
            for question in questions:
                yield DocumentSample(form, self._material.corpora[form.name], question, identity)

    def _length(self, form: Variant, sample: Sample, units: int) -> int:
        return self._count(sample.prompt(units).text) + form.new_tokens

    def _as_reading(self, form: Variant, identity: str, sample: Sample, units: int) -> Reading:
        prompt = sample.prompt(units)
        details = {"task": form.name, "length": self._length(form, sample, units), "units": units}
        question = Question(
            identity,
            prompt.question,
            prompt.answers,
            details=details,
            prefix=prompt.prefix,
            max_new_tokens=form.new_tokens,
        )
        return Reading(identity, identity, prompt.context, (question,))
