"""How much the loss of trained weights moves when their matrices are stored in 8 bits, on held-back books.

For every set of weights the texts of its own validation are scored behind their own history, so that a memory is in
use, once with the weights as they are and once as `storage=int8` stores them. The difference is that of equal tokens;
its standard error is over texts. Sets whose loss moves by less than `LIMIT` may be stored so: `--store` replaces their
files, with a card that says what was replaced and by how much the loss moved.

    python benches/eight_bits.py --corpus DIR [--store] [FOLDER ...] > results/benches/eight_bits.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab import cards, files, naming, seals, trained
from contextlab.backbone.embedded import EMBEDDED
from contextlab.method import AnyMethod
from contextlab.training.corpus import Corpus, prepare
from contextlab.training.options import TrainConfig
from contextlab.training.validation import Validator

LIMIT = 0.001
"""Nats per token by which the loss may move."""
HISTORY, SCORED, TEXTS = 2048, 1024, 2
"""Tokens of the histories and behind them, and texts of every held-back book; a shorter own validation is kept."""


def validator(method: AnyMethod, card: cards.Card, corpus: Corpus) -> Validator:
    """The texts that a set of weights is scored on."""
    own: dict[str, Any] = (card.model_extra or {})["training"]
    length = own["segment"]
    short = own.get("validation") == "reconstruction"
    settings = TrainConfig(
        tokens=1,
        documents=len(corpus.held_back),
        texts=own["texts"] if short else TEXTS,
        history=own["history"] if short else HISTORY,
        scored=length if short else SCORED,
        validation=own.get("validation", "completion"),
    )
    return Validator(method, corpus, settings, length)


@torch.no_grad()
def nats(method: AnyMethod, texts: Validator) -> Tensor:
    """`nats_BS` of every scored token but the first one, behind the own history or the memory of it alone."""
    rows = []
    for history_T, scored_T in zip(texts.history_BH, texts.scored_BS, strict=True):
        state, _ = method.read(method.start(), history_T[None], logprobs=False)
        behind = method.memory_alone(state) if texts.alone else state
        _, logprobs_BT = method.read(behind, scored_T[None])
        assert logprobs_BT is not None
        rows.append(-logprobs_BT[0, 1:].double())
    return torch.stack(rows)


def measured(folder: Path, backbone: backbones.Backbone, corpus: Corpus, store: bool) -> dict[str, Any]:
    """One set of weights as it is and in 8 bits; its files are replaced where that is wished and allowed."""
    card = cards.read(folder / cards.CARD)
    method = naming.single(str(folder)).build(backbone)
    texts = validator(method, card, corpus)
    before_BS, digest = nats(method, texts), method.weights_digest
    with tempfile.TemporaryDirectory(dir=folder if store else None) as out:
        smaller = Path(out) / cards.FILE
        method.save_weights(smaller, dtype=torch.int8)
        method.load_weights(smaller)
        after_BS = nats(method, texts)
        apart_B = (after_BS - before_BS).mean(1).tolist()
        about: dict[str, Any] = {
            "weights": folder.name,
            "method": card.label,
            "scored": "behind the memory alone" if texts.alone else "behind the own history",
            "history": texts.history_BH.shape[1],
            "texts": len(before_BS),
            "tokens": before_BS.numel(),
            "bytes": {"before": (folder / cards.FILE).stat().st_size, "after": smaller.stat().st_size},
            "nats": {"before": float(before_BS.mean()), "after": float(after_BS.mean())},
            "difference": statistics.fmean(apart_B),
            "error": statistics.stdev(apart_B) / len(apart_B) ** 0.5,
            "largest_of_a_token": float((after_BS - before_BS).abs().max()),
        }
        about["in_8_bits"] = abs(about["difference"]) < LIMIT and about["bytes"]["after"] < about["bytes"]["before"]
        if store and about["in_8_bits"] and digest != method.weights_digest:
            replace(folder, smaller, method, about)
    return about


def replace(folder: Path, smaller: Path, method: AnyMethod, about: dict[str, Any]) -> None:
    """Put a smaller file in the place of a set's weights, and say so on its card."""
    path = folder / cards.CARD
    card = json.loads(path.read_text())
    before = card["weights"]
    card["weights"] = {
        **before,
        "sha256": files.sha256(smaller),
        "digest": method.weights_digest,
        "bytes": smaller.stat().st_size,
        "dtype": "int8",
    }
    replaced = {name: before[name] for name in ("sha256", "digest", "bytes", "dtype")}
    measure = {name: about[name] for name in ("difference", "error", "tokens")}
    card["earlier"] = [*card.get("earlier", []), {**replaced, **measure}]
    # Between two cards there is none: that of the weights before would not be theirs.
    path.unlink()
    smaller.replace(folder / cards.FILE)
    seals.write(path, card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folders", type=Path, nargs="*", help="sets of weights; those of the package when none is named"
    )
    parser.add_argument("--corpus", required=True, help="that they were trained on, with its held-back books")
    parser.add_argument("--store", action="store_true", help="replace the files of the sets that the limit allows")
    options = parser.parse_args()
    backbone = backbones.load(EMBEDDED, device="cpu", dtype="float32")
    corpus = prepare(options.corpus, backbone)
    sets = []
    for folder in options.folders or sorted(path.parent for path in trained.SHIPPED.glob(f"*/{cards.CARD}")):
        sets.append(measured(folder, backbone, corpus, options.store))
        print(json.dumps(sets[-1]), flush=True)
    about = {"backbone": backbone.name, "corpus": corpus.key, "threads": torch.get_num_threads(), "limit": LIMIT}
    print(json.dumps({"bench": "eight_bits", **about, "sets": sets}))


if __name__ == "__main__":
    main()
