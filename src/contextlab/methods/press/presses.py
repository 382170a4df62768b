"""A press of kvpress on the layers of a backbone.

Legend: B rows, T tokens, S tokens in view, K key/value heads, D head width, C width of the model.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from contextlab import process
from contextlab.attention import attention_functions_kept
from contextlab.backbone import Backbone, KeyValueProjections, check_rotary
from contextlab.errors import UserError, unknown
from contextlab.methods.press.choice import AROUND, GENERATOR, SINGLE, parts
from contextlab.methods.press.config import Parameter, PressConfig

ENDING = "Press"
INSTALL = "pip install --no-deps kvpress==0.5.5 && pip install cachetools datasets fire requests"
MODELS = ("llama", "mistral", "phi3", "qwen2", "qwen3")
"""Models of which kvpress computes the queries as they do themselves."""
OWN_SETTINGS = ("compression_ratio", "press")
"""Parameters of presses that are settings of their own here."""
TRIED = 64
"""Tokens beyond those that it must have on which a press is tried when it is made."""


def kvpress() -> Any:
    """The package. Its import wraps all attention functions of transformers, which is undone.

    Raises:
        UserError: when it is not installed, or cannot be imported.
    """
    if importlib.util.find_spec("kvpress") is None:
        raise UserError(f"press needs the library kvpress, without its requirements: {INSTALL}.")
    try:
        with attention_functions_kept():
            return importlib.import_module("kvpress")
    except ImportError as error:
        raise UserError(f"kvpress cannot be imported here ({error}): {INSTALL}.") from error


class LayerPress:
    """Says which slots of a layer's cache stay.

    Args:
        backbone: whose layers these are.
        config: which press, and how much it drops.

    Attributes:
        needs: what it takes beside keys and values.
        projections: the attention of every layer.

    Raises:
        UserError: when kvpress is not installed, or the press cannot be used with these settings or this backbone.
    """

    def __init__(self, backbone: Backbone, config: PressConfig) -> None:
        check_rotary(backbone, "press")
        outer, inner = parts(config.name)
        self.name, self.ratio = config.name, config.ratio
        self.press = built(config, outer, inner)
        self.needs = SINGLE[inner](self.press if outer is None else self.press.press)
        if outer is not None:
            self.needs = AROUND[outer](self.needs, config.ratio)
        if self.needs.inputs != 0 and backbone.config.model_type not in MODELS:
            raise UserError(
                f"kvpress does not know how {backbone.name} makes its queries, which {config.name} needs: choose Knorm "
                f"or KeyDiff, or a model like {', '.join(MODELS)}."
            )
        if self.needs.beyond >= backbone.max_positions:
            raise UserError(
                f"{config.name} needs more than {self.needs.beyond} tokens with these options, and {backbone.name} has "
                f"{backbone.max_positions} positions: set other options."
            )
        self.projections = KeyValueProjections(backbone)
        self._rotary = backbone.model.base_model.rotary_emb
        self._try(backbone)

    def kept(self, tokens: int) -> int:
        """How many of so many tokens in view stay, of every head: the rule of kvpress."""
        return tokens if tokens <= self.needs.beyond else max(1, int(tokens * (1 - self.ratio)))

    def slots(self, layer: int, inputs_1TC: Tensor | None, k_1KSD: Tensor, v_1KSD: Tensor) -> Tensor:
        """`slots_1KS` that stay of a layer, in the order of the text.

        Args:
            layer: its number.
            inputs_1TC: what has entered its attention of the last tokens; None where the press needs none.
            k_1KSD: keys of one row, rotated, without padding.
            v_1KSD: values.
        """
        tokens = k_1KSD.shape[2]
        slots_1KS = self._compressed(layer, inputs_1TC, k_1KSD, v_1KSD)[0]
        if slots_1KS.shape[-1] != self.kept(tokens):
            raise UserError(
                f"{self.name} keeps {slots_1KS.shape[-1]} of {tokens} tokens, where kvpress's presses keep "
                f"{self.kept(tokens)}: choose another press."
            )
        return slots_1KS.sort(-1).values

    def _compressed(
        self, layer: int, inputs_1TC: Tensor | None, k_1KSD: Tensor, v_1KSD: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The slots that the press takes, in its order, and what it returns."""
        count, tokens = 0 if inputs_1TC is None else inputs_1TC.shape[1], k_1KSD.shape[2]
        position_1T = torch.arange(tokens - count, tokens, device=k_1KSD.device)[None]
        extra = {"position_embeddings": self._rotary(k_1KSD, position_1T)}
        try:
            with _Gathering(k_1KSD) as gathering:
                module = _with_rotary(self.projections.attention[layer], self._rotary)
                compressed = self.press.compress(module, inputs_1TC, k_1KSD, v_1KSD, None, extra)
        except Exception as error:  # whatever code of others raises
            if process.out_of_memory(error):
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(
                f"{self.name} cannot choose among {tokens} tokens ({reason}): set other options."
            ) from error
        if gathering.index is None:
            raise UserError(f"{self.name} leaves nothing out of {tokens} tokens in a known way: choose another press.")
        return gathering.index[..., 0], compressed

    def _try(self, backbone: Backbone) -> None:
        """Refuse a press that cannot be run, or does more than leave out keys and values, before anything is read."""
        tokens, random = self.needs.beyond + TRIED, torch.Generator().manual_seed(0)
        shape = (2, 1, backbone.kv_heads, tokens, backbone.head_width)
        k_1KSD, v_1KSD = torch.randn(shape, generator=random).to(backbone.device, backbone.attention_dtype)
        count = tokens if self.needs.inputs is None else self.needs.inputs
        inputs_1TC = torch.randn((1, count, backbone.width), generator=random).to(backbone.device, backbone.dtype)
        with torch.no_grad():
            slots_1KS, compressed = self._compressed(0, inputs_1TC if count else None, k_1KSD, v_1KSD)
        index = slots_1KS[..., None].expand(-1, -1, -1, backbone.head_width)
        pairs = zip((k_1KSD, v_1KSD), compressed, strict=True)
        if not all(torch.equal(x.gather(2, index), y) for x, y in pairs):
            raise UserError(f"{self.name} changes keys or values instead of leaving some out: choose another press.")


