"""What methods predict after a document's own history, another's and none, on documents that training held back.

Every text is a history and a segment that is scored after it, as in the validation of a training run, of which this is
the same code. `share` is that of full attention's gain over cold windows. `none` is the loss of the same segments from
an empty state, so that wrong - none is the harm of another document's history. Methods that have learned a domain are
compared with adapted twins, which stand in the same table: `share_of_twins` is (window - method) / (window - full) with
both twins after the same histories, where they are named. `flops` of the scored segment after one history and
`state_bytes` before it are those of the method's formula.

    python benches/shares.py DIR 'evalm(remote_bias=-2)' sliding --twins 'window(weights=A)' 'full(weights=B)'
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from contextlab import backbone as backbones
from contextlab import grammar, registry
from contextlab.formula import Row
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod, build
from contextlab.training.corpus import prepare
from contextlab.training.options import TrainConfig
from contextlab.training.validation import Validator


def cost(method: AnyMethod, history: int, scored: int) -> dict[str, int | None]:
    """FLOPs of a scored segment after its history, and bytes of the state between them, by arithmetic."""
    formula = method.formula()
    if formula is None:
        return {"flops": None, "state_bytes": None}
    flops = formula.read([Row(history, scored)], logprobs=True)
    return {"flops": flops, "state_bytes": formula.state_bytes(history)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", help="that the methods were trained on, or another one")
    parser.add_argument("methods", nargs="+", help="as for contextlab bench")
    parser.add_argument("--twins", nargs=2, metavar=("WINDOW", "FULL"), help="adapted without memory")
    parser.add_argument(
        "--references", nargs=2, type=float, metavar=("WINDOW", "FULL"), help="losses that a run has measured already"
    )
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--history", type=int, default=6144)
    parser.add_argument("--scored", type=int, default=1024)
    options = parser.parse_args()
    backbone = backbones.load(options.backbone, device="cpu", dtype="float32")
    corpus = prepare(options.corpus, backbone)
    sizes = {name: getattr(options, name) for name in ("documents", "history", "scored")}
    settings = TrainConfig(tokens=1, **sizes)
    rows: list[dict[str, Any]] = []
    references = options.references
    for name in [*options.methods, *(options.twins or ())]:
        item = grammar.single(name, "method")
        kind = registry.method_class(item.name)
        method = build(kind, backbone, kind.Config.parse(item.settings, item.name))
        validator = Validator(method, corpus, settings, options.scored)
        if references is not None:
            validator.references = references
        line = validator().line()
        references = validator.references
        measures = {key: value for key, value in line.items() if key != "seconds"}
        rows.append({"method": name, **measures, **cost(method, options.history, options.scored)})
    if options.twins:
        window, full = rows[-2]["loss"], rows[-1]["loss"]
        for row in rows:
            row["share_of_twins"] = (window - row["loss"]) / (window - full)
    about = {"bench": "shares", "device": hardware(torch.device("cpu")), **sizes, "backbone": options.backbone}
    print(json.dumps({**about, "shares": rows}))


if __name__ == "__main__":
    main()
