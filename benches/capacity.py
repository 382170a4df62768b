"""How much text an adapter can hold: a few fixed chunks are learned by heart through `contextlab train`'s parts.

Every step learns from the chunks of one batch; the batches take turns. `steps` has the nats per token of a batch, from
the adapters of its own chunks, before the step; `curve` those of every chunk from its own and from another's adapter.
Steps and measurements are printed as they come, and again in the object at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from contextlab import registry
from contextlab.backbone import Backbone, load
from contextlab.grammar import single
from contextlab.method import AnyMethod, build
from contextlab.training.corpus import Corpus, prepare
from contextlab.training.loop import Trainer, narrow_products
from contextlab.training.options import TrainConfig
from contextlab.training.registry import named_objective
from contextlab.training.streams import Streams

METHOD = "generative-adapter(d_r=64,r=32,alpha=4,modules=*.q_proj|*.v_proj|*.o_proj|*.down_proj)"


def chunks_of(corpus: Corpus, chunks: int, length: int) -> Corpus:
    """The middle of every document in turn, as short documents."""
    entries = []
    for number in range(chunks):
        entry = corpus.documents[corpus.training[number % len(corpus.training)]]
        begin = (entry.tokens - length) * (1 + number // len(corpus.training)) // 3
        entries.append(dataclasses.replace(entry, start=entry.start + begin, tokens=length))
    return dataclasses.replace(corpus, documents=tuple(entries))


def heard(method: AnyMethod, corpus: Corpus, *, narrow: bool) -> list[tuple[float, float]]:
    """For every chunk, nats per token from its own adapter and from the next chunk's."""
    texts_BT = torch.stack([corpus.piece(n) for n in range(len(corpus.documents))]).to(method.backbone.device)
    pairs = []
    with torch.no_grad(), narrow_products([method.backbone.model] if narrow else []):
        state, _ = method.read(method.start(len(texts_BT)), texts_BT, logprobs=False)
        memory = method.memory_alone(state)
        rows = range(len(texts_BT))
        for behind in (memory, memory.index([(row + 1) % len(texts_BT) for row in rows])):
            _, logprobs_BT = method.read(behind, texts_BT)
            assert logprobs_BT is not None
            pairs.append((-logprobs_BT[:, 1:].mean(1)).tolist())
    return list(zip(*pairs, strict=True))


def capacity(backbone: Backbone, corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """The curve of one run."""
    fixed = chunks_of(corpus, options.chunks, options.length)
    item = single(options.method, "method")
    kind = registry.method_class(item.name)
    method = build(kind, backbone, kind.Config.parse({**item.settings, "chunk": options.length, "weights": "none"}))
    steps = options.steps * options.chunks // options.rows
    settings = TrainConfig(
        tokens=steps * options.rows * options.length,
        rows=options.rows,
        segment=options.length,
        lr=options.lr,
        schedule="constant",
        warmup=0.0,
        weight_decay=0.0,
        objective=options.objective,
        dtype=options.dtype,
    )
    torch.manual_seed(settings.seed)
    streams = Streams(fixed, range(options.chunks), options.rows, options.length, device=backbone.device)
    trainer = Trainer(method, streams, named_objective(settings.objective, method, fixed), settings)
    narrow = settings.dtype == "bfloat16"
    curve, of_steps = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(1, steps + 1):
        step = trainer.step()
        assert step.nats is not None
        of_steps.append({"step": number, "nats": round(step.nats, 4), "seconds": round(step.seconds, 1)})
        print(json.dumps(of_steps[-1]), flush=True)
        if number % options.every == 0 or number == steps:
            curve.append(_point(method, fixed, number, narrow=narrow))
            print(json.dumps(curve[-1]), flush=True)
    return {
        "backbone": backbone.name,
        "method": options.method,
        "parameters": method.added_parameters,
        "chunks": options.chunks,
        "length": options.length,
        "training": settings.as_dict(),
        "texts": [entry.name for entry in fixed.documents],
        "threads": torch.get_num_threads(),
        "steps": of_steps,
        "curve": curve,
    }


def _point(method: AnyMethod, corpus: Corpus, step: int, *, narrow: bool) -> dict[str, Any]:
    of_chunks = heard(method, corpus, narrow=narrow)
    own, other = ([round(pair[n], 4) for pair in of_chunks] for n in (0, 1))
    means = {"own": sum(own) / len(own), "other": sum(other) / len(other)}
    return {"step": step, **means, "own_of_chunks": own, "other_of_chunks": other}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--method", default=METHOD)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=4, help="chunks of one step")
    parser.add_argument("--steps", type=int, default=40, help="for every chunk")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--objective", default="reconstruction")
    parser.add_argument("--dtype", default="float32", help="of the products of linear layers in training")
    options = parser.parse_args()
    backbone = load(options.backbone, device="cpu", dtype="float32")
    print(json.dumps(capacity(backbone, prepare(options.corpus, backbone), options)))


if __name__ == "__main__":
    main()
