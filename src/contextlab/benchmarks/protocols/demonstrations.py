"""Classification after demonstrations that are read once for many texts.

Legend: N candidates, M tokens of the longest, C classes.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch

from contextlab.benchmarks.examples import Block, Labelled, Template
from contextlab.benchmarks.metrics.estimates import macro_f1, proportion, ratio
from contextlab.benchmarks.prompts import join
from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.method import Lengths, State

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter


Choose = Literal["random", "topk"]
"""Demonstrations are drawn at random, or are the most similar training texts of every text."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Which demonstrations are read.

    Attributes:
        k: how many.
        memory: how many more are read before them.
        choose: at random, or the most similar texts.
    """

    k: int
    memory: int = 0
    choose: Choose = "random"


class IclProtocol(Protocol):
    """Read demonstrations, then classify every text of a block from that state.

    Random demonstrations are drawn without replacement from the training texts that are not in the block. The draw
    depends on Python's random state, which the runner sets from the seed and the block's id, and not on k: the first
    demonstrations are the same for every k. Those in memory are drawn in the same way but independently of them, so
    that a text may be read twice, as in LongMem's released script. The most similar texts are those of
    `Similar`, the most similar one last, directly before the text; they are read separately for every text.

    `template` scores the whole filled template of every class (EVALM, equations 1 and 2), `label` only the label in
    it, both without normalising by length. `greedy` writes one token, which is right when it is not blank and the label
    begins with it (LongMem's released script).

    The control `none` leaves the demonstrations out; with `wrong` each of them has the label of the next class.
    """

    measure = Measure("accuracy", higher_is_better=True, bounded=True)

    def __init__(self, template: Template, draws: Draws, options: Options) -> None:
        self.template, self.draws, self.options = template, draws, options
        labels = " | ".join(" / ".join(words) for words in template.labels)
        shown = f"{template.instruction}{template.form}\nseparator: {template.separator!r}\nlabels: {labels}"
        self.prompt = f"{shown}\nscoring: {template.scoring}"

    def evaluate(self, meter: Meter, example: Block, other: Block) -> dict[str, Any]:
        """Classify the texts of one block.

        Raises:
            UserError: when the prompt is longer than the method can read as one text.
        """
        answers: list[dict[str, Any]] = []
        demonstrations, context_tokens = [], 0
        for shown, items in self.draw(example):
            tokens = meter.backbone.encode(self.context(shown).rstrip())
            tail = self.context(shown[-1:])
            candidates = [self._tokens(meter, tail, item) for item in items]
            ahead = Lengths(len(tokens), max(len(candidate) for option in candidates for candidate, _ in option))
            check_fits(meter, ahead.context + ahead.question, "lower k")
            state = contextualize(meter, tokens, ahead)
            answers += self._answers(meter, state, items, candidates)
            demonstrations.append([demonstration.id for demonstration in shown])
            context_tokens += len(tokens)
        return {
            "id": example.id,
            "answers": answers,
            "demonstrations": demonstrations,
            "context_tokens": context_tokens,
        }

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Accuracy; with `template` and `label` also macro F1 and the nats of the true class among the classes."""
        metrics = {"accuracy": proportion([part for record in records for part in self.parts(record)["accuracy"]])}
        if self.template.scoring != "greedy":
            answers = [(self._cluster(record, answer), answer) for record in records for answer in record["answers"]]
            labels, predictions = ([answer[name] for _, answer in answers] for name in ("answer", "prediction"))
            metrics["macro_f1"] = macro_f1(labels, predictions, [cluster for cluster, _ in answers])
            true = [Part(answer["nats"][answer["answer"]], 1.0, cluster) for cluster, answer in answers]
            metrics["nats_per_label"] = ratio(true)
        return metrics

    def quality(self, record: dict[str, Any]) -> float:
        """The share of right answers in a block: higher is better."""
        return float(sum(answer["correct"] for answer in record["answers"]) / len(record["answers"]))

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """The texts after the same demonstrations are a cluster."""
        answers = record["answers"]
        return {"accuracy": [Part(float(answer["correct"]), 1.0, self._cluster(record, answer)) for answer in answers]}

    def _cluster(self, record: dict[str, Any], answer: dict[str, Any]) -> str:
        alone = len(record["demonstrations"]) == len(record["answers"]) or not any(record["demonstrations"])
        return str(answer["id"] if alone else record["id"])

    def draw(self, block: Block) -> Iterator[tuple[Sequence[Labelled], Sequence[Labelled]]]:
        """Demonstrations, and the texts to classify after them."""
        draws = self.draws
        if self.options.context == "none" or not draws.k + draws.memory:
            yield (), block.items
        elif draws.choose == "random":
            last, first = _shuffled(block), _shuffled(block)
            yield first[: draws.memory] + last[: draws.k], block.items
        else:
            for item in block.items:
                yield _most_similar(block.train, item, draws.k), (item,)

    def context(self, shown: Sequence[Labelled]) -> str:
        """The text of demonstrations."""
        form, labels, shift = self.template.form, self.template.labels, self.options.context == "wrong"
        texts = [
            form.format(text=demonstration.text, label=labels[(demonstration.label + shift) % len(labels)][0])
            for demonstration in shown
        ]
        return self.template.instruction + "".join(text + self.template.separator for text in texts)

    def question(self, item: Labelled) -> str:
        """The text before the choices: the template up to the label; empty where the whole template is scored."""
        before = "" if self.template.scoring == "template" else self.template.form.partition("{label}")[0]
        return before.format(text=item.text)

    def choices(self, item: Labelled) -> list[str]:
        """The candidates after context and question: one for every label word of every class."""
        form = self.template.form if self.template.scoring == "template" else "{label}"
        return [form.format(text=item.text, label=word) for words in self.template.labels for word in words]

    def _tokens(self, meter: Meter, tail: str, item: Labelled) -> list[tuple[list[int], int]]:
        """The tokens after the demonstrations, for every choice, and how many of the last ones are scored.

        Only the last demonstration, the tail, is tokenised again.
        """
        question, backbone = self.question(item), meter.backbone
        if self.template.scoring == "greedy":
            return [(join(backbone, tail, question.rstrip())[1], 0)]
        pairs = (
            (join(backbone, tail, question + choice)[1], join(backbone, tail + question, choice)[1])
            for choice in self.choices(item)
        )
        return [(whole, len(scored)) for whole, scored in pairs]

    def _answers(
        self,
        meter: Meter,
        state: State,
        items: Sequence[Labelled],
        candidates: Sequence[Sequence[tuple[list[int], int]]],
    ) -> Iterator[dict[str, Any]]:
        if self.template.scoring != "greedy":
            return (self._scored(meter, state, *pair) for pair in zip(items, candidates, strict=True))
        prompts = [tokens for ((tokens, _),) in candidates]
        written = meter.generate("query", state, prompts, max_new_tokens=1)
        return (self._written(item, meter.backbone.decode(answer)) for item, answer in zip(items, written, strict=True))

    def _written(self, item: Labelled, text: str) -> dict[str, Any]:
        written = text.strip()
        matches = [any(word.startswith(written) for word in words) for words in self.template.labels]
        return {
            "id": item.id,
            "answer": item.label,
            "written": written,
            "correct": bool(written) and matches[item.label],
        }

    def _scored(
        self, meter: Meter, state: State, item: Labelled, candidates: Sequence[tuple[list[int], int]]
    ) -> dict[str, Any]:
        logprobs_NM = meter.score("query", state, [tokens for tokens, _ in candidates])[0].double().cpu()
        sums = [
            row[len(tokens) - scored : len(tokens)].sum()
            for row, (tokens, scored) in zip(logprobs_NM, candidates, strict=True)
        ]
        classes = torch.stack(sums).split([len(words) for words in self.template.labels])
        nats = (-torch.stack([words.logsumexp(0) for words in classes]).log_softmax(0)).tolist()
        prediction = nats.index(min(nats))
        return {
            "id": item.id,
            "answer": item.label,
            "prediction": prediction,
            "correct": prediction == item.label,
            "nats": nats,
        }


def _shuffled(block: Block) -> list[Labelled]:
    """The training texts that are not in the block, in an order from Python's random state."""
    draw = random.Random(random.getrandbits(64)).random
    excluded = {item.text for item in block.items}
    return [labelled for labelled in sorted(block.train, key=lambda _: draw()) if labelled.text not in excluded]


def _most_similar(train: tuple[Labelled, ...], item: Labelled, k: int) -> list[Labelled]:
    """The k most similar texts that are not the item's own, the most similar last."""
    ranked = (train[number] for number in _index(train).ranked(item.text))
    return [labelled for labelled in ranked if labelled.text != item.text][:k][::-1]


@lru_cache(maxsize=1)
def _index(train: tuple[Labelled, ...]) -> Similar:
    return Similar([labelled.text for labelled in train])


WORD = re.compile(r"\b\w\w+\b")


class Similar:
    """An index of texts. Words are lower-cased and have two or more letters; inverse frequencies are smoothed."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(WORD.findall(text.lower())) for text in texts]
        documents = Counter(word for count in counts for word in count)
        self._idf = {word: math.log((1 + len(texts)) / (1 + df)) + 1 for word, df in documents.items()}
        self._count = len(texts)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            for word, weight in self._vector(count).items():
                self._postings[word].append((number, weight))

    def ranked(self, text: str) -> list[int]:
        """Indices of all texts, the most similar to `text` first; ties keep the order of the index."""
        cosines = [0.0] * self._count
        for word, weight in self._vector(Counter(WORD.findall(text.lower()))).items():
            for number, other in self._postings[word]:
                cosines[number] += weight * other
        # Rounded, since sums over the same words in another order differ in the last bits.
        return sorted(range(self._count), key=lambda number: -round(cosines[number], 12))

    def _vector(self, count: Counter[str]) -> dict[str, float]:
        weights = {word: times * self._idf[word] for word, times in count.items() if word in self._idf}
        norm = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}
