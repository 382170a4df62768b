"""In-context learning on seven classification sets, with the templates of the papers."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import pydantic

from contextlab.benchmarks.data.icl_sets import SETS, load
from contextlab.benchmarks.examples import Block, Template
from contextlab.benchmarks.prompts import prompt
from contextlab.benchmarks.task import Control, Dataset, Task
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.demonstrations import IclProtocol


TEMPLATES = ("longmem", "longmem-released", "evalm", "hso")


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ICLConfig(Config):
    """Demonstrations and prompts of the classification.

    Attributes:
        k: number of demonstrations.
        memory: further demonstrations that are read before these and drawn independently of them (2,000 in LongMem).
        n: number of texts that are classified after the same demonstrations.
        template: the paper whose template is used; when "", the first of longmem, evalm and hso that has the set.
        scoring: by the likelihood of the whole filled `template`, of the `label` alone, or by writing one token
            (`greedy`); the paper's own when "".
        choose: demonstrations are drawn at `random`, or are the `topk` most similar texts of every text.
        part: the texts to classify.
    """

    k: Annotated[int, pydantic.Field(ge=0)] = 20
    memory: pydantic.NonNegativeInt = 0
    n: pydantic.PositiveInt | Literal["all"] = 25
    template: Literal["", "longmem", "longmem-released", "evalm", "hso"] = ""
    scoring: Literal["", "template", "label", "greedy"] = ""
    choose: Literal["random", "topk"] = "random"
    part: Literal["test", "dev"] = "test"

    def __post_init__(self) -> None:
        """Check fields that depend on each other."""
        if self.memory and self.choose == "topk":
            raise UserError("Demonstrations in memory are drawn at random: use choose=random, or memory=0.")


class ICL(Task):
    """What is the class of a text, after 0 to 2,000 demonstrations?"""

    name: ClassVar[str] = "icl"
    splits: ClassVar[dict[str, str]] = {name: f"{text_set.title}: {text_set.about}" for name, text_set in SETS.items()}
    default_split: ClassVar[str] = "sst2"
    Config = ICLConfig
    config: ICLConfig

    def worded(self) -> Iterable[tuple[str, Task]]:
        """A split for every template of every set."""
        for name in SETS:
            for chosen in TEMPLATES:
                if name in _file(chosen):
                    yield name, ICL(ICLConfig.parse({"template": chosen}))

    def check_split(self, split: str | None) -> str:
        """The split to use: the default when None.

        Raises:
            UserError: for an unknown set, or settings that do not fit it or each other.
        """
        name = super().check_split(split)
        template(name, self.config)
        return name

    def load(self, split: str, data: Path | None) -> Dataset:
        """Blocks of n test texts, in a fixed order; every test text is in one block.

        Raises:
            UserError: when a file is missing or broken, or the set has too few training texts.
        """
        name, settings = self.check_split(split), self.config
        texts = load(name, settings.part, data)
        for setting, needed in (("k", settings.k), ("memory", settings.memory)):
            if len(texts.train) < needed:
                raise UserError(f"icl {name} has {len(texts.train)} training texts here: lower {setting}={needed}.")
        clean = template(name, settings).clean
        train = tuple(map(clean, texts.train))
        draw = random.Random(0).random
        tested = sorted(map(clean, texts.tested), key=lambda _: draw())
        size = len(tested) if settings.n == "all" else settings.n
        blocks = tuple(
            Block(f"{settings.part}/{number}", tuple(tested[start : start + size]), train)
            for number, start in enumerate(range(0, len(tested), size))
        )
        return Dataset(blocks, texts.source, texts.sha256, texts.note)

    def protocol(self, split: str, context: Control = "own") -> IclProtocol:
        """The protocol with the template and the demonstrations of the settings."""
        from contextlab.benchmarks.protocols.demonstrations import Draws, IclProtocol

        form = template(self.check_split(split), self.config)
        config = self.config
        return IclProtocol(form, Draws(config.k, config.memory, config.choose), self.options(context))


def template(name: str, settings: ICLConfig) -> Template:
    """The template of a set with these settings.

    Raises:
        UserError: when the paper has no template for this set, or the template does not allow the scoring.
    """
    having = [template for template in TEMPLATES if name in _file(template)]
    chosen = settings.template or having[0]
    if chosen not in having:
        raise UserError(f"{chosen} has no template for {name}: choose template={' or '.join(having)}.")
    common = _file(chosen)
    own = common[name]
    labels = tuple((words,) if isinstance(words, str) else tuple(words) for words in own["labels"])
    scoring = settings.scoring or common["scoring"]
    if scoring != "template" and not own["form"].endswith("{label}"):
        raise UserError(f"{chosen}'s template for {name} does not end with the label: choose scoring=template.")
    cleaning = tuple((debris, clean) for debris, clean in own.get("cleaning", ()))
    return Template(own["form"], labels, common["separator"], scoring, own.get("instruction", ""), cleaning)


@cache
def _file(name: str) -> dict[str, Any]:
    return tomllib.loads(prompt(f"icl-{name}"))
