"""RULER (Hsieh et al. 2024): 13 generated tasks of any length, with the question outside of the context.

Prompts and parameters are upstream's (`prompts/ruler.json`); the generators are ours (`data/ruler`).
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import pydantic

from contextlab.benchmarks.data import generated
from contextlab.benchmarks.data.ruler import documents, hotpotqa, words
from contextlab.benchmarks.data.ruler.documents import DocumentCorpus
from contextlab.benchmarks.data.ruler.readings import Material, Samples
from contextlab.benchmarks.data.ruler.variants import NAMES, variant
from contextlab.benchmarks.data.sample import story
from contextlab.benchmarks.data.sources import data_root, json_file, plain_or_packed
from contextlab.benchmarks.prompts import Wording
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks import squad
from contextlab.benchmarks.tasks.pg19 import PG19
from contextlab.benchmarks.tasks.sized import SizedTask
from contextlab.config import Config
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.ruler import RulerProtocol

ESSAY_SEED = 34
MEANINGS = {
    "niah_single_1": "a number of a word, in noise",
    "niah_single_2": "a number of a word, in an essay",
    "niah_single_3": "a uuid of a word, in an essay",
    "niah_multikey_1": "as niah_single_2, with three more keys",
    "niah_multikey_2": "a number of a word, among lines of the same form",
    "niah_multikey_3": "a uuid of a uuid, among lines of the same form",
    "niah_multivalue": "four numbers of a word, in an essay",
    "niah_multiquery": "the numbers of four words, in an essay",
    "vt": "variables with one value, assigned in a chain of four steps, in noise",
    "cwe": "the ten most common words of a list",
    "fwe": "the three most frequent words of a coded text",
    "qa_1": "a question about one of many documents (SQuAD)",
    "qa_2": "a question about two of many documents (HotpotQA)",
}


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class RulerConfig(Config):
    """How samples are made and asked.

    Attributes:
        tokens: the most tokens read of a text, with its prompt and answer, in the backbone's own tokens.
        samples: the most samples: of each of the 13 tasks; 500 upstream.
        seed: of all that is drawn.
        haystack: of the tasks with needles: `noise`, `essay` or `needle`; their own when "".
        prompt: `plain` text; `chat`: context and question as one turn of the user, before the beginning of the answer;
            `chat-question`: the context as plain text, and after it the question as a turn of the user.
    """

    tokens: Annotated[int, pydantic.Field(ge=512, le=131_072)] = 4096
    samples: pydantic.PositiveInt = 10
    seed: pydantic.NonNegativeInt = 42
    haystack: Literal["", "noise", "essay", "needle"] = ""
    prompt: Wording = "plain"


class Origin(NamedTuple):
    """Where texts come from.

    Attributes:
        note: for tables.
        sha256: digest of the texts.
    """

    note: str
    sha256: str


class Ruler(SizedTask):
    """Facts, variables, frequent words and answers, to be found in generated texts of a given length."""

    name: ClassVar[str] = "ruler"
    splits: ClassVar[dict[str, str]] = {"all": "the 13 tasks, in turns", **{name: MEANINGS[name] for name in NAMES}}
    default_split: ClassVar[str] = "all"
    Config = RulerConfig
    config: RulerConfig

    def check_split(self, split: str | None) -> str:
        """The split to use: the default when None.

        Raises:
            UserError: when there is no such split, or no haystack in it.
        """
        name = super().check_split(split)
        if self.config.haystack and name != "all" and variant(name).kind != "niah":
            raise UserError(f"{name} has no haystack with needles: leave haystack= out, or choose a niah_... split.")
        return name

    def load(self, split: str, data: Path | None) -> Dataset:
        """Samples that are made once for a tokenizer, and stored; in the split `all`, tasks alternate.

        Books, SQuAD and HotpotQA are those of the data folder, or of the cache, where it has them; else generated.

        Raises:
            UserError: without wonderwords, when a file is broken, or when no sample is as short as it must be.
        """
        split = self.check_split(split)
        names = NAMES if split == "all" else (split,)
        config = self.config
        edition, root = words.edition(), data_root(data)
        essay, corpora = self._essay(names, root), self._corpora(names, root)
        origins = [origin for _, origin in (*essay, *corpora.values())]
        material = Material(essay[0][0] if essay else (), {name: corpus for name, (corpus, _) in corpora.items()})
        settings = {
            **self.made_with(split, "tokens", "samples", "seed", "haystack"),
            "wonderwords": edition,
            "origins": [origin.sha256 for origin in origins],
        }
        note = "; ".join(["generated by the rules of RULER", *(origin.note for origin in origins)])
        samples = Samples(names, config.tokens, config.samples, config.seed, config.haystack, material, self.count)
        return generated.dataset(settings, samples, note)

    def protocol(self, split: str, context: Control = "own") -> RulerProtocol:
        """Greedy answers, compared with RULER's string match."""
        from contextlab.benchmarks.protocols.ruler import RulerProtocol

        self.check_split(split)
        return RulerProtocol(self.options(context), self.config.prompt)

    def _essay(self, names: Sequence[str], root: Path) -> list[tuple[list[str], Origin]]:
        """The sentences of the essay haystack, where a variant has one: of books, else of a generated story."""
        niah = [form for form in map(variant, names) if form.kind == "niah"]
        if "essay" not in {self.config.haystack or form.args["type_haystack"] for form in niah}:
            return []
        if (root / "pg19" / "test").is_dir():
            books = PG19().load("test", root)
            text, what = " ".join(book.text for book in books.examples), f"{len(books.examples)} books ({books.note})"
        else:
            text, what = story(self.config.tokens, ESSAY_SEED).text, "a generated story"
        # Every word has a token, so that more words are not needed.
        sentences = _sentences(" ".join(text.split()[: self.config.tokens]))
        return [(sentences, Origin(f"haystack: {what} in place of the essays", _digest(sentences)))]

    def _corpora(self, names: Sequence[str], root: Path) -> dict[str, tuple[DocumentCorpus, Origin]]:
        """Documents and questions of the variants that ask about documents."""
        corpora = {}
        tales = functools.cache(lambda: documents.stories(self.config.tokens))
        if "qa_1" in names:
            path = plain_or_packed(root / "squad" / "dev-v1.1.json")
            if path is None:
                corpus = documents.of_stories(tales())
                corpora["qa_1"] = corpus, Origin("qa_1: generated stories, not SQuAD", _digest(corpus.documents))
            else:
                content, sha256 = json_file(path)
                articles = squad.articles(content, str(path))
                corpora["qa_1"] = documents.of_articles(articles), Origin(f"qa_1: {squad.note(articles, path)}", sha256)
        if "qa_2" in names:
            path = plain_or_packed(root / hotpotqa.FOLDER / hotpotqa.FILE)
            if path is None:
                corpus = documents.of_two_stories(tales())
                corpora["qa_2"] = corpus, Origin("qa_2: generated stories, not HotpotQA", _digest(corpus.documents))
            else:
                corpus, sha256 = hotpotqa.read(path)
                corpora["qa_2"] = corpus, Origin(f"qa_2: {hotpotqa.note(corpus)}", sha256)
        return corpora


def _sentences(text: str) -> list[str]:
    """The sentences of a text, by Punkt without a model of abbreviations, which would have to be downloaded."""
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    return list(PunktSentenceTokenizer().tokenize(text))


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
