r"""Tables for a paper in LaTeX: booktabs and siunitx, as wide as a column or the page of a two-column paper.

The preamble needs `\usepackage{booktabs,siunitx}`. Widths are estimated for Computer Modern in footnote size, on the
safe side; a table that is wider than the page becomes several.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Sequence

from contextlab import files, harmless
from contextlab.reports import captions
from contextlab.reports.cells import (
    Cell,
    Column,
    Table,
    deviation,
    in_groups,
    interval,
    paragraph,
    split_columns,
    value,
)
from contextlab.reports.names import RowLabels, short_labels

COLUMN, PAGE = 219.0, 455.0
"""Widths in points of the narrowest usual column and page (ACL's)."""
GAP = 6.0
LONGEST = 26
"""The most characters of a part of a row's label; longer ones have a note."""
STACKED = r"{\begin{tabular}[b]{@{}c@{}}%s\end{tabular}}"
MINUS = re.compile(r"(?:(?<!\S)|(?<=\{\[\}))-(?=\d|\s|$)")
"""A hyphen before a number or between words, where it is a minus sign; in text siunitx does not make it one."""
SMALL_PRINT = r"\par\smallskip\parbox{\linewidth}{\scriptsize %s}"
ESCAPED = str.maketrans(
    {character: "\\" + character for character in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        # A bracket or a star at the beginning of a row would belong to the \\ before it.
        "[": "{[}",
        "]": "{]}",
        "*": "{*}",
    }
)


def document(table: Table, notes: bool = False) -> str:
    """One or more table environments with caption and label, and a comment that names the packages.

    Args:
        table: the table.
        notes: whether the small print says how the numbers were made.
    """
    labels = short_labels(table, LONGEST)
    beside = _labels_width(table, labels)
    widths = [_width(table, column) for column in range(len(table.columns))]
    groups = in_groups(table.columns)
    if beside + sum(widths) <= COLUMN:
        parts, kind = [list(range(len(table.columns)))], "table"
    else:
        parts, kind = split_columns(groups, widths, PAGE - beside), "table*"
    small = _small_print(table, labels, notes)
    texts = [_environment(table, labels, columns, kind, n, small) for n, columns in enumerate(parts, start=1)]
    return "% The preamble needs \\usepackage{booktabs,siunitx}.\n" + "\n".join(texts)


def escaped(text: object) -> str:
    """Text in which nothing acts as a command; characters that pdfLaTeX does not know are written as `?`."""
    plain = harmless.line(text).translate(ESCAPED)
    return "".join(character if ord(character) < 0x250 else "?" for character in plain)


def _with_minus(text: str) -> str:
    """Escaped text with minus signs; hyphens within names stay."""
    return MINUS.sub("$-$", text)


def _environment(table: Table, labels: RowLabels, columns: list[int], kind: str, part: int, small: str) -> str:
    """One table of some columns."""
    shown = [table.columns[number] for number in columns]
    grouped = any(column.group for column in shown)
    spec = " ".join(["l" * len(table.keys), *(_spec(table, number) for number in columns)])
    body = [
        *([_group_heading(shown, len(table.keys), table, columns)] if grouped else []),
        _heading(table, columns),
        r"\midrule",
        *_rows(table, labels, columns),
    ]
    label = "tab:" + _slug(table)
    caption = escaped(paragraph(table.sentences)) if part == 1 else f"Table~\\ref{{{label}}}, continued."
    name = label if part == 1 else f"{label}-{part}"
    lines = [
        f"\\begin{{{kind}}}[t]",
        r"\centering\footnotesize",
        rf"\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}",
        rf"\caption{{{caption}}}",
        rf"\label{{{name}}}",
        r"\smallskip",
        rf"\begin{{tabular}}{{@{{}}{spec}@{{}}}}",
        r"\toprule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([SMALL_PRINT % small] if part == 1 and small else []),
        f"\\end{{{kind}}}",
    ]
    return "\n".join(lines) + "\n"


def _small_print(table: Table, labels: RowLabels, notes: bool) -> str:
    """The text below a table: notes on labels, the legend, and on request how the numbers were made."""
    of_labels = [rf"\textsuperscript{{{letter}}}{escaped(note)}." for letter, note in labels.notes.items()]
    sentences = [*captions.explained(table), *(captions.remarks(table) if notes else ())]
    return " ".join(filter(None, [*of_labels, escaped(paragraph(sentences))]))


def _slug(table: Table) -> str:
    """The words of a label: the tasks, as far as they are few."""
    words = files.slug(table.sentences[0].split(":")[0])
    return words[:40].strip("-") or "results"


def _group_heading(columns: Sequence[Column], keys: int, table: Table, numbers: Sequence[int]) -> str:
    """Names of groups above their columns, and a rule below each."""
    cells, rules = [""] * keys, []
    position = keys
    for name, members in in_groups(columns):
        span = sum(_fields(table, numbers[member]) for member in members)
        cells.append(rf"\multicolumn{{{span}}}{{c}}{{{escaped(name)}}}")
        rules.append(rf"\cmidrule(lr){{{position + 1}-{position + span}}}")
        position += span
    return " & ".join(cells) + r" \\" + "\n" + "".join(rules)


def _heading(table: Table, columns: Sequence[int]) -> str:
    cells = [escaped(key) for key in table.keys]
    for number_ in columns:
        lines = [_with_minus(escaped(line)) for line in _heading_lines(table.columns[number_])]
        text = r"\\".join(lines)
        cells.append(f"{{{text}}}" if len(lines) == 1 else STACKED % text)
        cells += [STACKED % r"95\,\%\\interval"] * (_fields(table, number_) - 1)
    return " & ".join(cells) + r" \\"


def _heading_lines(column: Column) -> list[str]:
    lines = _wrapped(column.title)
    return [*lines, f"({column.unit})"] if column.unit else lines


def _wrapped(text: str, longest: int = 14) -> list[str]:
    """Words in lines that are short where they can be."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= longest:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _rows(table: Table, labels: RowLabels, columns: Sequence[int]) -> Iterable[str]:
    before = ""
    for row, label in enumerate(labels.rows):
        texts = [escaped(name) + (rf"\textsuperscript{{{letter}}}" if letter else "") for name, letter in label]
        first = texts[0]
        if len(texts) > 1 and first == before:
            texts[0] = ""
        elif before and len(texts) > 1:
            yield r"\addlinespace"
        before = first
        cells = [text for column in columns for text in _cells(table, row, column)]
        yield " & ".join([*texts, *cells]) + r" \\"


def _cells(table: Table, row: int, column: int) -> list[str]:
    """A number, and its interval where the column has any."""
    cell, kind = table.cells.get((row, column)), table.columns[column].kind
    if cell is None:
        return [""] * _fields(table, column)
    if kind == "text":
        return [escaped(cell.text)]
    text = _number(cell, table.columns[column])
    if cell.mark:
        text = _marked(text, cell, _format(table, column))
    texts = [text + (f" {escaped(cell.sign)}" if cell.sign else "")]
    if _fields(table, column) == 2:
        bracketed = deviation(cell, kind) or interval(cell, kind)
        texts.append(rf"{{\scriptsize {_with_minus(escaped(bracketed))}}}" if bracketed else "")
    return texts


def _number(cell: Cell, column: Column) -> str:
    """A number that siunitx reads: without separators of thousands or an exponent."""
    if column.kind != "cost":
        return _positional(value(cell, column.kind).replace(",", ""))
    # Three digits, also where the last ones are 0; no more than three decimals where these say enough.
    size = abs(cell.value)
    text = f"{float(f'{cell.value:.3g}'):#.3g}" if size < 100 else f"{cell.value:.0f}"
    decimals = len(text.partition(".")[2])
    return _positional(text.rstrip(".")) if decimals <= 3 or 0 < size < 0.01 else f"{cell.value:.3f}"


def _positional(text: str) -> str:
    """A number without an exponent, which would not be aligned at the decimal point."""
    if "e" not in text:
        return text
    return f"{decimal.Decimal(text):{'+' if text.startswith('+') else ''}f}"


def _marked(text: str, cell: Cell, digits: tuple[int, int]) -> str:
    """A marked number as wide as the others of its column, so that decimal points stay below each other."""
    whole, _, decimals = text.lstrip("+-").partition(".")
    before = r"\phantom{0}" * (digits[0] - len(whole))
    after = r"\phantom{0}" * (digits[1] - len(decimals))
    command = r"\textbf" if cell.mark == "best" else r"\underline"
    return rf"{{{before}{command}{{{_with_minus(text)}}}{after}}}"


def _format(table: Table, column: int) -> tuple[int, int]:
    """The largest numbers of digits before and after the decimal point."""
    texts = [_number(cell, table.columns[column]).lstrip("+-") for cell in table.column(column)]
    parts = [text.partition(".") for text in texts]
    return max(len(whole) for whole, _, _ in parts), max(len(decimals) for _, _, decimals in parts)


def _spec(table: Table, column: int) -> str:
    """The type of a column: numbers aligned at the decimal point, and intervals after them; texts are ranged right."""
    if table.columns[column].kind == "text":
        return "r"
    whole, decimals = _format(table, column)
    texts = [_number(cell, table.columns[column]) for cell in table.column(column)]
    sign = "+" if any(text.startswith("+") for text in texts) else "-" if any(t.startswith("-") for t in texts) else ""
    options = f"table-format={sign}{whole}.{decimals}" if decimals else f"table-format={sign}{whole}"
    if sign == "+":
        options += ",retain-explicit-plus"
    signs = [cell.sign for cell in table.column(column) if cell.sign]
    if signs:
        options += f",table-space-text-post={{{escaped(signs[0])}}}"
    return f"S[{options}]" + ("@{\\;}l" if _fields(table, column) == 2 else "")


def _fields(table: Table, column: int) -> int:
    """2 where a column has intervals or deviations, which need a second column; otherwise 1."""
    return 2 if any(cell.low is not None or cell.deviation is not None for cell in table.column(column)) else 1


def _width(table: Table, column: int) -> float:
    """An upper estimate of a column's width in points."""
    kind = table.columns[column].kind
    lines = _heading_lines(table.columns[column])
    if kind == "text":
        return max(4.4 * len(text) for text in (*lines, *(cell.text for cell in table.column(column)))) + GAP
    texts = [_number(cell, table.columns[column]) for cell in table.column(column)]
    whole, decimals = _format(table, column)
    signed = any(text[0] in "+-" for text in texts)
    width = max(4.4 * max(map(len, lines)), 4.3 * (whole + decimals) + 2.5 + 6.6 * signed)
    if any(cell.sign for cell in table.column(column)):
        width += 7
    if _fields(table, column) == 2:
        intervals = [deviation(cell, kind) or interval(cell, kind) for cell in table.column(column)]
        width += max(3.6 * max(map(len, intervals)), 4.3 * len("interval")) + 3
    return width + GAP


def _labels_width(table: Table, labels: RowLabels) -> float:
    """An upper estimate of the labels' width in points."""
    widths = [
        max([len(key), *(len(label[part][0]) + len(label[part][1]) for label in labels.rows)])
        for part, key in enumerate(table.keys)
    ]
    return sum(4.1 * width + GAP for width in widths)
