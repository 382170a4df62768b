"""Methods on shapes: which there are, and how they are made."""

from __future__ import annotations

import dataclasses
from typing import Any

from contextlab import naming, registry
from contextlab.backbone import Backbone
from contextlab.method import AnyMethod
from contextlab.methods.parts.few_bits import BITS
from contextlab.naming import NamedMethod

PACKAGE = "contextlab"


@dataclasses.dataclass(frozen=True)
class ShapedMethod:
    """A method on shapes.

    Attributes:
        named: with its settings.
        method: what its formula is asked of.
        plain: what is run: with its bank in its own type on the device, because shapes cannot be copied to the host,
            and which chunks of a bank in few bits are wanted by several queries depends on numbers.
    """

    named: NamedMethod
    method: AnyMethod
    plain: AnyMethod

    @property
    def on_host(self) -> bool:
        """Whether it keeps its bank on the host."""
        return getattr(self.named.config, "stored_in", None) == "host"

    @property
    def packed(self) -> bool:
        """Whether it keeps its bank in few bits."""
        return self.plain is not self.method

    @classmethod
    def of(cls, named: NamedMethod, backbone: Backbone) -> ShapedMethod:
        """A method as initialised: trained weights have the shapes that its settings say.

        Raises:
            UserError: for settings that do not fit the backbone.
            NotImplementedError: where it computes with weights when it is made.
        """
        method = built(named, backbone)
        settings = named.config.as_dict()
        if "stored_in" not in settings or settings.get("storage_dtype") not in BITS:
            return cls(named, method, method)
        plain = type(named.config).defaults()["storage_dtype"]
        return cls(named, method, built(changed(named, {"storage_dtype": plain}), backbone))


def built(named: NamedMethod, backbone: Backbone) -> AnyMethod:
    """A method as initialised, with its bank on the device.

    Raises:
        UserError: for settings that do not fit the backbone.
        NotImplementedError: where it computes with weights when it is made.
    """
    fixed = {"weights": "none", "stored_in": "memory"}
    fields = named.config.as_dict()
    fixed = {
        name: value for name, value in fixed.items() if name in fields and (name, fields[name]) != ("stored_in", "disk")
    }
    try:
        return changed(named, fixed).build(backbone)
    except RuntimeError as error:
        raise NotImplementedError(str(error)) from error


def changed(named: NamedMethod, settings: dict[str, Any]) -> NamedMethod:
    """A method with other settings, and without trained weights.

    Raises:
        UserError: for a wrong setting.
    """
    config = named.kind.Config.parse({**named.config.as_dict(), **settings}, named.name)
    return NamedMethod(named.name, named.kind, config)


def built_in() -> list[str]:
    """The methods of the package."""
    return [name for name, package in registry.methods().items() if package == PACKAGE]


def named_on(text: str, backbone: Backbone) -> list[NamedMethod]:
    """The methods that a text lists, as they are meant on a backbone.

    Raises:
        UserError: as `naming.methods`.
    """
    return [meaning.with_settings(item.settings).on(backbone) for item, meaning in naming.methods(text)]
