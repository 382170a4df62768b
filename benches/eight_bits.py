"""How much the loss of trained weights moves when their matrices are stored in 8 bits, on held-back books.

For every set of weights, texts of the books that were held back from its training are scored behind their own history,
so that a memory is in use: once with the weights as they are and once as `storage=int8` stores them. The difference is
that of equal tokens; its standard error is over texts.

`--store` reads such a report and replaces the files of those sets whose loss moves by less than `LIMIT`; their cards
then say what was replaced and by how much the loss moved.

    python benches/eight_bits.py --corpus DIR [FOLDER ...] > results/benches/eight_bits.json
    python benches/eight_bits.py --store results/benches/eight_bits.json [FOLDER ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab import cards, files, naming, seals, trained
from contextlab.backbone import Backbone
from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
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


def measured(folder: Path, backbone: Backbone, corpus: Corpus) -> dict[str, Any]:
    """One set of weights as it is and in 8 bits."""
    card = cards.read(folder / cards.CARD)
    method = naming.single(str(folder)).build(backbone)
    texts = validator(method, card, corpus)
    before_BS = nats(method, texts)
    with tempfile.TemporaryDirectory() as out:
        size = in_8_bits(method, Path(out) / cards.FILE)
    after_BS = nats(method, texts)
    apart_B = (after_BS - before_BS).mean(1).tolist()
    difference, bytes_before = statistics.fmean(apart_B), (folder / cards.FILE).stat().st_size
    return {
        "weights": folder.name,
        "method": card.label,
        "scored": "behind the memory alone" if texts.alone else "behind the own history",
        "history": texts.history_BH.shape[1],
        "texts": len(before_BS),
        "tokens": before_BS.numel(),
        "bytes": {"before": bytes_before, "after": size},
        "nats": {"before": float(before_BS.mean()), "after": float(after_BS.mean())},
        "difference": difference,
        "error": statistics.stdev(apart_B) / len(apart_B) ** 0.5,
        "largest_of_a_token": float((after_BS - before_BS).abs().max()),
        "in_8_bits": abs(difference) < LIMIT and size < bytes_before,
    }


def in_8_bits(method: AnyMethod, path: Path) -> int:
    """Store a method's weights in 8 bits and load them again; returns the bytes of the file."""
    method.save_weights(path, dtype=torch.int8)
    method.load_weights(path)
    return path.stat().st_size


def replace(folder: Path, backbone: Backbone, about: Mapping[str, Any]) -> None:
    """Put a set's weights in 8 bits in the place of its file, and say on its card what was measured.

    Raises:
        UserError: when the measurement is that of another file.
    """
    method = naming.single(str(folder)).build(backbone)
    card = json.loads((folder / cards.CARD).read_text())
    before, smaller = card["weights"], folder / f".{cards.FILE}"
    size = in_8_bits(method, smaller)
    if about["bytes"] != {"before": before["bytes"], "after": size}:
        smaller.unlink()
        raise UserError(f"{folder} holds another file than the one that was measured: measure it again.")
    now = {"sha256": files.sha256(smaller), "digest": method.weights_digest, "bytes": size, "dtype": "int8"}
    file = {name: before[name] for name in ("sha256", "digest", "bytes", "dtype")}
    measure = {name: about[name] for name in ("difference", "error", "tokens")}
    card |= {"weights": {**before, **now}, "earlier": [*card.get("earlier", []), {**file, **measure}]}
    # Between two cards there is none: that of the weights before would not be theirs.
    (folder / cards.CARD).unlink()
    files.rename(smaller, folder / cards.FILE)
    seals.write(folder / cards.CARD, card)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*", help="sets of weights; those of the package by default")
    parser.add_argument("--corpus", help="that they were trained on, with its held-back books")
    parser.add_argument("--store", type=Path, metavar="FILE", help="report of an earlier measurement")
    parser.add_argument("--backbone", default=EMBEDDED)
    options = parser.parse_args()
    backbone = backbones.load(options.backbone, device="cpu", dtype="float32")
    folders = options.folders or sorted(path.parent for path in trained.SHIPPED.glob(f"*/{cards.CARD}"))
    if options.store:
        report = json.loads(options.store.read_text().splitlines()[-1])
        small = {about["weights"]: about for about in report["sets"] if about["in_8_bits"]}
        for folder in folders:
            if folder.name in small:
                replace(folder, backbone, small[folder.name])
        print(json.dumps({"stored": [folder.name for folder in folders if folder.name in small]}))
        return
    corpus = prepare(options.corpus, backbone)
    sets = []
    for folder in folders:
        sets.append(measured(folder, backbone, corpus))
        print(json.dumps(sets[-1]), flush=True)
    about = {"backbone": backbone.name, "corpus": corpus.key, "threads": torch.get_num_threads(), "limit": LIMIT}
    print(json.dumps({"bench": "eight_bits", **about, "sets": sets}))


if __name__ == "__main__":
    main()
