"""Checks that the results of a table are comparable, and sentences about those that are not."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain

from contextlab import registry, trained
from contextlab.errors import UserError, listed
from contextlab.harness import labels
from contextlab.harness.stored import Result, minor
from contextlab.reports.cells import Table
from contextlab.reports.dimensions import kind_of_device, named, started
from contextlab.reports.names import PLAIN, Names
from contextlab.trained import Trained

DIGITS = 8
COMMIT = 7
"""Digits of a commit that are shown."""
FEW = 3
"""The most values whose methods a caption names; of more it says how many runs have the most frequent one."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Something in which results differ that must be equal.

    Attributes:
        what: the values are, as `states of the code`.
        values: names of the values with their results, in the order of their starts.
        conditions: for each value a condition that leaves results of it alone.
        names: display names of methods.
    """

    what: str
    values: tuple[tuple[str, tuple[Result, ...]], ...]
    conditions: tuple[str, ...]
    names: Names = PLAIN

    @property
    def refusal(self) -> str:
        """One sentence for an error."""
        shown = "; ".join(f"{name} in {listed([run.run_id for run in runs], 1)}" for name, runs in self.values[:FEW])
        more = f"; {len(self.values) - FEW} more" if len(self.values) > FEW else ""
        return (
            f"Runs come from {len(self.values)} {self.what} ({shown}{more}): choose one with "
            f"--where '{self.conditions[0]}', or show all with --mixed."
        )

    @property
    def sentence(self) -> str:
        """A short sentence for a caption, without its full stop."""
        if len(self.values) <= FEW:
            return f"Runs come from {len(self.values)} {self.what}: {self._with_methods}"
        name, most = max(self.values, key=lambda value: len(value[1]))
        total = sum(len(runs) for _, runs in self.values)
        return f"Runs come from {len(self.values)} {self.what}, {len(most)} of {total} from {name}"

    @property
    def detail(self) -> str:
        """All values with their methods for notes, where the short sentence does not name them; otherwise empty."""
        return f"The {self.what}: {self._with_methods}" if len(self.values) > FEW else ""

    @property
    def _with_methods(self) -> str:
        return ", ".join(f"{name} ({', '.join(dict.fromkeys(map(self._method, runs)))})" for name, runs in self.values)

    def _method(self, result: Result) -> str:
        return self.names.of("method", named(result))


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Something that must be equal in the results of a group.

    Attributes:
        what: the values are; the name of the group follows.
        column: of the frame that holds the values.
        value: of a result; None where it is not known.
        group: name of the group of a result, with display names.
        pattern: that fits a value in the frame.
    """

    what: str
    column: str
    value: Callable[[Result], str | None]
    group: Callable[[Result, Names], str] = lambda *_: ""
    pattern: str = "{}"


def _learned_by(result: Result, names: Names) -> str:
    settings = {name: result.method_config[name] for name in result.changed if name in result.method_config}
    method, backbone = names.of("method", labels.of_run(result, settings)), names.of("backbone", result.backbone)
    return f"{method} in {result.provenance.dtype} on {backbone}"


def _texts_of(result: Result, names: Names) -> str:
    """A task with its split; with its length, too, where texts are made to it."""
    has_length = _made_to_a_length(result.task)
    return names.of("task", labels.of_result(result) if has_length else f"{result.task}/{result.split}")


@functools.cache
def _made_to_a_length(task: str) -> bool:
    """Whether the texts of an installed task have a length in tokens; a file of the user's is not run to find out."""
    try:
        return task in registry.tasks() and registry.task_class(task).in_tokens
    except UserError:  # a package whose task cannot be imported any more
        return False


KINDS = (
    _Kind(
        "sets of data of",
        "data",
        lambda r: r.data.sha256,
        _texts_of,
        "{}*",
    ),
    _Kind(
        "prompts of",
        "prompts",
        lambda r: r.provenance.prompt_sha256,
        lambda r, names: f"{names.of('task', labels.of_result(r))} with context {names.of('context', r.context)}",
        "{}*",
    ),
    _Kind(
        "sets of weights of",
        "weights",
        lambda r: r.provenance.weights_sha256,
        lambda r, names: f"{names.of('backbone', r.backbone)} in {r.provenance.dtype}",
        "{}*",
    ),
    _Kind(
        "sets of learned weights of",
        "learned",
        lambda r: r.method_weights,
        _learned_by,
        "{}*",
    ),
    _Kind(
        "versions of counting",
        "counting",
        lambda r: None if r.provenance.counting is None else str(r.provenance.counting),
    ),
    _Kind("versions of torch", "torch", lambda r: minor(r.provenance.torch), pattern="{0}|{0}.*"),
    _Kind("versions of transformers", "transformers", lambda r: minor(r.provenance.transformers), pattern="{0}|{0}.*"),
    _Kind("dtypes", "dtype", lambda r: r.provenance.dtype),
    _Kind("kinds of device", "device", kind_of_device, pattern="{}*"),
)
"""All that is compared beside the code."""


def check_alike(results: Sequence[Result], shown: Collection[str] = ()) -> None:
    """Refuse results whose numbers cannot be compared.

    Args:
        results: of one table, picture or test.
        shown: dimensions in which results may differ, because the table shows them.

    Raises:
        UserError: which names what differs, and the runs.
    """
    for mixture in mixtures(results, shown):
        raise UserError(mixture.refusal)


