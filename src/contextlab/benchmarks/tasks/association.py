"""Facts that a question names in other words: to find them takes one step of common knowledge.

The idea is NoLiMa's (Modarressi et al. 2025): where question and fact share no word, attention to equal words does not
find the fact. Facts, questions and names are this project's own. The split `literal` asks for the same facts of the
same texts in their own words, so that the difference is what the missing words cost.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import pydantic

from contextlab.benchmarks.data import generated
from contextlab.benchmarks.data import noise as noises
from contextlab.benchmarks.data.noise import Noise, NoiseName, hidden, ordered
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.task import Control, Dataset, Options
from contextlab.benchmarks.tasks.sized import SizedTask
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import QuestionProtocol


class AssociatedFact(NamedTuple):
    """A fact about `{name}`, the question that shares no content word with it, and the question in its own words."""

    fact: str
    associated: str
    literal: str


NEEDLES = (
    AssociatedFact(
        "{name} has painted the Golden Gate Bridge twice.",
        "Who has worked in San Francisco?",
        "Who has painted the Golden Gate Bridge twice?",
    ),
    AssociatedFact(
        "{name} sells postcards below the Eiffel Tower.",
        "Who earns money in Paris?",
        "Who sells postcards below the Eiffel Tower?",
    ),
    AssociatedFact(
        "{name} climbed Mount Fuji in a single night.",
        "Who has travelled to Japan?",
        "Who climbed Mount Fuji in a single night?",
    ),
    AssociatedFact(
        "{name} took photographs of the pyramids at Giza.",
        "Who has been to Egypt?",
        "Who took photographs of the pyramids at Giza?",
    ),
    AssociatedFact(
        "{name} keeps seven hives behind the barn.",
        "Who harvests honey?",
        "Who keeps seven hives behind the barn?",
    ),
    AssociatedFact(
        "{name} injects insulin before each meal.",
        "Who suffers from diabetes?",
        "Who injects insulin before each meal?",
    ),
    AssociatedFact(
        "{name} drills teeth and fills cavities.",
        "Who is a dentist?",
        "Who drills teeth and fills cavities?",
    ),
    AssociatedFact(
        "{name} lands a Boeing on short runways.",
        "Who is a pilot?",
        "Who lands a Boeing on short runways?",
    ),
    AssociatedFact(
        "{name} reads Braille with both hands.",
        "Who is blind?",
        "Who reads Braille with both hands?",
    ),
    AssociatedFact(
        "{name} has a daughter in primary school.",
        "Who is a parent?",
        "Who has a daughter in primary school?",
    ),
    AssociatedFact(
        "{name} plays second violin in the opera.",
        "Who is a musician?",
        "Who plays second violin in the opera?",
    ),
    AssociatedFact(
        "{name} bakes rolls and loaves before sunrise.",
        "Whom would you ask for fresh bread?",
        "Who bakes rolls and loaves before sunrise?",
    ),
)
NAMES = (
    *("Amadou", "Bianca", "Carmela", "Darius", "Esteban", "Fatima", "Giorgos", "Hiroshi"),
    *("Imani", "Jovana", "Kwame", "Leilani", "Mateusz", "Nadira", "Octavio", "Priya"),
)
FUNCTION_WORDS = {
    "a", "and", "at", "been", "before", "behind", "below", "both", "each", "for", "from", "has", "in", "is", "of", "on",
    "the", "to", "who", "whom", "with", "would", "you",
}  # fmt: skip
TOGETHER = 4
"""Facts of a text, each about another person: the options of its questions."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class AssociationConfig(Config):
    """How long the texts are, and how is asked.

    Attributes:
        tokens: the most tokens read of a text, without its questions, which noise fills up.
        samples: the most samples: texts with four questions each.
        answers: `ranked`: the most probable of the four names; `written`: names in a written answer.
        noise: sentences between the facts: of the books of `pg19` or `pg22`, or of generated `stories`; `auto` takes
            pg19 where the data folder has it, else stories.
        seed: of the choice of facts, names, places and sentences.
    """

    tokens: pydantic.PositiveInt = 1024
    samples: pydantic.PositiveInt = 50
    answers: Literal["ranked", "written"] = "ranked"
    noise: NoiseName = "auto"
    seed: pydantic.NonNegativeInt = 0


