"""`contextlab lm_eval`."""

from __future__ import annotations

import typer

from contextlab.cli import announce
from contextlab.errors import UserError

# Everything after the first word is the harness's, `--help` too.
PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def lm_eval(arguments: typer.Context) -> None:
    """Run lm-evaluation-harness's own command line, which also knows the model `contextlab`.

    All arguments are the harness's: `contextlab lm_eval --model contextlab --model_args method=longmem --tasks
    hellaswag`. `contextlab lm_eval run --help` shows its options.
    """
    announce()
    try:
        from contextlab.integrations import lm_eval as harness
    except ImportError as error:
        raise UserError(
            f"lm-evaluation-harness cannot be imported ({error}): pip install 'contextlab[lm-eval]'."
        ) from error
    harness.main(arguments.args)
