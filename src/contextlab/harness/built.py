"""Methods on their backbone, and what names them in labels: their settings, or trained weights and what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from contextlab import grammar, process, trained
from contextlab.backbone import Backbone
from contextlab.harness import labels
from contextlab.harness.stored import Result, plain
from contextlab.method import AnyMethod
from contextlab.naming import NamedMethod
from contextlab.trained import Trained

FRESH_SEED = 67280421310721
"""The seed with which torch starts in a new process."""


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
        """What names a method by its weights; None where its form is not one that the card declares free.

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


@dataclasses.dataclass(frozen=True)
class BuiltMethod:
    """A method on its backbone.

    Attributes:
        name: registered, or `path.py:Class`.
        method: on the backbone.
        weights: what names it, where trained weights do.
        label: in tables and in commands, without marks.
    """

    name: str
    method: AnyMethod
    weights: WeightsName | None
    label: str

    @property
    def note(self) -> str:
        """Says of weights that were found, and not named, in which settings they were trained otherwise."""
        if self.weights is None or not self.weights.changed or self.method.config.as_dict().get("weights") != "auto":
            return ""
        trained_with = self.weights.trained_with
        pairs = ((key, trained_with[key]) for key in self.weights.changed if key in trained_with)
        differing = ", ".join(f"{key}={grammar.spelled_value(value)}" for key, value in pairs)
        return f"{self.label} has weights that were trained with {differing}: write weights=none to leave them out."


def built(methods: Iterable[NamedMethod], backbone: Backbone) -> list[BuiltMethod]:
    """The methods on a backbone, without repetition.

    Raises:
        UserError: when settings or weights do not fit the backbone, or the memory.
    """
    labelled: dict[str, BuiltMethod] = {}
    for one in methods:
        method = _built(one, backbone)
        labelled.setdefault(method.label, method)
    return list(labelled.values())


def _built(named: NamedMethod, backbone: Backbone) -> BuiltMethod:
    # What a method has not learned is random, and the same whichever methods are beside it.
    with process.seeded(FRESH_SEED, str(backbone.device)):
        method = named.build(backbone)
    settings, defaults = method.config.as_dict(), method.config.defaults()
    weights = WeightsName.of(method.trained_weights, named.name, settings, defaults, method.config.free_at_test)
    if weights is None:
        shown = labels.with_form(named.name, method.config.changed(), backbone.digest, trained.recommendations())
        return BuiltMethod(named.name, method, None, grammar.spelled_method(named.name, shown))
    changed = {key: value for key, value in settings.items() if key in weights.changed}
    return BuiltMethod(named.name, method, weights, grammar.spelled_method(weights.name, changed))


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
