"""What this package states itself beside a paper's settings, sizes and prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from contextlab.methods.longmem import LongMemConfig
from contextlab.reports.papers import page, schema, stated
from contextlab.reports.papers.schema import Paper, PaperEntry
from contextlab.training.options import TrainConfig

STATED = [(paper, entry) for paper in schema.papers().values() for entry in paper.entry if entry.stated]
SOURCES = sorted({of for _, entry in STATED for part in entry.stated for of in part.of.values()})


@pytest.mark.parametrize("of", [of for of in SOURCES if not of.startswith("data ")])
def test_what_an_entry_names_is_there(of: str) -> None:
    assert stated.value(of) not in ("", stated.ABSENT)


def test_settings_and_trainings_are_defaults() -> None:
    assert stated.value("setting longmem K") == str(LongMemConfig().K)
    assert stated.value("setting longmem memory_layer") == "not set"
    assert stated.value("training longmem lr") == f"{TrainConfig.of(LongMemConfig, {'tokens': 1}).lr:g}"


def test_a_demonstration_has_the_form_and_the_labels_of_its_paper() -> None:
    assert stated.value("demonstration evalm/sst2 form") == "{label} Movie Review: {text}"
    assert stated.value("demonstration evalm/sst2 labels") == "Negative, Positive"


def test_sizes_are_those_of_the_data_and_a_sample_is_none(tmp_path: Path) -> None:
    (tmp_path / "arxiv").mkdir()
    for size in (100, 400):
        (tmp_path / "arxiv" / f"{size}.txt").write_text("One two three. " * size, "utf-8")
    assert stated.value("data arxiv/all documents", tmp_path) == "2"
    shortest, longest = (
        float(part.removesuffix("K")) for part in stated.value("data arxiv/all range", tmp_path).split("-")
    )
    assert longest == pytest.approx(4 * shortest, rel=0.1)
    assert float(stated.value("data arxiv/all tokens", tmp_path).removesuffix("K")) == pytest.approx(
        2.5 * shortest, rel=0.2
    )
    assert stated.value("data pg22/S1 documents") == stated.ABSENT


@pytest.mark.parametrize(("paper", "entry"), [pytest.param(*pair, id=pair[1].name) for pair in STATED])
def test_a_page_has_a_line_for_everything_that_is_stated(paper: Paper, entry: PaperEntry) -> None:
    lines = page.stated(paper, entry).rows[1:]
    assert len(lines) == sum(len(part.of) for part in entry.stated)
    cells = {cell for row in entry.published().values() for cell in row.values()}
    assert all(printed in cells for _, printed, _ in lines)
