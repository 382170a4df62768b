"""The layout of a table: rows, columns, metrics, costs, and how they are named and ordered."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from contextlab.errors import UserError, check_known
from contextlab.reports import costs
from contextlab.reports.dimensions import DIMENSIONS
from contextlab.reports.names import Names

ALL = "all"
SHARE = "share"
ENDS = ("window", "full")
"""The methods whose shares of full attention's gain are 0 and 1."""


@dataclasses.dataclass(frozen=True)
class TableLayout:
    """Rows, columns and numbers of a table.

    Attributes:
        rows: dimensions of the rows; others in which the results differ are added.
        columns: dimensions of the columns; each of their values has its own group of columns.
        metrics: names of metrics, with `share`; `all` for all, the measure of every task and the share when empty.
        costs: words of `costs.CATALOGUE`: groups or single costs; `none` for none.
        baselines: methods whose metrics are subtracted, one after the other; named as in the table's rows, or without
            settings where there is only one result of it. One of them may be a pattern with `*`, `?` or `|`, which
            stands for the best of several (`EqualBytes`).
        twins: the methods whose shares are 0 and 1, named as the baselines: cold windows and full attention, with the
            same training as the methods between them; `ENDS` where nobody names any. Where these have learned, the
            shares of methods that have not stay between plain `window` and `full`.
        controls: whether rows are of the own context alone, each with its difference to the same method without a
            context and with another example's, where these were run.
        sort: a dimension or column to order the rows by, with `-` for descending; the order of the runs when empty.
        names: names for display.
        mean_seeds: whether runs that differ only in their seed become one row, with mean and standard deviation.
        mean_tasks: whether to add the mean over the tasks.
        marks: whether tests mark the best and the second best of a column.
        legacy: whether to add the cost that Table 1 of the GenerativeAdapter paper would print for a question of the
            query's length after the cached keys, and its true cost, both with the paper's model sizes.
    """

    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ("task",)
    metrics: tuple[str, ...] = ()
    costs: tuple[str, ...] = costs.FEW
    baselines: tuple[str, ...] = ()
    twins: tuple[str, str] | None = None
    controls: bool = False
    sort: str = ""
    names: Names = dataclasses.field(default_factory=Names)
    mean_seeds: bool = False
    mean_tasks: bool = False
    marks: bool = False
    legacy: bool = False

    def check(self, metrics: Collection[str]) -> None:
        """Refuse names that are not known.

        Args:
            metrics: of the results.

        Raises:
            UserError: for an unknown dimension, metric or cost, or where rows and columns are the same.
        """
        check_known("dimension", (*self.rows, *self.columns), DIMENSIONS)
        check_known("metric", self.metrics, {*metrics, ALL, SHARE})
        costs.selected(self.costs)
        if not self.rows:
            raise UserError("The table has no rows: name at least one dimension with --rows.")

    @property
    def ends(self) -> tuple[str, str]:
        """The methods whose shares are 0 and 1."""
        return self.twins or ENDS

    @property
    def names_share(self) -> bool:
        """Whether the share, or methods for it, are named, so that a table without it says why."""
        return self.twins is not None or SHARE in self.metrics

    @property
    def shows_share(self) -> bool:
        """Whether the share of full attention's gain is shown."""
        return not self.metrics or bool({ALL, SHARE, "nats_per_token"} & set(self.metrics))

    def chosen(self, measures: Iterable[str], available: Iterable[str]) -> list[str]:
        """The metrics of one group of columns, in their order.

        Args:
            measures: of the tasks in the group.
            available: all metrics of their results.
        """
        metrics = dict.fromkeys(available)
        if ALL in self.metrics:
            return list(metrics)
        names = self.metrics or tuple(measures)
        return [name for name in dict.fromkeys(names) if name in metrics]