class Association(SizedTask):
    """Who of four people is it? The text says so in words that the question does not have."""

    name: ClassVar[str] = "association"
    splits: ClassVar[dict[str, str]] = {
        "associated": "questions without a content word of the fact",
        "literal": "the same facts in the same texts, asked in their own words",
    }
    default_split: ClassVar[str] = "associated"
    Config = AssociationConfig
    config: AssociationConfig

    def load(self, split: str, data: Path | None) -> Dataset:
        """Texts of one length with four facts each; both splits have the same texts.

        Raises:
            UserError: when the books of `noise` are missing or broken, or the facts are longer than the text.
        """
        split = self.check_split(split)
        noise = noises.noise(self.config.noise, data)
        settings = {**self.made_with(split, "tokens", "samples", "seed"), "noise": noise.sha256}
        note = f"generated for this task: facts of its own in sentences of {noise.about}"
        return generated.dataset(settings, _Texts(self, split, noise), note)

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Accuracy over all questions and by the depth of the fact in percent of the text."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol

        self.check_split(split)
        if self.config.answers == "ranked":
            return RankProtocol(("recall-question", "recall-question"), Options(context), by="depth")
        prompts = ("document-question", "question")
        return AnswerProtocol(prompts, Options(context), {"accuracy": names_only}, by="depth")


class _Texts(generated.ReadingGenerator):
    """Texts with four facts, at four depths."""

    modules = (noises.__name__,)

    def __init__(self, task: Association, split: str, noise: Noise) -> None:
        self.task, self.split, self.noise = task, split, noise

    def readings(self) -> Iterator[Reading]:
        """All texts.

        Raises:
            UserError: when the facts are longer than a text may be.
        """
        return (self._reading(number) for number in range(self.task.config.samples))

    def _reading(self, number: int) -> Reading:
        config, count = self.task.config, self.task.count
        draw = random.Random(f"{config.seed}/{number}")
        # Needles are drawn by their facts, whose order is that of the depths.
        by_fact = {needle.fact: needle for needle in NEEDLES}
        needles = [by_fact[fact] for fact in ordered(tuple(by_fact), draw)[:TOGETHER]]
        names = ordered(NAMES, draw)[:TOGETHER]
        facts = [needle.fact.format(name=name) for needle, name in zip(needles, names, strict=True)]
        if count(" ".join(facts)) > config.tokens:
            raise UserError(f"The facts alone have more tokens than tokens={config.tokens}: raise tokens.")
        wordings = [question for needle in needles for question in (needle.associated, needle.literal)]
        taboo = content_words(" ".join([*facts, *wordings, *NAMES]))

        def usable(sentence: str) -> bool:
            return count(sentence) >= noises.SHORTEST and taboo.isdisjoint(content_words(sentence))

        sentences = self.noise.sentences(draw, usable)
        depths = [(2 * n + 1) / (2 * TOGETHER) for n in range(TOGETHER)]
        context = hidden(facts, lambda total: [round(d * total) for d in depths], sentences, config.tokens, count)
        identity = f"{config.seed}-{number}"
        questions = tuple(
            Question(
                f"{identity}/{n}",
                getattr(needle, self.split),
                (name,),
                tuple(sorted(names)),
                {"depth": int(100 * depth), "fact": NEEDLES.index(needle)},
                context.index(fact),
            )
            for n, (needle, name, fact, depth) in enumerate(zip(needles, names, facts, depths, strict=True))
        )
        return Reading(identity, identity, context, questions)


def content_words(text: str) -> set[str]:
    """The words of a text in lower case, without function words."""
    return set(re.findall(r"[^\W\d_]+", text.lower())) - FUNCTION_WORDS


def names_only(text: str, question: Question) -> float:
    """1 when the answer has the right name and none of the others, else 0."""
    return float({name for name in question.options if name.lower() in text.lower()} == set(question.answers))
