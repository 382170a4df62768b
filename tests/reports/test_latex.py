from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, STATE, column, table
from stored_runs import result, three

from contextlab.reports import latex
from contextlab.reports.cells import Cell, Column, ColumnKind, Table
from contextlab.reports.layout import TableLayout
from contextlab.reports.names import Names
from contextlab.reports.stored import summaries
from contextlab.reports.tables import comparison

ROOT = Path(__file__).parents[2]
PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,siunitx}
\begin{document}
%s
Text.
\end{document}
"""


def fields(line: str) -> list[str]:
    return [field.strip() for field in line.removesuffix(r" \\").split("&")]


def test_a_narrow_table_fits_a_column_and_a_wide_one_the_page() -> None:
    assert r"\begin{table}[t]" in latex.document(table({"window": [3.2, 1.5]}, [NATS, STATE]))
    several = [column(f"m{n}") for n in range(6)]
    assert r"\begin{table*}[t]" in latex.document(table({"window": [Cell(1, 0, 2)] * 6}, several))


def test_what_is_wider_than_the_page_becomes_several_tables() -> None:
    columns = [column(f"m{n}", group=f"task{n // 3}") for n in range(12)]
    text = latex.document(table({"window": [Cell(1, 0, 2)] * 12}, columns))
    assert text.count(r"\begin{table*}") == text.count(r"\end{tabular}") - text.count("[b]") > 1
    assert text.count(r"\caption{pg22") == 1
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(set(labels)) == len(labels) == text.count(r"\begin{table*}")
    assert text.count(f"Table~\\ref{{{labels[0]}}}, continued") == len(labels) - 1
    for n in range(4):
        assert text.count(f"{{task{n}}}") == 1


def test_numbers_are_aligned_at_their_points() -> None:
    text = latex.document(table({"a": [3.2, 1255.7], "b": [-0.5, 2.5]}, [NATS, STATE]))
    assert "S[table-format=-1.3] S[table-format=4.2]" in text
    assert "a & 3.200 & 1256" in text
    assert "b & -0.500 & 2.50" in text


def test_units_are_in_the_heading() -> None:
    text = latex.document(table({"a": [3.2, 1]}, [NATS, STATE]))
    assert r"state\\(MiB)" in text


def test_groups_have_rules_below() -> None:
    columns = [column("f1", group="squad"), column("f1", group="icl"), column("x", group="icl")]
    text = latex.document(table({"a": [1, Cell(1, 0, 2), 3]}, columns))
    assert r"\multicolumn{1}{c}{squad} & \multicolumn{3}{c}{icl}" in text
    assert r"\cmidrule(lr){2-2}\cmidrule(lr){3-5}" in text


def test_every_row_has_as_many_fields() -> None:
    rows = {"a": [Cell(3.2, 3.1, 3.3), 1.0], "b": [None, None], "c": [Cell(1.0), Cell(2.0, disturbed=True)]}
    body = latex.document(table(rows, [NATS, STATE])).split(r"\midrule")[1].split(r"\bottomrule")[0]
    assert {len(fields(line)) for line in body.strip().splitlines()} == {4}


def test_marked_numbers_are_as_wide_as_the_others() -> None:
    rows = {"a": [Cell(3.2, mark="best")], "b": [Cell(12.345, mark="second")], "c": [14.0]}
    text = latex.document(table(rows, [NATS]))
    assert r"a & {\phantom{0}\textbf{3.200}} \\" in text
    assert r"b & {\underline{12.345}} \\" in text
    assert "Bold: the best, underlined: the second best" in text
    assert r"family-wise error of 5\%" in latex.document(table(rows, [NATS]), notes=True)


NUMBERS = st.floats(-2000, 2000).map(lambda value: Cell(value)) | st.builds(
    lambda value, spread: Cell(value, value - spread, value + spread), st.floats(-9, 9), st.floats(1e-4, 2)
)
"""Numbers of many magnitudes; a narrow interval gives one more decimals than its neighbours."""


@given(cells=st.lists(NUMBERS, min_size=1, max_size=5), kind=st.sampled_from(["metric", "difference", "cost"]))
def test_a_marked_number_has_a_place_for_every_digit_of_its_column(cells: list[Cell], kind: ColumnKind) -> None:
    """On both sides of the decimal point: else the point of a marked number is not below those of the others."""
    marked = [dataclasses.replace(cell, mark="best") for cell in cells]
    text = latex.document(table({f"m{n}": [cell] for n, cell in enumerate(marked)}, [column("x", kind)]))
    form = re.search(r"table-format=[+-]?(\d+)(?:\.(\d+))?", text)
    places = re.findall(
        r"\{((?:\\phantom\{0\})*)\\textbf\{(?:\+|\$-\$)?(\d+)(?:\.(\d+))?\}((?:\\phantom\{0\})*)\}", text
    )
    assert form is not None
    assert len(places) == len(cells)
    for before, whole, decimals, after in places:
        assert before.count("0") + len(whole) == int(form[1])
        assert len(decimals) + after.count("0") == int(form[2] or 0)


@given(cells=st.lists(NUMBERS, min_size=1, max_size=5), kind=st.sampled_from(["metric", "difference", "cost"]))
def test_a_column_keeps_the_signs_of_its_numbers(cells: list[Cell], kind: ColumnKind) -> None:
    """By itself siunitx drops the plus sign, and has no room for a sign that the format does not name."""
    rows = {f"m{n}": [cell] for n, cell in enumerate(cells)}
    text = latex.document(table(rows, [column("x", kind)]))
    signs = {fields(line)[1][0] for line in text.splitlines() if re.match(r"m\d & ", line)} & {"+", "-"}
    expected = "+" if "+" in signs else "".join(signs)
    form = re.search(r"S\[table-format=([+-]?)[\d.]+(,retain-explicit-plus)?\]", text)
    assert form is not None
    assert form[1] == expected
    assert (form[2] is not None) == ("+" in signs)


def test_deviations_over_seeds_stand_beside_their_means() -> None:
    assert r"a & 3.200 & {\scriptsize $\pm$ 0.250} \\" in latex.document(
        table({"a": [Cell(3.2, deviation=0.25)]}, [NATS])
    )


def test_intervals_and_headings_have_a_minus_and_names_their_hyphens() -> None:
    difference = Column("", "nats_per_token - full-8", "difference", "nats/token - full-8")
    text = latex.document(table({"long-mem": [Cell(-0.132, -0.159, -0.11)]}, [difference]))
    assert r"long-mem & -0.132 & {\scriptsize {[}$-$0.159, $-$0.110{]}} \\" in text
    assert r"{\begin{tabular}[b]{@{}c@{}}nats/token $-$\\full-8\end{tabular}}" in text
    assert r"a & {\textbf{$-$0.500}}" in latex.document(table({"a": [Cell(-0.5, mark="best")]}, [NATS]))


def test_tables_have_captions_labels_and_small_print() -> None:
    text = latex.document(comparison(three()), notes=True)
    assert r"\caption{pg22/S2: real: 50 \% of the books \& more (local), n = 3 examples; context own," in text
    assert r"\label{tab:pg22-s2}" in text
    small = text.split(r"\scriptsize")[-1]
    assert "share = (window - method) / (window - full). device cpu (x), seed 0." in small
    assert "share =" in latex.document(comparison(three()))
    assert "device" not in latex.document(comparison(three()))


@given(st.text(max_size=30))
def test_nothing_in_a_name_is_a_command(name: str) -> None:
    escaped = latex.escaped(name)
    bare = re.sub(r"\\(?:[&%$#_{}]|text\w+\{\}|\\)|\$\\pm\$|\{[][*]\}", "", escaped)
    assert not set(bare) & set("\\&%$#_{}~^[]*")
    assert all(ord(character) < 0x250 for character in escaped)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (2.0, "2.00"),
        (0.00222, "0.00222"),
        (0.000175, "0.000175"),
        (1.75e-7, "0.000000175"),
        (0.0123, "0.012"),
        (45.2, "45.2"),
        (99.97, "100"),
        (1255.7, "1256"),
        (4e9, "4000000000"),
    ],
)
def test_costs_have_three_digits(value: float, text: str) -> None:
    assert latex._number(Cell(value), STATE) == text


@pytest.mark.parametrize("value", [2e-5, -3e-5, 0.0004, 1e5, 2.5e9])
def test_numbers_have_no_exponent_that_breaks_their_alignment(value: float) -> None:
    shown = latex._number(Cell(value), column("a - b", "difference"))
    assert "e" not in shown
    assert float(shown) == pytest.approx(value, rel=0.05)


@pytest.mark.parametrize("name", ["[draft] window", "*", "[1ex]"])
def test_a_row_that_begins_with_a_bracket_or_star_is_a_row(name: str) -> None:
    text = latex.document(table({"full": [3.2], name: [3.1]}, [NATS]))
    assert not re.search(r"(\\\\|rule|space)\s*[\[*]", text)


def test_no_table_has_a_single_column_beside_wider_ones() -> None:
    for count in range(2, 14):
        columns = [column(f"m{n}") for n in range(count)]
        text = latex.document(table({"window": [Cell(1, 0, 2)] * count}, columns))
        specs = re.findall(r"\\begin\{tabular\}\{@\{\}l (.*)@\{\}\}", text)
        assert sum(spec.count("S[") for spec in specs) == count
        assert min(spec.count("S[") for spec in specs) > 1, count


def wide() -> Table:
    """Long names, marks, groups, intervals, differences and disturbed seconds."""
    tasks = ("pg22", "wikitext_x")
    methods = {"window": 3.2, "full": 3.0, "longmem(reduction=1,memory_layers=10-29) (trained 61.4k)": 3.1}
    runs = [result(method, nats, task=task) for task in tasks for method, nats in methods.items()]
    layout = TableLayout(metrics=("all",), costs=("all",), baselines=("window",), marks=True, names=Names())
    return comparison(runs, layout)


def compiled(folder: Path, text: str) -> str:
    """The log of pdfLaTeX for a two-column paper with these tables."""
    (folder / "paper.tex").write_text(PAPER % text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "paper.log").read_text("utf-8", "replace")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is missing: apt-get install texlive-science")
def test_tables_fit_a_two_column_paper(tmp_path: Path) -> None:
    four = comparison(summaries(ROOT / "results/four-methods-pg22"), TableLayout(marks=True))
    every = comparison(summaries(ROOT / "results/nine-tasks"), TableLayout(metrics=("all",), costs=("all",)))
    by_task = comparison(summaries(ROOT / "results/hso-lm"), TableLayout(("task",), (), baselines=("window",)))
    narrow = comparison(
        summaries(ROOT / "results/chapterbreak-ctx-4k"), TableLayout(metrics=("accuracy",), costs=("state",))
    )
    log = compiled(tmp_path, "\n".join(latex.document(form) for form in (four, every, by_task, narrow, wide())))
    assert "Overfull" not in log
    assert "undefined" not in log
    assert r"\begin{table}[t]" in latex.document(narrow)
