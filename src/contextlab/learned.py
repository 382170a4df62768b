"""Learned weights of a method: their declaration and digest, and how they are saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from contextlab import cards, tensors, trained
from contextlab.config import MethodConfig
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.backbone import Backbone

N = TypeVar("N", bound=nn.Module)

WEIGHTS = "contextlab weights"
"""Says in a file that `save_weights` wrote it."""


class LearnedWeights:
    """All that training changes in a method; its parts follow from one declaration, `learns`."""

    backbone: Backbone
    config: MethodConfig
    learned: nn.Module | None = None
    """All that training changes; parameter counts, digest, loading, saving and `untrained` follow from it."""
    unbounded: ClassVar[tuple[str, ...]] = ()
    """Last parts of the names of learned parameters that may be minus infinity."""
    _started: tuple[tuple[int, int], ...] | None = None
    _loaded: tuple[tuple[tuple[int, int], ...], Path, cards.Card] | None = None

    def __init__(self) -> None:
        self._weights_digest = tensors.Derived[str]()

    def learns(self, module: N, weights: Path | str = "none") -> N:
        """Declare all that training changes, and take over its trained weights; called once, while a method is made.

        Args:
            module: of the method; put into evaluation mode.
            weights: file that `save_weights` wrote, or the name of listed weights; `auto`, the listed ones that fit,
                where some do; `none` leaves the module as initialised.

        Raises:
            UserError: as `load_weights`.
        """
        self.learned = module.eval()
        self._started = tensors.versions(module)
        file = self._fitting() if weights == "auto" else None if weights == "none" else _file(weights)
        if file is not None:
            self.load_weights(file)
        return module

    def _fitting(self) -> Path | None:
        """The listed weights for this class, these settings and this backbone."""
        settings, defaults = self.config.as_dict(), self.config.defaults()
        free = self.config.free_at_test
        return trained.fitting(type(self).__name__, settings, defaults, free, lambda: self.backbone.digest)

    @property
    def added_parameters(self) -> int:
        """Parameters this method adds to the backbone."""
        return sum(parameter.numel() for parameter in self._parameters())

    @property
    def trained_parameters(self) -> int:
        """Parameters of this method that training changes."""
        return sum(parameter.numel() for parameter in self._parameters() if parameter.requires_grad)

    @property
    def untrained(self) -> bool:
        """Whether it has something to learn that is as it started: its numbers say what it costs, no more."""
        return self.learned is not None and tensors.versions(self.learned) == self._started

    @property
    def card(self) -> cards.Card | None:
        """The card of the weights, which says how they were trained; None without one, or when they have changed."""
        if self.learned is None or self._loaded is None or self._loaded[0] != tensors.versions(self.learned):
            return None
        return self._loaded[2]

    @property
    def trained_weights(self) -> trained.Trained | None:
        """The weights by their name, where they came with a card and are as they were."""
        card = self.card
        return None if card is None or self._loaded is None else trained.of_file(self._loaded[1], card)

    @property
    def weights_digest(self) -> str | None:
        """sha256 of what is learned, hexadecimal; None without such. It follows changes of the weights."""
        if self.learned is None:
            return None
        learned = self.learned
        return self._weights_digest.of(lambda: tensors.weights_digest(learned), learned)

    def save_weights(self, path: Path | str, dtype: torch.dtype | None = None) -> None:
        """Write what is learned to one safetensors file, with what it belongs to.

        Args:
            path: of the file.
            dtype: of the weights in it, where it can hold them, int8 as `tensors.compact` says; as they are when None.

        Raises:
            UserError: when there is nothing to learn, or it cannot be written.
        """
        if self.learned is None:
            raise UserError(f"{type(self).__name__} has nothing to learn, so there are no weights to save.")
        about = {"kind": WEIGHTS, "method": type(self).__name__, "backbone": self.backbone.digest}
        tensors.write(path, tensors.compact(self.learned.state_dict(), dtype), about)

    def load_weights(self, path: Path | str) -> None:
        """Take over learned weights, all or none.

        Args:
            path: of the file, or of the folder that `contextlab train` wrote.

        Raises:
            UserError: when there is nothing to learn, or the file is broken, of another method or backbone, not the
                one that a card beside it describes, or does not fit the configuration.
        """
        path = cards.weights_file(path)
        card = cards.beside(path)
        weights, about = tensors.read(path, sealed=() if card else (WEIGHTS,))
        misfit = f"{type(self).__name__} has nothing to learn"
        if about.get("kind") == WEIGHTS and about.get("method") != type(self).__name__:
            misfit = f"it was written for {about.get('method')}"
        elif about.get("kind") == WEIGHTS and about.get("backbone") != self.backbone.digest:
            misfit = "it was trained beside another backbone"
        elif self.learned is not None:
            named = self.renamed_weights(weights)
            misfit = tensors.load_into(self.learned, named, unbounded=self.unbounded) or ""
        if misfit:
            raise UserError(
                f"{path} does not hold {type(self).__name__} weights for this backbone and configuration ({misfit}): "
                "check weights=."
            )
        if card is not None and self.learned is not None:
            self._loaded = tensors.versions(self.learned), path, card

    def renamed_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of a file under the names of `learned`; methods that read files of others translate them here."""
        return weights

    def _parameters(self) -> Iterable[nn.Parameter]:
        return () if self.learned is None else self.learned.parameters()


def _file(weights: Path | str) -> Path:
    """The file of weights that a path, or the name of listed weights, stands for."""
    listed = trained.find(weights) if isinstance(weights, str) else None
    return Path(weights) if listed is None else listed.file
