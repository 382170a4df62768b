"""Time of one step of training, beside a plain loop of peft and transformers over the same tokens.

Both sides learn a low-rank update of the attention projections from one text, with AdamW and clipping, and alternate in
one process, so that a ratio is of two neighbouring steps. With `--dtype bfloat16` the plain side has torch's autocast
around the whole model; ours computes the linear layers in bfloat16 and everything else in float32.

The last line is JSON: per length the medians and quartiles of seconds per step and of the ratio.

    python benches/learning.py [--tokens 1024,4096] [--dtype float32] [--repeats 5] [--method 'full(rank=16)']
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from timing import spread

import contextlab
from contextlab import naming
from contextlab.benchmarks.data.sample import documents
from contextlab.harness.identity import hardware
from contextlab.training.corpus import Corpus, prepare
from contextlab.training.loop import Trainer
from contextlab.training.options import TrainConfig
from contextlab.training.registry import named_objective
from contextlab.training.streams import Streams

CLIP, RATE, RANK = 1.0, 1e-4, 16
Step = Callable[[], float]
"""One step, and the seconds it took."""


def ours(name: str, corpus: Corpus, backbone: Any, tokens: int, dtype: str) -> Step:
    """A step of the package's loop, without the counter of FLOPs, under which some steps run a second time."""
    method = naming.single(name).build(backbone)
    settings = TrainConfig.parse(
        {"tokens": 10**6, "rows": 1, "segment": tokens, "lr": RATE, "clip": CLIP, "dtype": dtype}, "train"
    )
    streams = Streams(corpus, corpus.training, 1, tokens, 0, shuffled=True, sequence=tokens)
    trainer = Trainer(method, streams, named_objective("lm", method, corpus), settings)
    return lambda: trainer.step().seconds


def plain(corpus: Corpus, backbone: Any, tokens: int, dtype: str) -> Step:
    """A step of a loop that peft's documentation would lead to."""
    adapted = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = get_peft_model(copy.deepcopy(backbone.model), adapted).train()
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(learned, lr=RATE)
    streams = Streams(corpus, corpus.training, 1, tokens, 0, shuffled=True, sequence=tokens)

    def step() -> float:
        started = time.perf_counter()
        tokens_1T = streams.next().tokens_BT
        with torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else nullcontext():
            loss = model(input_ids=tokens_1T, labels=tokens_1T, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, CLIP)
        optimiser.step()
        optimiser.zero_grad()
        return time.perf_counter() - started

    return step


def compared(arguments: argparse.Namespace, corpus: Corpus, backbone: Any, tokens: int) -> dict[str, Any]:
    """Seconds of both sides, and their ratio, for texts of one length."""
    sides = (
        ours(arguments.method, corpus, backbone, tokens, arguments.dtype),
        plain(corpus, backbone, tokens, arguments.dtype),
    )
    for step in sides:
        step()
    pairs = [[step() for step in sides] for _ in range(arguments.repeats)]
    own, other = zip(*pairs, strict=True)
    ratios = [first / second for first, second in pairs]
    return {"tokens": tokens, "seconds": spread(own), "plain_seconds": spread(other), "ratio": spread(ratios)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default=f"full(rank={RANK})")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--tokens", default="1024,4096")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    backbone = contextlab.load("full", arguments.backbone).backbone
    with tempfile.TemporaryDirectory() as folder:
        texts = [document.text for document in documents(words=12_000, n=6, seed=0)]
        (Path(folder) / "texts.txt").write_text("\f\n".join(texts), "utf-8")
        corpus = prepare(folder, backbone)
        lengths = [int(tokens) for tokens in arguments.tokens.split(",")]
        rows = [compared(arguments, corpus, backbone, tokens) for tokens in lengths]
    about = {"method": arguments.method, "dtype": arguments.dtype, "threads": torch.get_num_threads()}
    print(json.dumps({**about, "hardware": hardware(backbone.device), "lengths": rows}))


if __name__ == "__main__":
    main()
