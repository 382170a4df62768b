from __future__ import annotations

import re

import pytest
from made_tables import NATS, STATE, column, table
from stored_runs import NATS as METHODS
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports.cells import Cell
from contextlab.reports.render import FORMATS, render
from contextlab.reports.tables import comparison


@pytest.mark.parametrize("style", FORMATS)
def test_no_format_goes_without_the_data(style: str) -> None:
    text = render(comparison(three()), style)
    assert "of the books" in text
    assert "cpu (x)" in render(comparison(three()), style, notes=True)
    assert ("cpu (x)" in text) == (style == "html")
    assert all(method in text for method in METHODS)


def test_markdown_has_as_many_cells_in_every_line() -> None:
    compared = comparison([result("a|b"), result("c")])
    shown, caption = render(compared).split("\n\n")
    counts = {line.replace("\\|", "").count("|") for line in shown.splitlines()}
    assert counts == {len(compared.columns) + 2}
    assert caption.strip() == compared.caption
    assert render(compared, notes=True).split("\n\n")[2].strip() == " ".join(f"{note}." for note in compared.notes)


def test_markup_is_escaped() -> None:
    compared = comparison([result("<b>&_")])
    for style in ("html", "markdown"):
        assert "<b>" not in render(compared, style)
    assert "&lt;b&gt;&amp;" in render(compared, "html")
    assert r"\textless{}b\textgreater{}\&\_" in render(compared, "latex")


def test_html_has_groups_above_their_columns() -> None:
    columns = [column("f1", group="squad"), column("accuracy", group="icl"), column("n", "count", group="icl")]
    text = render(table({"window": [0.1, 0.2, 3]}, columns), "html")
    assert re.findall(r'<th colspan="(\d)">(\w+)</th>', text) == [("1", "squad"), ("2", "icl")]
    assert re.findall(r"<td>(.*?)</td>", text) == ["window", "0.100", "0.200", "3"]


@pytest.mark.parametrize(
    ("style", "best", "second"), [("markdown", "**3.000**", "<u>3.200</u>"), ("html", "<b>3.000</b>", "<u>3.200</u>")]
)
def test_marks_are_shown_and_explained(style: str, best: str, second: str) -> None:
    rows = {"window": [Cell(3.2, mark="second"), 1], "full": [Cell(3.0, mark="best"), 2], "x": [4, None]}
    text = render(table(rows, [NATS, STATE]), style)
    assert best in text
    assert second in text
    assert "Bold: the best, underlined: the second best" in text
    assert "Holm" in render(table(rows, [NATS, STATE]), style, notes=True)
    assert "Holm" not in render(table({"x": [4]}, [NATS]), style, notes=True)


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(UserError, match="did you mean 'markdown'"):
        render(comparison(three()), "markdwn")
