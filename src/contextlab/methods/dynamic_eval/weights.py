"""A backbone run with other weights than its own, and gradients with respect to them.

Legend: T tokens, C width of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
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


def gradient_statistics(backbone: Backbone, segments: Iterable[Sequence[int]]) -> dict[str, Tensor]:
    """MS of `rule=rms`: the root mean square of every weight's gradient over segments of training text.

    Args:
        backbone: the backbone that will be evaluated.
        segments: tokens, at least 2 each and no more than the backbone's positions, read one by one from a cold start;
            as long as those of the evaluation.

    Raises:
        UserError: when there is no segment, or one without a next token.
    """
    model = Adaptable(backbone)
    gradients = (model.gradients(model.trained, functools.partial(_predict, backbone, s))[2] for s in segments)
    return dict(zip(model.names, root_mean_square(gradients), strict=True))


def root_mean_square(gradients: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Element by element over all gradients.

    Raises:
        UserError: when there are none.
    """
    total: list[Tensor] = []
    count = 0
    for tensors in gradients:
        total = total or [torch.zeros_like(g) for g in tensors]
        for square, g in zip(total, tensors, strict=True):
            square.addcmul_(g, g)
        count += 1
    if not count:
        raise UserError("Gradient statistics need at least one segment of text: give some.")
    return [square.div_(count).sqrt_() for square in total]


def _predict(backbone: Backbone, segment: Sequence[int]) -> tuple[Tensor, None]:
    if len(segment) < 2:
        raise UserError("A segment of one token has no gradient: give segments of at least 2.")
    tokens_1T = torch.as_tensor(segment, device=backbone.device)[None]
    position_1T = torch.arange(tokens_1T.shape[1] - 1, device=backbone.device)[None]
    reader = backbone.reader(1, Layout(position_1T))
    return backbone.logprobs(backbone.forward(tokens_1T[:, :-1], position_1T, reader), tokens_1T[:, 1:]), None
