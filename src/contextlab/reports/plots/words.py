"""Captions of pictures: what is drawn of how many examples, and a legend of what is not said by names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas

from contextlab.reports.left_out import LeftOut
from contextlab.reports.plots.observed import clusters_of, runs_of

INTERVALS = "95 % intervals"
STAIR = "dashed: no other method is better and costs as little"


def data_of(rows: pandas.DataFrame) -> str:
    """How many examples of which tasks with which model; tasks with the same data are said together."""
    tasks: dict[str, list[str]] = {}
    for row in runs_of(rows):
        tasks.setdefault(f"{row.note}, {row.source}", []).append(row.task)
    about = "; ".join(f"{', '.join(dict.fromkeys(of))} ({data})" for data, of in tasks.items())
    return f"{count_of(rows)} of {about}, {rows['backbone'].iloc[0]}"


def count_of(rows: pandas.DataFrame) -> str:
    """`n = 22 examples`, or `n = 48 in 6 examples` where an example has several questions."""
    counts, examples = sorted(set(rows["n"].dropna())), sorted(set(rows["examples"]))
    words = _range(examples) + (" example" if examples == [1] else " examples")
    return f"n = {words}" if counts == examples or not counts else f"n = {_range(counts)} in {words}"


def bars_of(rows: pandas.DataFrame, intervals: bool, paired: bool) -> str:
    """What the bars are; empty without any."""
    if not intervals:
        return ""
    known = [clusters_of(row) for row in runs_of(rows.drop_duplicates(["task", "examples"]))]
    counts = sorted({count for count, _ in known if count})
    over = f" over {_range(counts)} {known[0][1]}" if counts else ""
    return f"bars: {INTERVALS}{' of paired differences' if paired else ''}{over}"


def grey_of(labels: Sequence[str]) -> str:
    """How many series are grey; empty for none."""
    return f"grey: {len(labels)} further method{'s' * (len(labels) > 1)}" if labels else ""


def caption(sentences: Sequence[str], legend: Sequence[str], left_out: LeftOut) -> str:
    """At most two sentences, and a legend that ends with the runs that are not drawn; empty parts are not said."""
    missing = left_out.sentence
    parts = [one for one in (*legend, missing[:1].lower() + missing[1:]) if one]
    ends = [f"{_upper(one)}." for one in sentences if one]
    return " ".join([*ends, *([f"{_upper('; '.join(parts))}."] if parts else [])])


def notes(rows: pandas.DataFrame, grey: Sequence[str] = (), *more: str) -> str:
    """Under which circumstances runs were made, and the names of grey series."""
    first: Any = rows.iloc[0]
    common = f"Context {first.context}, backbone {first.backbone}, dtype {first['dtype']}, seed {first.seed}."
    names = [f"Grey: {'; '.join(grey)}."] if grey else []
    return " ".join([common, *names, *more])


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]
