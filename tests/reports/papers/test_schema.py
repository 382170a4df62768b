"""The papers' numbers as data: complete, as printed, and corrected where they are wrong."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contextlab import trained
from contextlab.accounting import legacy
from contextlab.errors import UserError
from contextlab.harness.selection import select
from contextlab.reports.papers import schema
from contextlab.reports.papers.schema import PRINTED, Paper, PaperEntry, number

WANTED = {
    "longmem": "table1 table2 table3 table4 table5 table6 table7 table8 table9 figure4",
    "evalm": "table1 table2 table3 table4 table5 table6 table7 table8 figure2 figure3 figure4 figure5 figure6",
    "hso": "table1 table2 table3 table4 table5",
    "generative-adapter": "table1 table2 table3 table4 table5 figure2 figure3 figure4 figure5 figure6 figure7",
}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:E[+-]\d+)?\+?")
# A question's tokens that fit the rows of UltraGist best, and those of a context that give the printed 2.059.
QUESTION, FITTED, CONTEXT = 71, 67.2, 2352


def entries() -> Iterator[tuple[Paper, PaperEntry]]:
    for paper in schema.papers().values():
        for entry in paper.entry:
            yield paper, entry


ENTRIES = [pytest.param(paper, entry, id=f"{paper.name}/{entry.name}") for paper, entry in entries()]


@pytest.fixture(scope="module")
def texts(shared: Path) -> dict[str, str]:
    """The papers as text, by name."""
    folder = shared / "papers"
    return {name: (folder / f"{name.replace('-', '_')}.txt").read_text("utf-8") for name in WANTED}


@pytest.fixture
def broken(tmp_path: Path) -> Any:
    """Writes a copy of a paper's file with one text replaced, and returns its path."""

    def write(old: str, new: str, name: str = "hso") -> Path:
        text = (schema.FOLDER / f"{name}.toml").read_text("utf-8")
        assert old in text
        path = tmp_path / f"{name}.toml"
        path.write_text(text.replace(old, new, 1), "utf-8")
        return path

    return write


def test_every_table_and_figure_that_was_promised_is_there() -> None:
    assert {name: " ".join(entry.name for entry in paper.entry) for name, paper in schema.papers().items()} == WANTED


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_every_number_stands_in_the_paper(paper: Paper, entry: PaperEntry, texts: dict[str, str]) -> None:
    printed = set(NUMBER.findall(texts[paper.name]))
    cells = [cell for cells in entry.published().values() for cell in cells.values()]
    assert [cell for cell in cells if not set(NUMBER.findall(cell)) <= printed] == []
    figures = {figure.replace(",", "") for text in entry.says for figure in NUMBER.findall(text)}
    assert figures <= printed


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_numbers_of_a_row_or_a_column_stand_beside_each_other(
    paper: Paper, entry: PaperEntry, texts: dict[str, str]
) -> None:
    printed = NUMBER.findall(texts[paper.name])

    def beside(cells: list[str]) -> bool:
        # A number for all columns is printed once.
        figures = NUMBER.findall(" ".join(cells if len(set(cells)) > 1 else cells[:1]))
        size = len(figures)
        return any(printed[start : start + size] == figures for start in range(len(printed)))

    rows = [list(cells.values()) for cells in entry.published().values()]
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert all(map(beside, rows)) or all(map(beside, columns))


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_a_mean_that_is_not_the_mean_of_its_columns_is_corrected(paper: Paper, entry: PaperEntry) -> None:
    corrected = {(correction.row, correction.column): correction.corrected for correction in entry.corrections}
    for row, cells in entry.published().items() if entry.average else ():
        before = list(cells)[: list(cells).index(str(entry.average))]
        numbers = [value for value in (number(cells[name]) for name in before) if value is not None]
        mean = sum(numbers) / len(numbers)
        shown = corrected.get((row, str(entry.average)), cells[str(entry.average)])
        assert float(shown) == pytest.approx(mean, abs=0.0501), row


