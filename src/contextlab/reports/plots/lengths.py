"""The picture of what methods keep of their score, against the length of the context."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.benchmarks.metrics.bootstrap import DRAWS, central
from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.lengths import SHARE, LengthRow, name_of, of_tasks
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import PictureOptions, named, ranked, unique_titles
from contextlab.reports.plots.observed import check_one, measure_rows, metric_label
from contextlab.reports.plots.picture import Axis, Guide, Interval, Panel, Picture, Series
from contextlab.reports.plots.quality import SAME


def effective_length(results: Sequence[Result], options: PictureOptions, left_out: LeftOut) -> Picture:
    """The share of the score at the shortest length that is left, with the line that an effective length needs.

    Args:
        results: of `reports.filters.selection_of`.
        options: what a user has chosen.
        left_out: the runs that are not among the results.

    Raises:
        UserError: as `lengths.of_tasks`, or when results have several tasks or contexts.
    """
    tasks, left_out = of_tasks(results, left_out)
    if len(tasks) > 1:
        raise UserError(
            f"An effective length is drawn for one task, and there are {', '.join(tasks)}: choose with --where "
            "'benchmark=...'."
        )
    ((task, rows),) = tasks.items()
    lines = {row.words["method"]: row for row in rows if row.base > 0}
    if not lines:
        raise UserError(f"Every score on {task} is 0 at the shortest length, and has no share: choose another task.")
    frame = frame_of([run for row in lines.values() for run in row.runs.values()])
    check_one(frame, SAME, "Effective lengths are drawn for")
    labels = unique_titles(lines, options.names)
    last = {method: (row.first.method, row.scores[row.lengths[-1]] / row.base) for method, row in lines.items()}
    chosen = named(ranked(last, higher=True), options)
    lengths = sorted({length for row in lines.values() for length in row.lengths})
    series = tuple(_series(row, labels[method], lengths, quiet=method not in chosen) for method, row in lines.items())
    share = f"share of the {metric_label(rows[0].first.measure.name, None, None, options.names)} at the shortest length"
    ticks = tuple((float(place), name_of(length)) for place, length in enumerate(lengths))
    level = Guide("", "level", (), (SHARE,))
    panel = Panel(Axis("length of the context", ticks=ticks), Axis(share), series, (level,), dodge=True, labels="ends")
    grey = [curve.label for curve in series if curve.quiet]
    bounded = any(curve.intervals for curve in series)
    legend = [
        f"line: the {100 * SHARE:g} % that an effective length needs",
        f"bars: {picture.INTERVALS} from {DRAWS:,} draws of works, texts or conversations" if bounded else "",
        picture.grey_of(grey),
    ]
    left_out = left_out.also(
        sum(len(row.runs) for row in rows if row.base <= 0), "with a score of 0 at the shortest length"
    )
    of_measure = measure_rows(frame, None)
    caption = picture.caption([f"{share}, {picture.data_of(of_measure)}"], legend, left_out)
    return Picture((panel,), caption, picture.notes(of_measure, grey))


def _series(row: LengthRow, label: str, lengths: Sequence[int], *, quiet: bool) -> Series:
    """The shares of one method; that at the shortest length is 1, without an interval."""
    intervals: tuple[Interval, ...] = ()
    if row.draws is not None and not quiet:
        shares_DL = row.draws / row.draws[:, :1]
        intervals = (None, *(central(shares_DL[:, place]) for place in range(1, len(row.lengths))))
    return Series(
        label,
        row.first.method,
        tuple(float(lengths.index(length)) for length in row.lengths),
        tuple(score / row.base for score in row.scores.values()),
        intervals,
        line=True,
        form=row.words["method"],
        quiet=quiet,
    )
