"""Labels of runs in tables, which are also valid arguments of `--method` and `--task`."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from contextlab import grammar
from contextlab.cards import short_count
from contextlab.errors import UserError
from contextlab.harness.stored import Result, plain
from contextlab.naming import FORM, PAPER
from contextlab.trained import Trained, recommendations


def of_method(name: str, settings: Mapping[str, Any], *, untrained: bool = False, trained: int | None = None) -> str:
    """A method with its distinguishing settings, marked as untrained or trained where it can learn.

    Args:
        name: name of the method.
        settings: settings in the label.
        untrained: whether its weights are the initial ones.
        trained: number of training tokens, where that is known.
    """
    marks = [grammar.UNTRAINED] if untrained else [f"(trained {short_count(trained)})"] if trained else []
    return " ".join([grammar.spelled_method(name, settings), *marks])


def of_run(result: Result, settings: Mapping[str, Any]) -> str:
    """The method of a stored result, with these settings: by the name of its weights, which need no mark."""
    if result.weights_name is not None:
        return grammar.spelled_method(result.weights_name, settings)
    trained = None if result.cost.train is None else result.cost.train.tokens
    return of_method(result.method, settings, untrained=result.untrained, trained=trained)


def with_data(task: str, sha256: str, digests: Collection[str]) -> str:
    """The label of a task, with a digest of its data where tasks of this label have several."""
    return f"{task} data={sha256[:8]}" if len(digests) > 1 else task


def apart(tasks: Sequence[tuple[str, str]]) -> list[str]:
    """Labels of tasks, each with the digest of its data, as they stand beside each other (`with_data`)."""
    digests: dict[str, set[str]] = defaultdict(set)
    for task, sha256 in tasks:
        digests[task].add(sha256)
    return [with_data(task, sha256, digests[task]) for task, sha256 in tasks]


def by_settings(result: Result) -> str:
    """The method of a stored result with the settings that differ from its defaults, also where its weights name it."""
    changed = {key: result.method_config.get(key) for key in result.changed if key != "weights"}
    return grammar.spelled_method(result.method, changed)


def whole(result: Result) -> str:
    """The method of a single stored result, with the settings that distinguish it."""
    settings = {name: value for name, value in result.method_config.items() if name in base(result)[1]}
    if result.weights_name is None:
        backbone = result.provenance.weights_sha256
        return of_run(result, with_form(result.method, settings, backbone, recommendations()))
    return of_run(result, settings)


def base(result: Result) -> tuple[str, list[str]]:
    """The beginning of the label of a result, and the names of the settings after it."""
    if result.weights_name is not None:
        return result.weights_name, result.weights_changed
    return result.method, result.changed


def with_form(
    method: str, settings: Mapping[str, Any], backbone: str, recommended: Mapping[tuple[str, str], Trained]
) -> Mapping[str, Any]:
    """The settings in a label, among them `form=paper` where the method alone stands for other weights.

    Args:
        method: its name.
        settings: that differ from its defaults.
        backbone: digest of it.
        recommended: of `trained.recommendations`.
    """
    return {FORM: PAPER} if not settings and (method, backbone) in recommended else settings


def legend(label: str, result: Result) -> str:
    """The meaning of a label that is the name of trained weights; empty for other labels.

    It is a part of a caption, without full stop: `longmem-difference: longmem(reduction=1,rank=16), trained with M=8192
    on 61,440 tokens`.

    Args:
        label: of the row.
        result: of the row.
    """
    if result.weights_name is None:
        return ""
    pairs = (f"{key}={grammar.spelled_value(value)}" for key, value in result.trained_with.items())
    training = ["trained", *(["with", ", ".join(pairs)] if result.trained_with else [])]
    training += [] if result.cost.train is None else [f"on {result.cost.train.tokens:,} tokens"]
    return f"{label}: {by_settings(result)}, {' '.join(training)}"


def of_result(result: Result) -> str:
    """The task of a stored result."""
    return of_task(result.task, result.split, {"history": result.history, "tokens": result.tokens})


def of_task(name: str, split: str, lengths: Mapping[str, int | None]) -> str:
    """A task with its split and settings.

    Args:
        name: of the task.
        split: as it is stored, with the settings that differ from their defaults.
        lengths: stored settings that are not part of the split; None where one is not set.
    """
    set_lengths = {key: length for key, length in lengths.items() if length is not None}
    try:
        item = grammar.split(split)
    except UserError:  # stored by a version without this grammar, or by another program
        item = grammar.NamedItem(split)
    return grammar.spelled(name, item.name, {**item.settings, **set_lengths})


@dataclasses.dataclass(frozen=True)
class WeightsName:
    """Trained weights as the name of a method that has them.

    Attributes:
        name: that `--method` takes.
        changed: names of the settings that the name does not stand for.
        trained_with: settings of the training that are others in use, with their values there.
    """

    name: str
    changed: tuple[str, ...] = ()
    trained_with: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields of a stored result."""
        return {
            "weights_name": self.name,
            "weights_changed": list(self.changed),
            "trained_with": plain(self.trained_with),
        }

    @classmethod
    def of(
        cls,
        weights: Trained | None,
        method: str,
        settings: Mapping[str, Any],
        defaults: Mapping[str, Any],
        free: Collection[str],
    ) -> Self | None:
        """The name of a method with weights; None where its settings differ in one that the card does not declare free.

        Args:
            weights: that it has; None for none with a card.
            method: its name.
            settings: all of them.
            defaults: for cards that are older than some settings.
            free: settings that may differ where the card does not say which.
        """
        if weights is None or weights.card.method != method:
            return None
        changed = weights.changed(settings, defaults)
        if not weights.free(free).issuperset(changed):
            return None
        return cls(weights.name, tuple(changed), weights.differing(settings, defaults))


def with_name(result: Result, listed: Mapping[str, Trained]) -> Result:
    """A stored result with the name of its weights, where it says their digest alone, as in early versions.

    Args:
        result: as it was read.
        listed: weights by their digest, of `trained.by_digest`.
    """
    weights = listed.get(result.method_weights or "")
    if result.weights_name is not None or weights is None:
        return result
    # A setting that the run did not know had the value of the training.
    settings = {**weights.card.named, **result.method_config}
    defaults = {name: value for name, value in result.method_config.items() if name not in result.changed}
    named = WeightsName.of(weights, result.method, settings, defaults, ())
    if named is None:
        return result
    return result.model_copy(update=named.fields())
