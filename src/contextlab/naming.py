"""The meaning of the name of a method: a registered one, a class in a file, or trained weights, with settings.

A method that is named without settings stands for the weights that a card recommends for it, on the backbone that they
were trained beside.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contextlab import grammar, process, registry, trained
from contextlab.config import MethodConfig
from contextlab.errors import UserError, short, unknown
from contextlab.trained import Trained

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from contextlab.backbone import Backbone
    from contextlab.method import AnyMethod

FORM, PAPER = "form", "paper"
"""The setting, and its only value, that says of a method that its own defaults are meant."""
FRESH_SEED = 67280421310721
"""The seed with which torch starts in a new process."""


@dataclasses.dataclass(frozen=True)
class Meaning:
    """The meaning of a name, before settings.

    Attributes:
        text: as it was written.
        name: of the method, registered or `path.py:Class`.
        kind: its class.
        weights: those that the text names; None where it names a method.
    """

    text: str
    name: str
    kind: type[AnyMethod]
    weights: Trained | None = None

    def with_settings(self, settings: Mapping[str, Any]) -> NamedMethod:
        """The method with these settings, and the others as the name says.

        Raises:
            UserError: for an unknown or wrong setting, or one in which trained weights may not differ.
        """
        own = dict(settings)
        if FORM in own and not takes_form(self.kind.Config):
            return self._parsed(own, bare=False)
        form = own.pop(FORM, None)
        if form not in (None, PAPER):
            raise UserError(f"{FORM}={short(str(form))} of {self.text} is no form: write {FORM}={PAPER}, or none.")
        if form is not None and self.weights is not None:
            raise UserError(
                f"{self.text} names trained weights, which have one form: write {self.name}({FORM}={PAPER}) instead."
            )
        return self._parsed(own, bare=not settings and self.weights is None)

    def _parsed(self, settings: Mapping[str, Any], *, bare: bool) -> NamedMethod:
        kind = self.kind.Config
        if self.weights is None:
            return NamedMethod(self.name, self.kind, kind.parse(settings, self.name), None, bare)
        if "weights" in settings:
            raise UserError(f"{self.text} names trained weights already: leave weights= out, or name {self.name}.")
        listed = self.weights.name in trained.names()
        file = self.weights.name if listed else self.weights.file
        config = kind.parse({**self.weights.card.named, **settings, "weights": file}, self.text)
        free = self.weights.free(kind.free_at_test)
        for key in self.weights.changed(config.as_dict(), kind.defaults()):
            if key not in free:
                fixed = f"{key}={grammar.spelled_value(self.weights.card.settings.get(key))}"
                raise UserError(
                    f"{self.text} was trained with {fixed}: leave {key} out; only {', '.join(sorted(free))} may differ."
                )
        return NamedMethod(self.name, self.kind, config, self.weights, bare)


@dataclasses.dataclass(frozen=True)
class NamedMethod:
    """A method with all its settings.

    Attributes:
        name: registered, or `path.py:Class`.
        kind: its class.
        config: its settings.
        weights: the trained ones that it was named by; None where it was named itself.
        bare: whether it was named without any setting, so that on a backbone other weights may be meant.
    """

    name: str
    kind: type[AnyMethod]
    config: MethodConfig
    weights: Trained | None = None
    bare: bool = False

    def on(self, backbone: Backbone) -> NamedMethod:
        """Its meaning on a backbone: the weights that are recommended there, where it was named alone."""
        if not self.bare:
            return self
        listed = trained.recommendations()
        if not any(method == self.name for method, _ in listed):
            return self
        weights = listed.get((self.name, backbone.digest))
        return self if weights is None else Meaning(weights.name, self.name, self.kind, weights).with_settings({})

    def as_initialised(self) -> NamedMethod:
        """The same settings without trained weights, which belong to one backbone."""
        settings = {**self.config.as_dict(), "weights": "none"} if self.weights is not None else self.config.as_dict()
        return NamedMethod(self.name, self.kind, self.kind.Config.parse(settings, self.name))

    def fresh(self, backbone: Backbone) -> AnyMethod:
        """The method on a backbone; what it has not learned is random, and the same whatever was drawn before.

        Raises:
            UserError: as `build`.
        """
        with process.seeded(FRESH_SEED, str(backbone.device)):
            return self.build(backbone)

    def build(self, backbone: Backbone) -> AnyMethod:
        """The method on a backbone, with new random numbers for what it has not learned.

        Raises:
            UserError: when settings or weights do not fit the backbone, or the memory.
        """
        from contextlab.method import build

        if self.weights is not None and self.weights.card.backbone.digest != backbone.digest:
            raise UserError(
                f"{self.weights.name} was trained beside {self.weights.card.backbone.name} and not beside "
                f"{backbone.name}: use that backbone, or train {self.name} on this one."
            )
        return build(self.kind, backbone, self.config)

    @property
    def label(self) -> str:
        """The text that names it, with the settings that the name does not stand for."""
        settings, defaults = self.config.as_dict(), self.kind.Config.defaults()
        if self.weights is None:
            own = self.config.changed()
            # The name alone may stand for other settings.
            shown = own if own or self.bare or not takes_form(self.kind.Config) else {FORM: PAPER}
            return grammar.spelled_method(self.name, shown)
        changed = {key: settings[key] for key in self.weights.changed(settings, defaults)}
        return grammar.spelled_method(self.weights.name, changed)

    @property
    def explained(self) -> str:
        """Why a name alone stands for these weights, and how its own defaults are named, in one sentence."""
        if self.weights is None:
            return ""
        about = f"{self.name} stands for {self.weights.name}, trained on {self.weights.card.cost.tokens:,} tokens"
        defaults = self.kind.Config.defaults()
        if not self.weights.changed(defaults, defaults):
            return f"{about}, in the paper's form."
        return f"{about}: write {self.name}({FORM}={PAPER}) for the paper's form."


def meaning(text: str) -> Meaning:
    """The meaning of a name without settings.

    Raises:
        UserError: when there is nothing of that name, with the most similar one, or it cannot be used.
    """
    if text in registry.methods() or (".py" in text and not os.path.isdir(text)):
        return Meaning(text, text, registry.method_class(text))
    weights = trained.find(text)
    if weights is not None:
        return Meaning(text, weights.card.method, registry.method_class(weights.card.method), weights)
    if os.path.isdir(text):
        raise UserError(f"{text} holds no trained weights with a card: name the folder of a training that has ended.")
    raise unknown("method", text, [*registry.methods(), *trained.names()])


def methods(texts: str | Sequence[str]) -> list[tuple[grammar.NamedItem, Meaning]]:
    """The methods that a text, or each of several texts, lists, each with the settings after its name.

    Raises:
        UserError: when none is named, a text does not follow the grammar, or as `meaning`.
    """
    return [(item, meaning(item.name)) for item in grammar.items(texts, "method")]


def single(text: str, settings: Mapping[str, Any] | None = None) -> NamedMethod:
    """The only method of a text, with further settings.

    Raises:
        UserError: when there are none or several, for a setting that is given twice, or as `meaning` and
            `Meaning.with_settings`.
    """
    item = grammar.single(text, "method")
    for key in settings or {}:
        if key in item.settings:
            raise UserError(f"{item.name} is given {key} twice, in brackets and beside them: keep one of the two.")
    return meaning(item.name).with_settings({**item.settings, **(settings or {})})


def method_of(text: str) -> str:
    """The name of the only method of a text, also where it names trained weights, without importing its class.

    Raises:
        UserError: when the text names none or several, or as `trained.find`.
    """
    name = grammar.single(text, "method").name
    weights = None if name in registry.methods() else trained.find(name)
    return name if weights is None else weights.card.method


def takes_form(kind: type[MethodConfig]) -> bool:
    """Whether `form` means the form of the method, because the method has no setting with that name."""
    return FORM not in {field.name for field in dataclasses.fields(kind)}


def load(
    method: str,
    backbone: str | PreTrainedModel | PeftModel | Backbone = "smollm2-135m",
    device: str | None = None,
    dtype: str | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    quantise: str | None = None,
    compile: bool = False,
    **settings: Any,
) -> AnyMethod:
    """A method on a backbone, ready to read.

    Args:
        method: a registered name, `path.py:Class`, or the name of trained weights, perhaps with settings, as
            `longmem(K=32)`. Without settings a registered name stands for the weights that are recommended for it on
            this backbone, where there are some: `trained_weights` says which.
        backbone: a name, hub id, folder or GGUF file, with updates after a `+`; or a model of transformers or PEFT,
            whose weights and settings stay as they are.
        device: where a backbone given by name is put; chosen by the machine when None.
        dtype: of a backbone given by name; bfloat16 on a GPU and float32 on a CPU when None.
        tokenizer: of a backbone given as a model.
        quantise: `8bit` or `4bit`: the linear layers of a backbone given by name, by bitsandbytes.
        compile: whether passes of one token per row, as in decoding, are compiled by torch where they need no
            gradients; the first of them take a minute or more.
        **settings: further ones; `form="paper"` for the method's own defaults.

    Raises:
        UserError: for an unknown method, backbone or setting, or when nothing can be compiled here.
    """
    from contextlab import backbone as backbones

    named = single(method, settings)
    model = backbones.resolve(backbone, tokenizer=tokenizer, device=device, dtype=dtype, quantise=quantise)
    model = model.compiling() if compile else model
    return named.on(model).fresh(model)