def test_the_corrected_cost_of_table_1_is_that_of_the_formulas() -> None:
    ((_, entry),) = schema.find("generative-adapter/table1")
    corrected = {correction.row: float(correction.corrected) for correction in entry.corrections}
    model = legacy.MISTRAL_7B

    def teraflops(question: float, context: int) -> float:
        pairs = question * (question + 1) / 2 + question * context
        return 2 * (question * model.macs_per_token + pairs * model.macs_per_pair) / 1e12

    assert teraflops(QUESTION, CONTEXT) == 2 * legacy.cached_macs(QUESTION, CONTEXT) / 1e12
    contexts = {"64": 64, "128": 128, "256": 256, "512": 512, "1K": 1024, "2K": 2048}
    assert corrected == pytest.approx(
        {
            "Closed-book": teraflops(QUESTION, 0),
            "Full-conversation Prompting": teraflops(QUESTION, CONTEXT),
            "Generative Adapter": teraflops(QUESTION, 0),
            **{f"Ultragist ({name} Tokens)": teraflops(FITTED, kept) for name, kept in contexts.items()},
        },
        abs=6e-4,
    )
    (full,) = (correction for correction in entry.corrections if correction.row.startswith("Full"))
    assert f"{2 * legacy.uncached_macs(QUESTION, CONTEXT) / 1e12:.1f}" in full.reason
    printed = {row: number(cells["inference"]) for row, cells in entry.published().items()}
    assert legacy.printed_macs(QUESTION, CONTEXT) / 1e12 == pytest.approx(
        printed["Full-conversation Prompting"], abs=5e-3
    )


def test_the_corrected_averages_of_demonstrations_are_those_of_the_rows() -> None:
    ((_, entry),) = schema.find("evalm/table1")
    cells = entry.published()
    improved = float(next(correction.corrected for correction in entry.corrections if correction.column == "Imprv."))
    names = [column.name for column in entry.columns[:10]]

    def mean(row: str) -> float:
        return sum(float(cells[row][name]) for name in names) / len(names)

    assert mean("many-shot, OPT-1.3B") - mean("zero-shot, OPT-1.3B") == pytest.approx(improved, abs=0.05)


@pytest.mark.parametrize(("paper", "entry"), ENTRIES)
def test_every_run_names_methods_and_a_task_that_exist(paper: Paper, entry: PaperEntry) -> None:
    for run in [*(entry.embedded.runs if entry.embedded else []), *entry.runs_of_paper]:
        methods, tasks = select(run.methods, run.task)
        assert (len(methods), len(tasks)) == (len(run.methods), 1)


def test_every_paper_has_a_recipe() -> None:
    assert all(any(entry.embedded for entry in paper.entry) for paper in schema.papers().values())


def test_a_row_is_compared_with_the_last_baseline_above_it() -> None:
    ((_, entry),) = schema.find("longmem/table5")
    assert entry.baseline("GPT-2*, 4, N/A") is None
    assert entry.baseline("LongMem, 4, 2000") == "GPT-2*, 4, N/A"
    assert entry.baseline("LongMem, 20, 2000") == "GPT-2*, 20, N/A"
    assert entry.baseline("Majority, N/A, N/A") is None
    assert entry.baseline("no such row") is None


@pytest.mark.parametrize("cell", ["22.78", "68.3 (11.6)", "128+", "3.84E+20", "-", "24"])
def test_numbers_as_papers_print_them(cell: str) -> None:
    assert PRINTED.fullmatch(cell)
    assert (number(cell) is None) == (cell == "-")


@pytest.mark.parametrize("cell", ["", "22,78", "24%", "n/a", "68.3 (11.6", "1.", "--"])
def test_other_texts_are_no_numbers(cell: str) -> None:
    assert not PRINTED.fullmatch(cell)


def test_a_printed_number_loses_its_deviation_and_its_mark() -> None:
    assert (number("68.3 (11.6)"), number("128+"), number("3.84E+20")) == (68.3, 128, 3.84e20)


