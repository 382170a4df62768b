"""`contextlab check`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab.cli import announce, console
from contextlab.cli.complete import method_names
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.testing.laws import LawResult, Make


def check(
    method: Annotated[
        str,
        typer.Argument(
            help="NAME or path.py:Class, as NAME(key=value); or trained weights.", autocompletion=method_names
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the laws of the interface for a method, on small models of several families; exit 1 if one fails.

    The name of trained weights stands for their method and settings, as initialised: weights belong to one backbone.
    """
    if not as_json:
        announce()

    from contextlab import naming
    from contextlab.kernels import dispatch
    from contextlab.testing import laws

    dispatch.forced_form()  # refuses one that does not exist
    named = naming.single(method).as_initialised()
    make = (lambda backbone: named.kind(backbone, named.config)) if named.config.changed() else named.kind
    refused = _refused(method, make)
    results = laws.check(make, tuple(family for family in laws.FAMILIES if family not in refused))
    passed = all(result.passed for result in results)
    if as_json:
        print(json.dumps({"method": method, "passed": passed, "laws": [dataclasses.asdict(r) for r in results]}))
    else:
        _print(method, results, refused)
    if not passed:
        raise typer.Exit(1)


def _refused(method: str, make: Make) -> dict[str, UserError]:
    """The families that a method refuses, as one that needs rotary positions, and why.

    Raises:
        UserError: when it refuses all small models, as for layers that they lack.
    """
    from contextlab import backbone
    from contextlab.testing.laws import FAMILIES

    refused = dict[str, UserError]()
    for family in FAMILIES:
        try:
            make(backbone.load(family, device="cpu"))
        except UserError as error:
            refused[family] = error
    if len(refused) == len(FAMILIES):
        reason = refused[FAMILIES[0]]
        raise UserError(
            f"The laws are checked on small models, which {method} does not fit ({reason}): check it with other "
            "settings."
        ) from reason
    return refused


def _print(method: str, results: list[LawResult], refused: dict[str, UserError]) -> None:
    from rich.table import Table

    from contextlab.testing.parts import LENGTH

    families = list(dict.fromkeys(result.family for result in results))
    verdicts = {(result.law, result.family): "holds" if result.passed else "FAILS" for result in results}
    table = Table("law", *families, title=method)
    for law in dict.fromkeys(result.law for result in results):
        table.add_row(law, *(verdicts.get((law, family), "") for family in families))
    screen = console()
    screen.print(table)
    failed = [result for result in results if not result.passed]
    for result in failed:
        screen.print(f"{result.law} ({result.family}): {result.detail}")
    for family, reason in refused.items():
        screen.print(f"Not checked on {family}: {reason}")
    seconds = sum(result.seconds for result in results)
    screen.print(f"{len(results) - len(failed)} of {len(results)} hold, {seconds:.1f} s.")
    screen.print(
        f"Texts have at most {LENGTH} tokens: ends of longer segments are not tested, check with shorter ones too."
    )
