"""Which results must not stand in one table: the same task with other data, other prompts or other counting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from contextlab.errors import UserError
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.layout import listed

DIGITS = 8


def check_alike(results: Sequence[Result]) -> None:
    """Refuse results whose numbers cannot be compared.

    Results of one task and split need the same data, those with the same context also the same prompts, and all of a
    table the same version of the package, which decides how costs are counted.

    Raises:
        UserError: which names the task and the runs that differ.
    """
    for mixture in _mixtures(results):
        raise UserError(mixture)


def _mixtures(results: Sequence[Result]) -> Iterator[str]:
    """One sentence for everything in which results differ that must be equal."""
    yield from _of(results, "data", "data", lambda r: f"{r.task}/{r.split}", lambda r: r.data.sha256)
    yield from _of(
        results,
        "prompts",
        "prompts",
        lambda r: f"{labels.of_result(r)} with context {r.context}",
        lambda r: r.provenance.prompt_sha256,
    )
    yield from _of(results, "counting", "version", lambda _: "The table", lambda r: r.provenance.contextlab)


def _of(
    results: Sequence[Result],
    kind: str,
    column: str,
    group: Callable[[Result], str],
    value: Callable[[Result], str],
) -> Iterator[str]:
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        groups[group(result)][value(result)].append(result.run_id)
    for name, values in groups.items():
        if len(values) > 1:
            shown = listed([f"{one[:DIGITS]} in {listed(runs, 1)}" for one, runs in values.items()])
            first = next(iter(values))
            yield (
                f"{name} has results with different {kind} ({shown}): choose one with "
                f"--where '{column}={first[:DIGITS]}*', or show all with --mixed."
            )
