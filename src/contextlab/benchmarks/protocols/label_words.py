"""Few-shot classification: read demonstrations and a text, then score the label words of the classes.

Legend: N words, C classes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from contextlab.benchmarks.metrics.estimates import macro_f1, proportion, ratio
from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.benchmarks.task import Measure, Metric, Options, Part, Protocol
from contextlab.errors import UserError
from contextlab.method import Lengths

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone
    from contextlab.benchmarks.examples import Form, Item, Labelled

T = TypeVar("T")

DEMONSTRATION_TOKENS = 35


class LabelProtocol(Protocol):
    """Read demonstrations and one text without its label, and predict the most probable class (HSO, section 4.2).

    Every item has its own prompt. Its demonstrations are drawn from the training texts of at most 35 tokens (the text
    alone, by the backbone's tokenizer) without the item's own text, evenly over the classes; where the number cannot be
    divided, randomly drawn classes get one more. Their order is random too. The draw depends on Python's random state,
    which the runner sets from the seed and the item's id, and on the number of demonstrations: every method and every
    resumed run has the same prompts.

    The whole prompt is read in one call. The control `none` leaves the demonstrations out; with `wrong` each of them
    has the label of the next class, the last class that of the first.
    """

    measure = Measure("accuracy", higher_is_better=True, bounded=True)

    def __init__(self, form: Form, demonstrations: int, options: Options) -> None:
        self.form, self.demonstrations, self.options = form, demonstrations, options
        self.prompt = form.instruction + form.example + "\n".join(" ".join(words) for words in form.words)

    def evaluate(self, meter: Meter, example: Item, other: Item) -> dict[str, Any]:
        """Classify one text.

        Raises:
            UserError: when too few training texts are short enough, or the prompt is longer than the method can read
                as one text.
        """
        draw = random.Random(f"{random.getrandbits(64)}/{self.demonstrations}").random
        shown = [] if self.options.context == "none" else self._draw(draw, example, meter.backbone)
        encode = meter.backbone.encode
        prompt = encode(self._text(shown, example))
        candidates = [encode(f" {word}") for words in self.form.words for word in words]
        ahead = Lengths(len(prompt), max(map(len, candidates)))
        check_fits(meter, ahead.context + ahead.question, "choose a split with fewer demonstrations")
        state = contextualize(meter, prompt, ahead)
        logprobs_N = meter.score("query", state, candidates)[0].double().cpu().sum(-1)
        logprobs_C = _per_class(logprobs_N, [len(words) for words in self.form.words])
        nats = (-logprobs_C.log_softmax(0)).tolist()
        prediction = nats.index(min(nats))
        return {
            "id": example.id,
            "prediction": prediction,
            "answer": example.label,
            "correct": prediction == example.label,
            "nats": nats,
            "label_mass": float(logprobs_C.exp().sum()),
            "demonstrations": [demonstration.id for demonstration in shown],
            "context_tokens": len(prompt),
        }

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        """Accuracy, macro F1, and the nats of the true class among the classes."""
        answers, predictions, texts = ([record[name] for record in records] for name in ("answer", "prediction", "id"))
        return {
            "accuracy": proportion([part for record in records for part in self.parts(record)["accuracy"]]),
            "macro_f1": macro_f1(answers, predictions, texts),
            "nats_per_label": ratio([Part(stored["nats"][stored["answer"]], 1.0, stored["id"]) for stored in records]),
        }

    def quality(self, record: dict[str, Any]) -> float:
        """1 for a right prediction, else 0: higher is better."""
        return float(record["correct"])

    def parts(self, record: dict[str, Any]) -> dict[str, list[Part]]:
        """Every text has its own demonstrations and is its own cluster."""
        return {"accuracy": [Part(float(record["correct"]), 1.0, record["id"])]}

    def _text(self, shown: Sequence[Labelled], example: Item) -> str:
        words, shift = self.form.words, self.options.context == "wrong"
        labels = [words[(demonstration.label + shift) % len(words)][0] for demonstration in shown]
        texts = [
            self.form.example.format(text=demonstration.text, label=label)
            for demonstration, label in zip(shown, labels, strict=True)
        ]
        question = self.form.example.partition(" {label}")[0].format(text=example.text)
        return self.form.instruction + "".join(texts) + question

    def _draw(self, draw: Callable[[], float], example: Item, backbone: Backbone) -> list[Labelled]:
        classes = range(len(self.form.words))
        each, over = divmod(self.demonstrations, len(classes))
        more = _shuffled(classes, draw)[:over]
        pool = _shuffled(example.train, draw)
        chosen: list[Labelled] = []
        for label in classes:
            others = (labelled for labelled in pool if labelled.label == label and labelled.text != example.text)
            short = (labelled for labelled in others if len(backbone.encode(labelled.text)) <= DEMONSTRATION_TOKENS)
            needed = each + (label in more)
            of_label = list(islice(short, needed))
            if len(of_label) < needed:
                raise UserError(
                    f"{len(of_label)} of {needed} training texts '{self.form.words[label][0]}' have at most "
                    f"{DEMONSTRATION_TOKENS} tokens on {backbone.name}: choose a split with fewer demonstrations or "
                    f"another backbone."
                )
            chosen += of_label
        return _shuffled(chosen, draw)


def _per_class(logprobs_N: Tensor, counts: list[int]) -> Tensor:
    """`logprobs_C` of the classes, from those of their words; `counts` is the number of words of each class."""
    return logprobs_N.new_tensor([float(words.logsumexp(0)) for words in logprobs_N.split(counts)])


def _shuffled(items: Iterable[T], draw: Callable[[], float]) -> list[T]:
    # Only the sequence of `random()` is the same in every version of Python.
    return sorted(items, key=lambda _: draw())
