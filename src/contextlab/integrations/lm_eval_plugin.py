"""Makes the model `contextlab` known to lm-evaluation-harness, which has no way of its own to find others' models.

The harness imports torch, and torch calls every entry point of the group `torch.backends` when it is imported. The
package registers `announce` there, so that an installed contextlab is found by the plain `lm_eval` command. Everywhere
else the call looks for the harness among the loaded modules, and does nothing.
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
    """Register the model if the harness is what imports torch; whatever goes wrong must not stop that import."""
    if "lm_eval" in sys.modules:
        with contextlib.suppress(Exception):
            register()
            if Path(sys.argv[0]).stem in COMMANDS or Path(sys.argv[0]).parent.name in COMMANDS:
                say_mistakes()


def register() -> None:
    """Register the model, to be imported when it is asked for."""
    from lm_eval.api.registry import model_registry

    # A registry that is not empty is taken to hold the harness's own models.
    importlib.import_module("lm_eval.models")
    if "contextlab" not in model_registry:
        model_registry.register("contextlab", target=TARGET)


def say_mistakes() -> None:
    """Let a user's mistake end the harness's own command with one sentence and exit code 2."""
    other = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, UserError):
            other(kind, error, trace)
            return
        print(f"contextlab: {harmless.line(error)}", file=sys.stderr)
        raise SystemExit(2)

    sys.excepthook = hook


def main() -> int:
    """The harness's command line with this model in it; a user's mistake is one sentence."""
    from lm_eval.__main__ import cli_evaluate

    register()
    try:
        cli_evaluate()
    except UserError as error:
        print(f"contextlab: {harmless.line(error)}", file=sys.stderr)
        return 2
    return 0
