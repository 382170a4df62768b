"""A backbone run with other weights than its own, and gradients with respect to them.

Legend: T tokens, C width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from contextlab.attention import Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError

R = TypeVar("R")


class Adaptable:
    """The parameters of a backbone whose names match a pattern, to be replaced while something runs.

    Attributes:
        names: of the parameters.
        trained: their values, in float32 at least: an update is too small for bfloat16. The backbone's own memory
            where the type is the same.

    Raises:
        UserError: when the backbone cannot be differentiated, or nothing matches.
    """

    def __init__(self, backbone: Backbone, pattern: str = "*") -> None:
        own: dict[str, Tensor] = {name: value.detach() for name, value in backbone.model.named_parameters()}
        backbone.check_differentiable()
        self.names = [name for name in own if fnmatchcase(name, pattern)]
        if not self.names:
            raise UserError(f"parameters={pattern} matches nothing in {backbone.name}: use a pattern such as *.mlp.*.")
        self._own = own
        self._seat = _Seat(backbone.model)
        self.trained = tuple(own[n].to(torch.promote_types(own[n].dtype, torch.float32)) for n in self.names)

    def run(self, weights: Sequence[Tensor], fn: Callable[[], R]) -> R:
        """`fn()` while the model has these weights."""
        replaced = {name: w.to(self._own[name].dtype) for name, w in zip(self.names, weights, strict=True)}
        parameters = {f"model.{name}": value for name, value in {**self._own, **replaced}.items()}
        result: R = functional_call(self._seat, parameters, (fn,))
        return result

    def gradients(
        self, weights: Sequence[Tensor], fn: Callable[[], tuple[Tensor, R]]
    ) -> tuple[Tensor, R, tuple[Tensor, ...]]:
        """Log-probabilities from `fn() -> (logprobs, rest)`, the rest, and the gradients of the mean loss."""
        leaves = [w.detach().requires_grad_() for w in weights]
        with torch.enable_grad():
            logprobs, rest = self.run(leaves, fn)
            gradients = torch.autograd.grad(-logprobs.mean(), leaves, materialize_grads=True)
        return logprobs.detach(), rest, gradients


class _Seat(nn.Module):
    """Runs anything as the forward pass of a module that holds the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, fn: Callable[[], Any]) -> Any:
        return fn()


def logprobs_within(backbone: Backbone, tokens_1T: Tensor, scored_t: Tensor | None = None) -> Tensor:
    """`logprobs_1s` of the tokens after the first one, each given those before it, from a cold start.

    Args:
        backbone: that reads, with the weights that it has now.
        tokens_1T: at least 2.
        scored_t: bool, which of the tokens after the first one are wanted; all when None.
    """
    position_1t = torch.arange(tokens_1T.shape[1] - 1, device=tokens_1T.device)[None]
    hidden_1tC = backbone.forward(tokens_1T[:, :-1], position_1t, backbone.reader(1, Layout(position_1t)))
    next_1t = tokens_1T[:, 1:]
    if scored_t is not None:
        hidden_1tC, next_1t = hidden_1tC[:, scored_t], next_1t[:, scored_t]
    return backbone.logprobs(hidden_1tC, next_1t)
