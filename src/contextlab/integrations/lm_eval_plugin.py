"""Registers the model `contextlab` in lm-evaluation-harness, which has no entry points for models.

The harness imports torch, and torch calls every entry point of the group `torch.backends` at its import. The package
registers `announce` there, so that the `lm_eval` command knows the model of an installed contextlab. In other programs
the call does nothing, because the harness is not among the loaded modules.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from types import TracebackType

from contextlab import harmless
from contextlab.errors import UserError

COMMANDS = ("lm_eval", "lm-eval")
TARGET = "contextlab.integrations.lm_eval:ContextLM"


def announce() -> None:
    """Register the model if the harness imports torch; no error may stop that import."""
    if "lm_eval" in sys.modules:
        with contextlib.suppress(Exception):
            register()
            if Path(sys.argv[0]).stem in COMMANDS or Path(sys.argv[0]).parent.name in COMMANDS:
                say_mistakes()


def register() -> None:
    """Register the model, to be imported when the harness needs it."""
    from lm_eval.api.registry import model_registry

    # The harness loads its own models only into an empty registry, so they are loaded first.
    importlib.import_module("lm_eval.models")
    if "contextlab" not in model_registry:
        model_registry.register("contextlab", target=TARGET)


def say_mistakes() -> None:
    """End the harness's command with one sentence and exit code 2 after a user error."""
    other = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, UserError):
            other(kind, error, trace)
            return
        print(f"contextlab: {harmless.line(error)}", file=sys.stderr)
        raise SystemExit(2)

    sys.excepthook = hook


def main() -> int:
    """The harness's command line with this model; a user error is one sentence."""
    from lm_eval.__main__ import cli_evaluate

    register()
    try:
        cli_evaluate()
    except UserError as error:
        print(f"contextlab: {harmless.line(error)}", file=sys.stderr)
        return 2
    return 0
