"""Compiled passes of one token per row: a decoded token gives a GPU hundreds of small kernels, and most can be joined.

What grows with a text, such as the slots of a cache, is a symbol in the compiled graph, so that one graph serves all
lengths. A method has another one where it does something else, as when a segment or a chunk ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from contextlab.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
GRAPHS = 64
"""Graphs that torch keeps of one piece of code at least, where its own limit is lower: models of transformers have
pieces in common, and passes that would need another graph run uncompiled."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A computation of one pass, compiled when it is first called."""
    from torch._dynamo import config  # seconds, which who compiles nothing need not wait

    config.recompile_limit = max(config.recompile_limit, GRAPHS)
    return torch.compile(function, dynamic=True)


def possible() -> bool:
    """Whether a compiled pass would do: it has no gradients here, and hides its operations from who counts them."""
    return not torch.is_grad_enabled() and not _get_current_dispatch_mode_stack()


def check(device: torch.device) -> None:
    """Compile a small computation.

    Raises:
        UserError: when that is not possible for this device here.
    """
    try:
        with torch.no_grad():
            compiled(torch.nn.functional.silu)(torch.ones(2, device=device))
    except Exception as error:  # of compilers and of what they call
        reason = str(error).strip().partition("\n")[0]
        raise UserError(
            f"Nothing can be compiled for {device} here ({reason}): install a C++ compiler, and Triton for a GPU, or "
            "leave compile out."
        ) from None
