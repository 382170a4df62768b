"""`contextlab check`."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab import grammar
from contextlab.cli import announce, console

if TYPE_CHECKING:
    from contextlab.testing.laws import LawResult


def check(
    method: Annotated[str, typer.Argument(help="NAME or path.py:Class, with settings as in NAME(setting=value).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check the laws of the interface for a method, on small models of several families; exit 1 if one fails."""
    if not as_json:
        announce()

    from contextlab import registry
    from contextlab.testing import laws

    item = grammar.single(method, "method")
    kind = registry.method_class(item.name)
    config = kind.Config.parse(item.settings, item.name)
    results = laws.check((lambda backbone: kind(backbone, config)) if item.settings else kind)
    passed = all(result.passed for result in results)
    if as_json:
        print(json.dumps({"method": method, "passed": passed, "laws": [dataclasses.asdict(r) for r in results]}))
    else:
        _print(method, results)
    if not passed:
        raise typer.Exit(1)


def _print(method: str, results: list[LawResult]) -> None:
    from rich.table import Table

    from contextlab.testing.parts import LENGTH

    families = list(dict.fromkeys(result.family for result in results))
    held = {(result.law, result.family): "holds" if result.passed else "FAILS" for result in results}
    table = Table("law", *families, title=method)
    for law in dict.fromkeys(result.law for result in results):
        table.add_row(law, *(held.get((law, family), "") for family in families))
    screen = console()
    screen.print(table)
    failed = [result for result in results if not result.passed]
    for result in failed:
        screen.print(f"{result.law} ({result.family}): {result.detail}")
    seconds = sum(result.seconds for result in results)
    screen.print(f"{len(results) - len(failed)} of {len(results)} hold, {seconds:.1f} s.")
    screen.print(
        f"Texts have at most {LENGTH} tokens: ends of longer segments are not tested, check with shorter ones too."
    )
