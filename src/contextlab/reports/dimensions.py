"""The dimensions of a table: the method, task, context and so on of every stored result.

All functions take linear time in the number of results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contextlab import trained
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.trained import Trained

DIMENSIONS = ("method", "task", "context", "backbone", "device", "dtype", "seed")
VERSIONS = ("contextlab", "commit", "torch", "transformers", "weights_sha256", "prompt_sha256")
"""Fields of the provenance that distinguish results with equal dimensions."""


def dimensions(results: Sequence[Result]) -> list[dict[str, str]]:
    """The name of each result in every dimension, in the order of the results; no two runs are equal in all dimensions.

    The name of a method has the settings that differ from its defaults; that of a task has its split, its settings, and
    a digest of its data where this differs. Results that would be equal also have the settings in which they differ
    (for example after a change of defaults), and otherwise their version or run.
    """
    settings = _settings(results)
    digests = _grouped(results, lambda r: (r.task, r.split), lambda r: r.data.sha256)
    words = [
        _words(result, shown, digests[result.task, result.split])
        for result, shown in zip(results, settings, strict=True)
    ]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, of_result in enumerate(words):
        alike[tuple(of_result.values())].append(number)
    for numbers in alike.values():
        for number, version in zip(numbers, _versions([results[n] for n in numbers]), strict=True):
            words[number]["method"] += version
    return words


def started(result: Result) -> str:
    """The time at which a run was started, by which results are ordered."""
    return result.provenance.started


def _in_order(results: Iterable[Result]) -> list[Result]:
    """Results by their starts; of copies of one start that with most examples is the last."""
    return sorted(results, key=lambda result: (started(result), result.data.examples))


def once(results: Iterable[Result]) -> list[Result]:
    """Every run once in the order of their starts: its latest copy, of copies of one start that with most examples."""
    copies = {result.run_id: result for result in _in_order(results)}
    return sorted(copies.values(), key=started)


def latest(results: Sequence[Result]) -> list[tuple[dict[str, str], Result]]:
    """The latest of the results that are equal in all dimensions, with its names, in the order of their starts."""
    ordered = _in_order(results)
    by_name = {tuple(words.items()): result for words, result in zip(dimensions(ordered), ordered, strict=True)}
    return [(dict(words), result) for words, result in by_name.items()]


def kind_of_device(result: Result) -> str:
    """The kind of device that a result was computed on, as `cpu` or `cuda`."""
    return result.provenance.device.partition(" ")[0]


def named(result: Result) -> str:
    """The method of a result, marked as untrained or trained where it can learn."""
    return labels.of_run(result, {})


def learned(result: Result) -> bool:
    """Whether the method of a result had learned from text before it was run, at a known cost or not."""
    return (result.cost.train is not None or result.parameters.trained > 0) and not result.untrained


def _settings(results: Sequence[Result]) -> list[Mapping[str, Any]]:
    """The settings in the name of every result's method."""
    bases = [labels.base(result) for result in results]
    changed = [set(names) for _, names in bases]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, (result, names) in enumerate(zip(results, changed, strict=True)):
        pairs = (f"{name}={value}" for name, value in result.method_config.items() if name in names)
        alike[bases[number][0], *pairs].append(number)
    for numbers in alike.values():
        values: dict[str, set[str]] = defaultdict(set)
        for number in numbers:
            for name, value in results[number].method_config.items():
                values[name].add(str(value))
        # How weights that have a name were found makes no difference.
        ignored = "weights" if results[numbers[0]].weights_name is not None else ""
        differing = {name for name, distinct in values.items() if len(distinct) > 1 and name != ignored}
        for number in numbers:
            changed[number] |= differing
    recommended = trained.recommendations()
    return [_shown(result, names, recommended) for result, names in zip(results, changed, strict=True)]


def _shown(result: Result, names: set[str], recommended: Mapping[tuple[str, str], Trained]) -> Mapping[str, Any]:
    settings = {name: value for name, value in result.method_config.items() if name in names}
    if result.weights_name is not None:
        return settings
    return labels.with_form(result.method, settings, result.provenance.weights_sha256, recommended)


def _grouped(results: Sequence[Result], key: Any, value: Any) -> dict[Any, set[Any]]:
    groups: dict[Any, set[Any]] = defaultdict(set)
    for result in results:
        groups[key(result)].add(value(result))
    return groups


def _words(result: Result, settings: Mapping[str, Any], digests: set[str]) -> dict[str, str]:
    provenance = result.provenance
    return {
        "method": labels.of_run(result, settings),
        "task": labels.with_data(labels.of_result(result), result.data.sha256, digests),
        "context": result.context,
        "backbone": result.backbone,
        "device": provenance.device,
        "dtype": provenance.dtype,
        "seed": str(provenance.seed),
    }


def _versions(results: Sequence[Result]) -> Iterator[str]:
    """Versions or run ids that distinguish results with equal dimensions; empty when all are one run."""
    if len({result.run_id for result in results}) == 1:
        yield from ("" for _ in results)
        return
    versions = [[(name, str(getattr(r.provenance, name))[:8]) for name in VERSIONS] for r in results]
    differing = [name for n, name in enumerate(VERSIONS) if len({fields[n][1] for fields in versions}) > 1][:1]
    for result, own in zip(results, versions, strict=True):
        version = " ".join(f"{name} {value}" for name, value in own if name in differing)
        same = sum(other == own for other in versions) > 1
        yield f" ({version}{', ' if version and same else ''}{'run ' + result.run_id[-6:] if same else ''})"