def test_a_name_is_a_paper_or_one_entry() -> None:
    assert [entry.name for _, entry in schema.find("hso")] == WANTED["hso"].split()
    ((paper, entry),) = schema.find("longmem/table7")
    assert (paper.name, entry.name) == ("longmem", "table7")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("longmen", "did you mean 'longmem'?"),
        ("longmem/tabel7", "did you mean 'table7'?"),
        ("longmen/table7", "did you mean 'longmem/table7'?"),
        ("HSO/Table2", "did you mean 'hso/table2'?"),
        ("xyz", "choose one of evalm, generative-adapter, hso, longmem"),
    ],
)
def test_an_unknown_name_is_answered_with_the_most_similar_one(name: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        schema.find(name)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"26.7", "26.5"]', '"26,7", "26.5"]', "26,7 is no number"),
        ('"26.7", "26.5"]', '"26.7"]', "cells instead of"),
        ('["HSO", "21.0"', '["Baseline", "21.0"', "two rows have equal keys"),
        ('baselines = ["Baseline"]', 'baselines = ["Base"]', "no row is called Base"),
        ('rows = ["Baseline", "HSO"]', 'rows = ["Baseline", "OSH"]', "no row is called OSH"),
        ('rows = ["Baseline", "HSO"]', 'rows = ["Baseline"]', "2 methods stand for 1 rows"),
        ('read = { "WT-103 test"', 'read = { "WT-103"', "no column is called WT-103"),
        ('name = "table2"', 'name = "table1"', "two entries have one name"),
        ('name = "table2"', 'name = "tab. 2"', "name"),
        ("tokens = 2048", "tokens = 0", "tokens"),
        ("tokens = 2048", 'tokens = "many"', "tokens"),
        ('arxiv = "2112.08653"', 'arxiv = "2112"', "arxiv"),
        ('section = "4.1"', "", "section: Field required"),
        ('section = "4.1"', 'section = "4.1"\npage = "2"', "page: Extra inputs are not permitted"),
        ("[model]", "[model", "correct it"),
    ],
)
def test_a_broken_file_is_one_sentence(broken: Any, old: str, new: str, reason: str) -> None:
    path = broken(old, new)
    with pytest.raises(UserError) as error:
        schema.read(path)
    message = str(error.value)
    assert reason in message
    assert str(path) in message
    assert "\n" not in message


def test_a_correction_of_a_number_that_is_not_printed_is_refused(broken: Any) -> None:
    path = broken('printed = "61.1"', 'printed = "61.0"', "longmem")
    with pytest.raises(UserError, match="does not have 61"):
        schema.read(path)


def test_an_entry_without_recipe_needs_a_reason(broken: Any) -> None:
    path = broken("not_here = ", "# ", "generative-adapter")
    with pytest.raises(UserError, match="a reason why there is none"):
        schema.read(path)


def test_an_entry_without_numbers_needs_what_the_paper_says(broken: Any) -> None:
    text = (schema.FOLDER / "longmem.toml").read_text("utf-8")
    says = text[text.index("says = [") :]
    path = broken(says[: says.index("]\n") + 2], "", "longmem")
    with pytest.raises(UserError, match="neither numbers nor"):
        schema.read(path)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not hold a paper"):
        schema.read(tmp_path / "none.toml")


def test_files_are_found_by_their_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(schema.FOLDER / "hso.toml", tmp_path)
    monkeypatch.setattr(schema, "FOLDER", tmp_path)
    schema.papers.cache_clear()
    try:
        assert list(schema.papers()) == ["hso"]
    finally:
        schema.papers.cache_clear()


def test_files_hold_nothing_that_is_not_read() -> None:
    for path in schema.FOLDER.glob("*.toml"):
        assert set(tomllib.loads(path.read_text("utf-8"))) == {
            *("name", "title", "authors", "venue", "arxiv", "model", "entry")
        }


def test_recipes_name_the_papers_form_where_a_name_alone_stands_for_weights() -> None:
    recommended = {method for method, _ in trained.recommendations()} | {"generative-adapter", "ultragist"}
    for paper in schema.papers().values():
        runs = [run for entry in paper.entry for run in (entry.embedded.runs if entry.embedded else [])]
        for method in [name for run in runs for name in run.methods]:
            assert method not in recommended, f"{paper.name}: {method}"


def test_no_sentence_of_a_paper_says_what_was_trained_here() -> None:
    for paper in schema.papers().values():
        sentences = [text for entry in paper.entry if entry.embedded for text in entry.embedded.differs]
        assert not any("trained here" in text for text in sentences)
