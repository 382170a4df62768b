"""Settings of methods and tasks: frozen, validated dataclasses that say what each of their fields means."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

import pydantic
from pydantic_core import PydanticUndefined

from contextlab import cards, trained
from contextlab.errors import UserError, short, unknown
from contextlab.grammar import spelled_value

MOST_INTEGER, MOST_FLOAT = 2**48, 3e38
"""The largest settings: sums and products of them with lengths stay in the range of int64 and float32."""
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
REQUIRED = "must be given"


def _listed(name: str) -> str:
    if name not in (*trained.CHOICES, *trained.names()):
        raise ValueError("no listed weights have that name")
    return name


Weights: TypeAlias = Annotated[
    Annotated[
        Annotated[str, pydantic.AfterValidator(_listed)] | Annotated[Path, pydantic.AfterValidator(cards.weights_file)],
        pydantic.Field(union_mode="left_to_right"),
    ],
    pydantic.BeforeValidator(lambda value: "none" if value is None else value),
]
"""What a method that learns begins with: `auto`, the listed weights that fit it; `none`, as initialised; the name of
listed weights; or a file, or the folder that `contextlab train` wrote."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class Config:
    """Base of every configuration: a frozen, validated dataclass, with every field described in its docstring."""

    @classmethod
    def parse(cls, settings: Mapping[str, Any], owner: str = "") -> Self:
        """Build a configuration from `key=value` settings.

        Args:
            settings: values, or texts that stand for them.
            owner: the method or task, for errors.

        Raises:
            UserError: for an unknown key or a value outside the field's range.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for key in settings:
            if key not in names:
                raise _unknown(key, names, owner)
        try:
            config = cls(**settings)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(_sentence(where, first, owner)) from None
        config.check_size(owner)
        return config

    def check_size(self, owner: str = "") -> None:
        """Refuse numbers that no tensor holds.

        Raises:
            UserError: naming the setting.
        """
        for name, value in self.as_dict().items():
            for number in value if isinstance(value, list | tuple) else (value,):
                most = MOST_INTEGER if isinstance(number, int) else MOST_FLOAT
                if isinstance(number, int | float) and not -most <= number <= most:
                    where = f"Setting {name}={short(repr(number))}{_of(owner)}"
                    raise UserError(f"{where} is not valid: give a number below {most:g}.")

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, as stored with a result."""
        return dataclasses.asdict(self)

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults, in their order; all where some have no default."""
        values, default = self.as_dict(), self.defaults()
        return {name: value for name, value in values.items() if not default or value != default[name]}

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The fields as they are when nothing is given; empty where some have no default."""
        try:
            return cls().as_dict()
        except (UserError, TypeError, ValueError):
            return {}


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class MethodConfig(Config):
    """Base of the configurations of methods, whose fields are the paper's hyper-parameters."""

    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Options of `contextlab train` that the method's paper trains with."""
    free_at_test: ClassVar[frozenset[str]] = frozenset()
    """Settings that trained weights do not depend on, as sizes; a card lists them, and they may differ in use."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A field of a configuration, in words.

    Attributes:
        name: of the field.
        type: with its range or its choices.
        default: as it is spelled, or that there is none.
        about: what it means; empty where the configuration does not say.
    """

    name: str
    type: str
    default: str
    about: str


def described(kind: type[Config]) -> list[Setting]:
    """Every field of a configuration, in words."""
    properties = pydantic.TypeAdapter(kind).json_schema().get("properties", {})
    abouts = meanings(kind)
    return [
        Setting(field.name, _type(properties[field.name]), _default(field), abouts.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]


def meanings(kind: type[Config]) -> dict[str, str]:
    """What the docstring of a configuration says of its fields, else those of its bases: the part `name: meaning`."""
    docs = [inspect.cleandoc(parent.__doc__ or "") for parent in kind.__mro__ if issubclass(parent, Config)]
    names = [field.name for field in dataclasses.fields(kind)]
    abouts = {name: [text for doc in docs if (text := _meaning(name, doc))] for name in names}
    return {name: texts[0] for name, texts in abouts.items() if texts}


def alike(kind: type[Config], other: type[Config], name: str) -> bool:
    """Whether a field means the same in two configurations, so that one value may be given to both.

    It does where both inherit it from one class, or where what the docstrings say of it begins alike, up to the first
    comma, semicolon, colon, full stop or bracket. A field that is not described is like no other.
    """
    if _declaring(kind, name) is _declaring(other, name):
        return True
    begins = [re.split(r"[,;:.(]", meanings(part).get(name, ""))[0].strip() for part in (kind, other)]
    return begins[0] == begins[1] != ""


def _declaring(kind: type, name: str) -> type:
    """The class that a field is inherited from."""
    return next(base for base in reversed(kind.__mro__) if name in vars(base).get("__annotations__", {}))


def _meaning(name: str, doc: str) -> str:
    match = re.search(rf"^( *){re.escape(name)}: (.*(?:\n\1 +\S.*)*)", doc, re.MULTILINE)
    return " ".join(match[2].split()) if match else ""


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return " | ".join(map(spelled_value, schema.get("enum", [schema.get("const")])))
    kind = schema.get("format", schema.get("type", "any"))
    bounds = [f"{sign} {schema[bound]}" for bound, sign in BOUNDS.items() if bound in schema]
    return " ".join([{"string": "text"}.get(kind, str(kind)), ", ".join(bounds)]).strip()


def _default(field: dataclasses.Field[Any]) -> str:
    default = field.default
    if isinstance(default, pydantic.fields.FieldInfo):
        default = default.get_default(call_default_factory=True, validated_data={})
    elif default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    missing = default is dataclasses.MISSING or default is PydanticUndefined
    return REQUIRED if missing else spelled_value(default)


def _of(owner: str) -> str:
    return f" of {short(owner)}" if owner else ""


def _unknown(key: str, names: list[str], owner: str) -> UserError:
    if not names:
        return UserError(f"There are no settings{_of(owner)}: leave {short(key)} out.")
    return unknown(f"setting{_of(owner)}", key, names)


def _sentence(where: str, first: Mapping[str, Any], owner: str) -> str:
    """A sentence on the first error that pydantic reports."""
    if first["type"] == "missing":
        return f"Setting {where}{_of(owner)} has no default: give it as {where}=value."
    value, reason = short(repr(first["input"])), str(first["msg"])
    message = f"Setting {where}={value}{_of(owner)} is not valid: {reason.lower()}." if where else reason
    return message.removeprefix("Value error, ")