def built(config: PressConfig, outer: str | None, inner: str) -> Any:
    """The press of these settings.

    Args:
        config: with its options.
        outer: name of the press around the one that scores, where there is one.
        inner: name of the press that scores.

    Raises:
        UserError: when kvpress is not installed, or its press has no such parameter, or takes other values.
    """
    package = kvpress()
    kinds: list[Any] = [getattr(package, f"{part}{ENDING}", None) for part in (inner, outer) if part is not None]
    if None in kinds:
        raise UserError(f"This version of kvpress has no {config.name}: install kvpress 0.5.5.")
    defaults = [_defaults(kind) for kind in kinds]
    for option in config.options:
        if not any(option in parameters for parameters in defaults):
            raise unknown(f"option of {config.name}", option, {name for parameters in defaults for name in parameters})
    options = [
        {name: _checked(name, config.options[name], parameters[name]) for name in parameters if name in config.options}
        for parameters in defaults
    ]
    if inner == "Random":
        options[0].setdefault("seed", 0)
    if options[0].get("use_random_leverage"):
        raise UserError(f"With use_random_leverage {inner} {GENERATOR}: leave it out.")
    try:
        press = kinds[0](compression_ratio=config.ratio, **options[0])
        return press if outer is None else kinds[1](press=press, **options[1])
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(f"{config.name} does not take these options ({error}): set others.") from error


def _defaults(kind: Any) -> Mapping[str, Any]:
    """The parameters of a press that are options here, and their defaults."""
    parameters = inspect.signature(kind).parameters
    return {name: value.default for name, value in parameters.items() if name not in OWN_SETTINGS}


def _checked(name: str, value: Parameter, default: Any) -> Parameter:
    """A value of the kind that a parameter has.

    Raises:
        UserError: when it is of another kind, or negative.
    """
    by_default: dict[type, Any] = {bool: bool, int: int, float: (int, float), str: str, type(None): int}
    kinds = by_default[type(default)]
    fits = isinstance(value, kinds) and isinstance(value, bool) == isinstance(default, bool)
    if not fits or (isinstance(value, int | float) and value < 0):
        raise UserError(f"Option {name}={value!r} of a press is not valid: give a value like {default!r}.")
    return value


def _with_rotary(attention: Any, rotary: Any) -> Any:
    """A layer's attention with the rotary encoding beside it, where kvpress looks for it; the layer stays as it is."""
    other = copy.copy(attention)
    vars(other)["rotary_emb"] = rotary
    return other


class _Gathering(TorchFunctionMode):
    """Sees which slots are gathered of keys.

    Attributes:
        index: of the last time, of the shape of what was gathered; None before.
    """

    def __init__(self, k_1KSD: Tensor) -> None:
        super().__init__()
        self.k_1KSD = k_1KSD
        self.index: Tensor | None = None

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation."""
        if func is Tensor.gather and args[0] is self.k_1KSD:
            self.index = args[2]
        return func(*args, **(kwargs or {}))
