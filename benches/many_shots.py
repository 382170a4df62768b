"""Classification against the number of demonstrations (EVALM, sections 4.1 and 4.4, Fig. 5).

Every k is scored on validation texts; the k that is best there, the smallest of several, is then scored on test texts.
All texts of a block share their demonstrations, so that these are encoded once. FLOPs and seconds per text are given
with that reuse, and as if the demonstrations were encoded again for every text.

    python benches/many_shots.py --data DIR --methods 'full,evalm(weights=TWO,rank=16)' --set-name sst5 --k 0 16 256
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from typing import Any

import torch

from contextlab.harness.identity import hardware
from contextlab.harness.runner import bench
from contextlab.harness.stored import Costs


def scored(options: argparse.Namespace, method: str, k: int, part: str, out: str) -> dict[str, Any]:
    """Accuracy of a method behind k demonstrations, and what a text costs."""
    task = f"icl/{options.set_name}(k={k},n={options.n},part={part},template={options.template})"
    common = {"limit": options.blocks, "data": options.data, "out": out, "device": "cpu", "dtype": options.dtype}
    (run,) = bench(method, task, backbone=options.backbone, seed=options.seed, **common).runs
    return {"k": k, **dataclasses.asdict(run.metrics["accuracy"]), "cost": per_text(run.cost, options.n)}


def per_text(cost: Costs, texts: int) -> dict[str, Any]:
    """FLOPs and seconds of one text of a block, its demonstrations encoded once for the block or for the text alone."""
    rows: dict[str, Any] = {}
    for measure in ("flops", "seconds"):
        # Without demonstrations nothing is encoded.
        encoding, answers = (getattr(phase, measure, None) or 0 for phase in (cost.contextualize, cost.query))
        rows[measure] = {"with_reuse": (encoding + answers) / texts, "without": encoding + answers / texts}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=["full", "evalm(remote_bias=-2)"], help="one argument for each")
    parser.add_argument("--set-name", default="sst5", help="of icl, with validation texts: sst2 or sst5")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 4, 16, 64, 256])
    parser.add_argument("--n", type=int, default=25, help="texts of a block")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--template", default="evalm")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder of the runs, which are not run again")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for method in options.methods:
            out = options.out or scratch
            curve = [scored(options, method, k, "dev", out) for k in sorted(options.k)]
            best = max(curve, key=lambda row: row["value"])["k"]
            test = scored(options, method, best, "test", out)
            rows.append({"method": method, "validation": curve, "best_k": best, "test": test})
    settings = {name: getattr(options, name) for name in ("backbone", "dtype", "n", "blocks")}
    about = {"bench": "many_shots", "device": hardware(torch.device("cpu")), "set": options.set_name}
    print(json.dumps({**about, **settings, "methods": rows}))


if __name__ == "__main__":
    main()
