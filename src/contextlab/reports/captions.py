"""Captions of tables: the data, the meaning of numbers and signs, and notes on how the numbers were made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from contextlab.errors import listed
from contextlab.harness.stored import Result
from contextlab.reports.cells import Column, Table, paragraph
from contextlab.reports.costs import MOST_SPREAD, timed
from contextlab.reports.dimensions import named
from contextlab.reports.names import Names

NAMED = ("context", "backbone", "dtype")
"""Dimensions that the first sentence names where they are equal for all rows; the notes name the others."""
MACHINE = ("device", "seed")
CONTROLS = {"none": "no context", "wrong": "another example's context"}
"""What the own context is compared with."""
NO_CONTROL = "No method was run with a control: run `contextlab bench` with --context own,none,wrong first."
KINDS = ("real", "re-laid", "generated")
"""Kinds of data, by the first word of their note."""
MOST_DATA = 2
"""So many different data sets are described in the caption; the notes describe more."""
BY_WORK = "95 % intervals over independent works, texts or conversations"
DISTURBED = "~: another program was running"
DISTURBED_NOTE = f"~ marks seconds per FLOP whose middle half over the examples differs by more than {MOST_SPREAD:.0%}"
INTERVALS = (
    "Intervals are t intervals corrected for skewness, Wilson's for numbers between 0 and 1, over clusters (works, "
    "texts, conversations, tasks); one cluster has none"
)
SHARE_NOTE = (
    "share is in nats per token, with Fieller's interval, and stands only between methods that have all learned from "
    "text or have all learned nothing: beside untrained ends what was learned of the domain would count as memory"
)
CONVENTIONS = {
    "TFLOPs": "a multiply-add is 2 FLOPs and causal attention is counted exactly",
    "seconds": "seconds are medians",
    "peak": "peak memory includes the weights",
    "state": "the state is what is kept between context and query",
}
"""How costs are counted, by the first word of their names."""
LEGACY = "Legacy and cached: as the GenerativeAdapter paper prints costs, and the same sizes counted rightly"
LEGACY_NOTE = (
    "Legacy: multiply-accumulates as printed in the GenerativeAdapter paper, whose attention to a cached context is "
    "multiplied by the question's length once too often; cached: the same sizes (Mistral-7B), counted rightly; the "
    "query's tokens count as one question"
)
ALPHA = 0.05
MARKS_NOTE = (
    "Marks: better than every other method of the column, and better than every other but the best, by paired tests "
    f"over clusters between all pairs of methods, corrected by Holm's procedure to a family-wise error of {ALPHA:.0%}"
)
NamedRuns = Sequence[tuple[Result, dict[str, str]]]
"""Results with their names in every dimension."""


def about(shown: NamedRuns, counts: str, differing: Collection[str], names: Names) -> str:
    """The first sentence: which data, how many examples, and the context, model and type of all rows.

    Args:
        shown: every result with its name in each dimension.
        counts: how many examples there are, as `n = 22 examples`; empty where a column says so.
        differing: dimensions in which the results differ.
        names: names for display.
    """
    same = ", ".join(_same(shown, NAMED, differing, names))
    sentences = data(shown, names)
    if len(sentences) > MOST_DATA:
        kinds = Counter({words["task"]: _kind(result.data.note) for result, words in shown}.values())
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        sentences = [f"{kinds.total()} tasks (data: {counted}, described in the notes)"]
    return "; ".join(filter(None, [", ".join(filter(None, ["; ".join(sentences), counts])), same]))


def skipped(results: Iterable[Result]) -> str:
    """How many examples could not be scored, at most; empty where all were."""
    most = max((result.data for result in results), key=lambda data: data.skipped)
    return f"Up to {most.skipped} of {most.examples} examples could not be scored and are not in n" * bool(most.skipped)


def data(shown: NamedRuns, names: Names) -> list[str]:
    """Which data the tasks have, each said once with the tasks that have it."""
    tasks: dict[str, list[str]] = defaultdict(list)
    for result, words in shown:
        tasks[f"{result.data.note} ({result.data.source})"].append(names.of("task", words["task"]))
    return [f"{', '.join(dict.fromkeys(of))}: {note}" for note, of in tasks.items()]


def numbers(subtracted: Sequence[str], seeds: str, *, intervals: bool) -> str:
    """The second sentence: what the numbers are; empty where nothing has to be said.

    Args:
        subtracted: what differences are shown to, as the display names of baselines.
        seeds: over which seeds means are; empty for single ones.
        intervals: whether any number has an interval.
    """
    others = " and to ".join(filter(None, [", ".join(subtracted[:-1]), *subtracted[-1:]]))
    parts = [seeds, f"differences to {others} are paired over the same examples" if others else ""]
    parts.append(f"in brackets {BY_WORK}" if intervals else "")
    sentence = ", ".join(filter(None, parts))
    return sentence[:1].upper() + sentence[1:]


def legend(columns: Sequence[Column], ends: Sequence[tuple[str, str]], names: Names, *, noisy: bool) -> Iterable[str]:
    """The meaning of headings and signs.

    Args:
        columns: of the table.
        ends: methods whose shares are 0 and 1; of two pairs the first is that of methods that have learned.
        names: names for display.
        noisy: whether any of its seconds were disturbed.
    """
    if any(column.kind == "share" for column in columns):
        pairs = [[names.of("method", name) for name in pair] for pair in ends]
        shares = [f"({low} - method) / ({low} - {high})" for low, high in pairs]
        yield f"share = {' for methods that have learned, '.join(shares)}{' for others' if len(shares) > 1 else ''}"
    controls = {column.name.rpartition(" - ")[2] for column in columns if column.kind == "difference"}
    yield from (f"- {control}: beyond {meaning}" for control, meaning in CONTROLS.items() if control in controls)
    if noisy:
        yield DISTURBED
    if "legacy" in _costs(columns):
        yield LEGACY


def own_windows(shown: NamedRuns, names: Names) -> Iterable[str]:
    """Models that themselves attend in a sliding window, so that `full` is not attention to all tokens."""
    yield from dict.fromkeys(
        f"{names.of('backbone', r.backbone)} attends in a sliding window of its own: with every method, full too, a "
        f"query sees at most {r.own_window:,} tokens there"
        for r, _ in shown
        if r.own_window
    )


def unequal_timing(shown: NamedRuns, columns: Sequence[Column], names: Names) -> Iterable[str]:
    """Threads, and examples computed side by side, where the seconds of a table were not all measured with as many."""
    if not any(column.kind == "cost" and timed(column.name) for column in columns):
        return
    counts: dict[str, list[int | None]] = {
        "threads": [run.provenance.threads for run, _ in shown],
        "examples side by side": [run.provenance.batch or 1 for run, _ in shown],
    }
    methods = [names.of("method", words["method"]) for _, words in shown]
    for what, of_runs in counts.items():
        by_count: dict[int, dict[str, None]] = defaultdict(dict)
        for method, count in zip(methods, of_runs, strict=True):
            if count is not None:
                by_count[count][method] = None
        if len(by_count) > 1:
            each = (f"{count} ({listed(list(by_count[count]))})" for count in sorted(by_count))
            yield f"Seconds were measured with {' and '.join(each)} {what}"


def notes(
    shown: NamedRuns, columns: Sequence[Column], differing: Collection[str], names: Names, *, noisy: bool
) -> Iterable[str]:
    """How the numbers were made: machine, data, where methods end, their twins, intervals and the counting of costs.

    Args:
        shown: every result with its name in each dimension.
        columns: of the table.
        differing: dimensions in which the results differ.
        names: names for display.
        noisy: whether any of its seconds were disturbed.
    """
    if len(described := data(shown, names)) > MOST_DATA:
        yield from described
    yield from filter(None, [", ".join(_same(shown, MACHINE, differing, names))])
    limits = dict.fromkeys((named(r), r.max_context) for r, _ in shown if r.max_context)
    for method, tokens in limits:
        yield f"{names.of('method', method)} starts again every {tokens:,} tokens"
    yield from dict.fromkeys(
        f"The twin of {names.of('method', named(r))}, without memory, is {names.of('method', r.twin)}"
        for r, _ in shown
        if r.twin
    )
    yield INTERVALS
    if any(column.kind == "share" for column in columns):
        yield SHARE_NOTE
    yield from of_costs(columns, noisy=noisy)


def of_costs(columns: Sequence[Column], *, noisy: bool, each: str = "example") -> Iterable[str]:
    """How the costs that are there were counted.

    Args:
        columns: of the table.
        noisy: whether any of its seconds were disturbed.
        each: what one cost is for.
    """
    first = _costs(columns)
    sentences = [sentence for word, sentence in CONVENTIONS.items() if word in first]
    if sentences:
        yield f"Costs are per {each}; {'; '.join(sentences)}"
    if noisy:
        yield DISTURBED_NOTE
    if "legacy" in first:
        yield LEGACY_NOTE


def directions(results: Iterable[Result], names: Names) -> Iterable[str]:
    """For every measure, whether higher or lower is better."""
    measures = dict.fromkeys(result.measure for result in results)
    words = {True: "higher", False: "lower"}
    better = [
        f"{names.of('metric', measure.name)} {words[measure.higher_is_better]}"
        for measure in measures
        if measure.higher_is_better is not None
    ]
    if better:
        yield f"Better is: {', '.join(better)}"


def below(table: Table, best: str = "Bold", second: str = "underlined") -> str:
    """The caption of a table in one paragraph, with what its marks mean where it has any.

    Args:
        table: the table.
        best: how the best number looks.
        second: how the second best number looks.
    """
    return paragraph((*table.sentences, *explained(table, best, second)))


def explained(table: Table, best: str = "Bold", second: str = "underlined") -> tuple[str, ...]:
    """The end of a caption, after its two sentences: the legend, the marks, and the runs that are left out."""
    marks = f"{best}: the best, {second}: the second best, where paired tests tell them from every other method"
    return (*table.legend, *([marks] if _marked(table) else []), *filter(None, [table.left_out]))


def remarks(table: Table) -> tuple[str, ...]:
    """The notes of a table, with how its marks were made where it has any."""
    return (*table.notes, *([MARKS_NOTE] if _marked(table) else []))


def _marked(table: Table) -> bool:
    return any(cell.mark for cell in table.cells.values())


def _same(shown: NamedRuns, dimensions: Sequence[str], differing: Collection[str], names: Names) -> list[str]:
    """Dimensions that are equal for all rows, with their names."""
    words = shown[0][1]
    return [f"{name} {names.of(name, words[name])}" for name in dimensions if name not in differing]


def _kind(note: str) -> str:
    return next((kind for kind in KINDS if note.startswith(kind)), "other")


def _costs(columns: Sequence[Column]) -> set[str]:
    """The first words of the costs that a table has."""
    return {column.name.split(" ")[0] for column in columns if column.kind == "cost"}
