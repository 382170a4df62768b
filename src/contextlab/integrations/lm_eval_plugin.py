"""Makes the model `contextlab` known to lm-evaluation-harness, which has no way of its own to find others' models.

The harness imports torch, and torch calls every entry point of the group `torch.backends` when it is imported. The
package registers `announce` there, so that an installed contextlab is found by the plain `lm_eval` command. Everywhere
else the call looks for the harness among the loaded modules, and does nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from contextlab import harmless
from contextlab.errors import UserError

TARGET = "contextlab.integrations.lm_eval:ContextLM"


def announce() -> None:
    """Register the model if the harness is what imports torch; whatever goes wrong must not stop that import."""
    if "lm_eval" in sys.modules:
        with contextlib.suppress(Exception):
            register()


def register() -> None:
    """Register the model, to be imported when it is asked for."""
    from lm_eval.api.registry import model_registry

    # A registry that is not empty is taken to hold the harness's own models.
    importlib.import_module("lm_eval.models")
    if "contextlab" not in model_registry:
        model_registry.register("contextlab", target=TARGET)


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