def mixtures(results: Sequence[Result], shown: Collection[str] = (), names: Names = PLAIN) -> list[Mixture]:
    """Everything in which results differ that must be equal.

    Results of one task and split need the same data; where texts are made to a length, those of one length do. Those
    with the same context also need the same prompts. Those of one backbone need the same weights, and those of one
    method the same learned ones. All need the same code in the modules that they have in common, the same counting, the
    same torch and transformers by two numbers of the version, and, unless the table shows them, the same dtype and kind
    of device. The version of the package does not matter.

    Args:
        results: of one table, picture or test.
        shown: dimensions in which results may differ, because the table shows them.
        names: display names, with which captions speak of them.
    """
    by_digest = trained.by_digest()
    ordered = [_as_now(result, by_digest) for result in sorted(results, key=started)]
    kinds = [kind for kind in KINDS if kind.column not in shown]
    before, after = kinds[:4], kinds[4:]
    differing = functools.partial(_differing, ordered, names)
    return [*chain(*map(differing, before)), *_of_code(ordered, names), *chain(*map(differing, after))]


def of_weights(results: Sequence[Result], names: Names = PLAIN) -> list[str]:
    """Sentences, without their full stop, about results whose trained weights are now stored in fewer bits.

    Args:
        results: of one table, picture or page.
        names: display names of methods.
    """
    by_digest = trained.by_digest()
    groups: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for result in results:
        weights = by_digest.get(result.method_weights or "")
        if weights is not None and (file := weights.earlier(result.method_weights)):
            groups[file.dtype, str(weights.card.weights.dtype)].append((weights.name, abs(file.difference)))
    return [_in_fewer_bits(*dtypes, runs, names) for dtypes, runs in groups.items()]


def _in_fewer_bits(before: str, now: str, runs: Sequence[tuple[str, float]], names: Names) -> str:
    """One sentence about runs, each with the name of its weights and the difference of their loss."""
    named = list(dict.fromkeys(names.of("method", name) for name, _ in runs))
    # Rounded up, because it is a bound.
    most = math.ceil(max(difference for _, difference in runs) * 1e4) / 1e4
    return (
        f"{len(runs)} run{'s were' if len(runs) > 1 else ' was'} made with weights in {before} that are in {now} now "
        f"({listed(named, len(named))}); the loss on held-back texts differs by at most {most:.4f} nats per token"
    )


def _as_now(result: Result, by_digest: Mapping[str, Trained]) -> Result:
    """A result as one of the listed file, where that was made from the file with the weights of the result."""
    weights = by_digest.get(result.method_weights or "")
    if weights is None or weights.earlier(result.method_weights) is None:
        return result
    return result.model_copy(update={"method_weights": weights.digest})


def with_mixtures(table: Table, mixed: Sequence[Mixture]) -> Table:
    """A table whose caption names mixtures, and whose notes name all their methods."""
    legend = tuple(mixture.sentence for mixture in mixed)
    notes = tuple(mixture.detail for mixture in mixed if mixture.detail)
    return dataclasses.replace(table, legend=(*table.legend, *legend), notes=(*table.notes, *notes))


def _differing(results: Sequence[Result], names: Names, kind: _Kind) -> Iterator[Mixture]:
    """A mixture for each group of results with several values; results without a value are left out."""
    groups: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        value = kind.value(result)
        if value is not None:
            groups[kind.group(result, PLAIN)][value].append(result)
    for values in groups.values():
        if len(values) > 1:
            group = kind.group(next(iter(values.values()))[0], names)
            shown = tuple((value[:DIGITS], tuple(runs)) for value, runs in values.items())
            conditions = tuple(f"{kind.column}={kind.pattern.format(value[:DIGITS])}" for value in values)
            yield Mixture(f"{kind.what} {group}".strip(), shown, conditions, names)


@dataclasses.dataclass
class _State:
    """One state of the code.

    Attributes:
        early: what is known of the code of runs that did not store its digests; None for others.
        modules: digests of all modules of its runs.
        runs: its results.
    """

    early: str | None
    modules: dict[str, str]
    runs: list[Result]

    def fits(self, early: str | None, modules: Mapping[str, str]) -> bool:
        """Whether a run may be of this state: no module that both have differs."""
        if early is not None or self.early is not None:
            return early == self.early
        return all(self.modules.get(name, digest) == digest for name, digest in modules.items())


def _of_code(results: Sequence[Result], names: Names) -> Iterator[Mixture]:
    states: list[_State] = []
    for result in results:
        provenance = result.provenance
        modules = provenance.code or {}
        early = None if provenance.code is not None else provenance.source_sha256 or provenance.commit or "unknown"
        state = next((state for state in states if state.fits(early, modules)), None)
        if state is None:
            state = _State(early, {}, [])
            states.append(state)
        state.modules |= modules
        state.runs.append(result)
    if len(states) > 1:
        commits = [_commit(state) for state in states]
        conditions = tuple(
            f"commit={commit}*" if commit and commits.count(commit) == 1 else f"run={state.runs[0].run_id}"
            for commit, state in zip(commits, states, strict=True)
        )
        values = tuple((_name(state, states), tuple(state.runs)) for state in states)
        yield Mixture("states of the code", values, conditions, names)


def _name(state: _State, states: Sequence[_State]) -> str:
    """The commit of a state; where others have the same one, also the first module that differs from theirs."""
    name = _commit(state) or "an unknown commit"
    alike = [other for other in states if other is not state and _commit(other) == _commit(state)]
    differing = [
        module
        for module, digest in sorted(state.modules.items())
        if any(other.modules.get(module, digest) != digest for other in alike)
    ]
    return f"{name} with {differing[0]} {state.modules[differing[0]][:DIGITS]}" if differing else name


def _commit(state: _State) -> str:
    """The first digits of the commit of a state's first run; empty where it is not known."""
    return (state.runs[0].provenance.commit or "")[:COMMIT]
