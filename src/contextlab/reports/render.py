"""Tables as Markdown and HTML; names in results cannot act as markup."""

from __future__ import annotations

import html
from collections.abc import Callable

from contextlab import harmless
from contextlab.errors import unknown
from contextlab.reports import captions, latex
from contextlab.reports.cells import Mark, Table, in_groups, paragraph

MARKED: dict[str, dict[Mark, str]] = {
    "markdown": {"": "{}", "best": "**{}**", "second": "<u>{}</u>"},
    "html": {"": "{}", "best": "<b>{}</b>", "second": "<u>{}</u>"},
}


def render(table: Table, style: str = "markdown", *, notes: bool = False) -> str:
    """A table as text with its caption.

    Args:
        table: from `tables.comparison`.
        style: one of `FORMATS`.
        notes: whether to say below how the numbers were made; HTML always does, below a heading that opens.

    Raises:
        UserError: for another style.
    """
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    return FORMATS[style](table, notes)


def _markdown(table: Table, notes: bool) -> str:
    heading = [*table.keys, *(column.label for column in table.columns)]
    lines = [list(map(harmless.markdown, heading)), ["---"] * len(heading), *_rows(table, "markdown")]
    paragraphs = [captions.below(table), *([paragraph(captions.remarks(table))] if notes else [])]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([rows, *map(harmless.markdown, filter(None, paragraphs))]) + "\n"


def _html(table: Table, _: bool) -> str:
    groups = in_groups(table.columns)
    heads = []
    if any(name for name, _ in groups):
        spans = "".join(f'<th colspan="{len(columns)}">{_escaped(name)}</th>' for name, columns in groups)
        heads.append(f'<tr><th colspan="{len(table.keys)}"></th>{spans}</tr>')
    names = "".join(f"<th>{_escaped(name)}</th>" for name in (*table.keys, *(column.name for column in table.columns)))
    heads.append(f"<tr>{names}</tr>")
    rows = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in _rows(table, "html")]
    caption = f"<caption>{_escaped(captions.below(table))}</caption>"
    lines = ["<table>", caption, "<thead>", *heads, "</thead>", "<tbody>", *rows, "</tbody>", "</table>"]
    if remarks := captions.remarks(table):
        items = "".join(f"<li>{_escaped(remark)}.</li>" for remark in remarks)
        lines.append(f"<details><summary>How the numbers were made</summary><ul>{items}</ul></details>")
    return "\n".join(lines) + "\n"


def _rows(table: Table, style: str) -> list[list[str]]:
    """The labels and numbers of every row, escaped and marked."""
    escape = _escaped if style == "html" else harmless.markdown
    rows = []
    for row, label in enumerate(table.rows):
        cells = []
        for number in range(len(table.columns)):
            cell = table.cells.get((row, number))
            cells.append("" if cell is None else MARKED[style][cell.mark].format(escape(table.text(row, number))))
        rows.append([*map(escape, label), *cells])
    return rows


def _escaped(text: str) -> str:
    return html.escape(harmless.line(text))


FORMATS: dict[str, Callable[[Table, bool], str]] = {"markdown": _markdown, "latex": latex.document, "html": _html}
"""Formats of a table; `csv` and `json` are those of the frame, and `text` is that of a terminal."""
