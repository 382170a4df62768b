from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from contextlab.benchmarks.configs import PerplexityConfig
from contextlab.benchmarks.task import Options
from contextlab.benchmarks.tasks.wikitext import WikiText
from contextlab.errors import UserError

ARTICLES = (
    " \n = Lobster = \n \n It is a <unk> species . \n \n = = Description = = \n \n Blue @-@ black . \n \n \n",
    " = 2011 @-@ 12 season = \n \n = = = Squad = = = \n \n = x + y = \n A formula , not a title . \n \n \n",
    " = <unk> <unk> = \n \n = \n \n = 1 / s = \n = 2 = 3 . \n",
)


pytestmark = pytest.mark.usefixtures("no_data")


def write(root: Path, text: str, split: str = "test") -> Path:
    path = root / "wikitext" / "wikitext-2" / f"{split}.txt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def test_articles_begin_at_titles_and_nowhere_else(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(ARTICLES))
    data = WikiText().load("test", tmp_path)
    assert [(article.id, article.text) for article in data.examples] == [
        (f"test/{n}", text) for n, text in enumerate(ARTICLES)
    ]
    assert (data.source, data.sha256) == ("local", hashlib.sha256(path.read_bytes()).hexdigest())


def test_the_number_of_articles_makes_them_nobodys(tmp_path: Path) -> None:
    for count, amount in ((1, "1 article"), (60, "60 articles")):
        write(tmp_path, ARTICLES[1] * count, "valid")
        note = f"your own data in the layout of WikiText-2, not verified against the publisher: {amount}"
        assert WikiText().load("valid", tmp_path).note == note


def test_some_of_the_known_articles_are_real(shared: Path, tmp_path: Path) -> None:
    articles = WikiText().load("test", shared / "data").examples
    write(tmp_path, "".join(article.text for article in articles[3:5]))
    assert WikiText().load("test", tmp_path).note == "real: 2 of 60 articles of WikiText-2"


@pytest.mark.parametrize("text", ["", "= = Section = = \n \n text", " = a = b \n \n"])
def test_a_file_without_articles_is_an_error(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UserError, match=r"test\.txt\.gz has no line ' = Title = '"):
        WikiText().load("test", tmp_path)


def test_without_data_there_is_a_sample_of_its_own_for_each_split() -> None:
    valid, test = (WikiText().load(split, None) for split in WikiText.splits)
    for data in (valid, test):
        assert (data.source, data.note) == ("sample", "generated sample, not WikiText-2")
        assert len({article.id for article in data.examples}) == len(data.examples) == 8
        assert all(2_000 <= len(article.text.split()) <= 2_300 for article in data.examples)
    assert valid.sha256 != test.sha256
    assert valid == WikiText().load("valid", None)


def test_articles_are_put_as_perplexity_with_the_options_of_the_run() -> None:
    protocol = WikiText(PerplexityConfig(tokens=2048, history=512)).protocol("test", "wrong")
    assert protocol.options == Options("wrong", 512, 2048)
    with pytest.raises(UserError, match="no split of wikitext"):
        WikiText().protocol("train")


def test_the_local_articles_are_whole(shared: Path) -> None:
    for split in WikiText.splits:
        data = WikiText().load(split, shared / "data")
        stored = gzip.decompress((shared / f"data/wikitext/wikitext-2/{split}.txt.gz").read_bytes()).decode()
        assert "".join(article.text for article in data.examples) == stored
        assert 28 <= len(data.examples) <= 32
        assert data.note == "real: every second article of WikiText-2"
        assert all(len(article.text.split()) > 100 for article in data.examples)
