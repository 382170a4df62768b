"""Checks of the arguments of a method's calls: once, where a call comes in from outside, and not again inside of it.

Legend: B rows, T tokens of a call.
"""

from __future__ import annotations

import contextlib
import functools
import math
import numbers
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.states import Owner, State
from contextlab.tensors import require

F = TypeVar("F", bound=Callable[..., Any])

MOST_SEED = 2**63 - 1


def checked(name: str) -> Callable[[F], F]:
    """A method's function with its arguments checked in calls from outside, and its states marked as its own.

    Args:
        name: of the function, one of `CHECKS`.
    """
    check = CHECKS[name]

    def decorate(function: F) -> F:
        if hasattr(function, "unchecked"):
            return function

        @functools.wraps(function)
        def called(self: Owner, *args: Any, **options: Any) -> Any:
            thread = threading.get_ident()
            if self.called_by == thread:
                return _owned(self, function(self, *args, **options))
            # For the time of a call a method may change its model, by hooks or other weights.
            with self.backbone.exclusive():
                check(self, *args, **options)
                self.called_by = thread
                try:
                    return _owned(self, function(self, *args, **options))
                finally:
                    self.called_by = None

        called.unchecked = function  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


@contextlib.contextmanager
def within(method: Owner) -> Iterator[None]:
    """Take calls of a method inside of the block as parts of another method's call, whose arguments were checked."""
    before, method.called_by = method.called_by, threading.get_ident()
    try:
        yield
    finally:
        method.called_by = before


def same_origin(first: Owner, second: Owner) -> bool:
    """Whether two methods are of one kind, with equal settings, on the same weights, so that states may change over."""
    if first is second:
        return True
    alike = type(first) is type(second) and first.config == second.config
    return alike and (first.backbone is second.backbone or first.backbone.digest == second.backbone.digest)


def check_tokens(tokens: Tensor, vocabulary: int | None) -> None:
    """Refuse ids outside of a vocabulary.

    Raises:
        UserError: naming the first of them; of ids on a device, see `tensors.require`.
    """
    if not tokens.numel():
        return
    if not tokens.is_cpu:  # naming it would have to wait for the device
        inside = (tokens >= 0) & (tokens < (MOST_SEED if vocabulary is None else vocabulary))
        require(inside.all(), "There is a token that is not in the vocabulary.")
        return
    least, most = torch.stack(torch.aminmax(tokens)).tolist()
    if least < 0 or (vocabulary is not None and most >= vocabulary):
        wrong = least if least < 0 else most
        raise UserError(f"There is no token {wrong}: give ids from 0 to {(vocabulary or 0) - 1}, at padding too.")


def _owned(method: Owner, result: Any) -> Any:
    """The result of a call, with the state in it marked as the method's."""
    state = result[0] if isinstance(result, tuple) and result else result
    if isinstance(state, State):
        state.own(method)
    return result


def _start(_method: Owner, batch_size: int = 1, **_options: Any) -> None:
    _integer("batch_size", batch_size, 1)


def _read(method: Owner, state: object, tokens_BT: Tensor, lengths_B: Tensor | None = None, **_options: Any) -> None:
    rows, device = _state(method, state)
    _tensor("tokens", tokens_BT, 2, device)
    if len(tokens_BT) != rows:
        raise UserError(f"The state has {rows} rows and the tokens have {len(tokens_BT)}: give one row of each.")
    check_tokens(tokens_BT, method.backbone.vocab_size)
    if lengths_B is None:
        return
    _tensor("lengths", lengths_B, 1)
    least, most = torch.stack(torch.aminmax(lengths_B)).tolist() if len(lengths_B) == rows else (-1, 0)
    if least < 0 or most > tokens_BT.shape[1]:
        raise UserError(f"Lengths must be {rows} numbers from 0 to {tokens_BT.shape[1]}, one of each row of tokens.")


def _score(method: Owner, state: object, candidates: Sequence[Sequence[int]]) -> None:
    _state(method, state)
    if not _texts("candidates", candidates, method.backbone.vocab_size):
        raise UserError("There are no candidates to score: give at least one.")


def _score_rows(method: Owner, state: object, candidates: Sequence[Sequence[Sequence[int]]]) -> None:
    rows, _ = _state(method, state)
    counts = [_texts("candidates", row, method.backbone.vocab_size) for row in _listed(candidates) or ()]
    if len(counts) != rows or not any(counts):
        raise UserError(f"The state has {rows} rows and there are candidates of {len(counts)}: give some for each row.")


def _generate(
    method: Owner,
    state: object,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop: Sequence[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
    **_options: Any,
) -> None:
    rows, _ = _state(method, state)
    count = _texts("prompts", prompts, method.backbone.vocab_size)
    if rows not in (1, count):
        raise UserError(f"The state has {rows} rows and there are {count} prompts: give one of each, or a single row.")
    _integer("max_new_tokens", max_new_tokens, 0)
    _integer("seed", seed, -MOST_SEED)
    _texts("stop tokens", [stop], None)
    if not isinstance(temperature, numbers.Real) or not math.isfinite(temperature) or temperature < 0:
        raise UserError(f"temperature={temperature} is not valid: give 0 for the most probable token, or more.")


def _next(method: Owner, state: object) -> None:
    _state(method, state)


CHECKS: dict[str, Callable[..., None]] = {
    "start": _start,
    "read": _read,
    "learn": _read,
    "learn_context": _read,
    "score": _score,
    "score_rows": _score_rows,
    "generate": _generate,
    "next_logprobs": _next,
}


def _state(method: Owner, state: object) -> tuple[int, torch.device]:
    """Rows and device of a state that a method may go on from."""
    if not isinstance(state, State):
        raise UserError(f"A {type(state).__name__} is no state: give what start or read of this method returned.")
    if state.owner is not None and not same_origin(state.owner, method):
        raise UserError(
            f"This state belongs to another method, backbone or settings ({type(state.owner).__name__}): "
            "use it with the one that made it."
        )
    return state.batch_size, state.device


def _tensor(name: str, value: Any, dimensions: int, device: torch.device | None = None) -> None:
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim() != dimensions:
        shape = "one row of ids per text" if dimensions == 2 else "one number per row"
        raise UserError(f"{name.capitalize()} must be a tensor of int64 with {dimensions} dimensions, {shape}.")
    if device is not None and value.device != device:
        raise UserError(f"The {name} are on {value.device} and the state is on {device}: move one of them.")


def _texts(name: str, texts: Any, vocabulary: int | None) -> int:
    """How many lists of tokens these are."""
    listed = _listed(texts)
    texts = [_listed(text) for text in listed or ()]
    tokens = [token for text in texts for token in text or ()]
    if listed is None or None in texts or not all(isinstance(token, numbers.Integral) for token in tokens):
        raise UserError(f"The {name} must be lists of token ids: encode texts first.")
    check_tokens(torch.tensor([_bounded(token) for token in tokens]), vocabulary)
    return len(listed)


def _listed(values: Any) -> Sequence[Any] | None:
    """The items of a list, an array or a tensor; None for what is none of these."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return values if isinstance(values, Sequence) and not isinstance(values, str | bytes) else None


def _bounded(token: Any) -> int:
    """An id that fits int64; what does not is outside of every vocabulary."""
    return min(max(int(token), -1), MOST_SEED)


def _integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, numbers.Integral) or not least <= int(value) <= MOST_SEED:
        raise UserError(f"{name}={value} is not valid: give a whole number, {least} or more.")
