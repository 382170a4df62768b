"""How far narrow numbers lead from exact ones, by quarter of a text: does an error grow while a method reads?

A random model of 6 layers reads random tokens in float64, and with the same weights in narrower types. What a method
learns is moved by random numbers, so that memories that start without any effect have one. The measure is the mean
absolute difference of log-probabilities. Where a method chooses what it attends to, an error may also change
the choice: `--method 'retrieval(K=...)'` with all tokens of the bank has no choice.

The last line is JSON: per method and type the mean and the largest difference of every quarter.

    python benches/precision.py [--tokens 8192] [--method full,retrieval] [--dtype bfloat16,float16]
"""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from contextlab import grammar, naming
from contextlab.backbone import Backbone
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod
from contextlab.tensors import dtype_named

METHODS = (
    "full,window,sliding,sinks,snapkv,h2o,retrieval,retrieval(K=4096),longmem,evalm(remote_bias=-2),memtrm,trime,ultragist,"
    "generative-adapter"
)
MOVED = 0.1
"""Standard deviation of what is added to learned parameters."""
VOCABULARY = 512
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "initializer_range": 0.08,
}


def built(model: Any, dtype: torch.dtype, method: str) -> AnyMethod:
    """A method on a model in a type."""
    backbone = Backbone(copy.deepcopy(model).to(dtype), None, "random", digest=f"random, {dtype}")
    return naming.single(method).build(backbone)


@torch.no_grad()
def move_alike(wide: AnyMethod, narrow: AnyMethod, dtype: torch.dtype) -> None:
    """Move what both have learned to equal numbers that a type can hold."""
    if wide.learned is None or narrow.learned is None:
        return
    random = torch.Generator().manual_seed(1)
    for exact, rounded in zip(wide.learned.parameters(), narrow.learned.parameters(), strict=True):
        moved = (exact + MOVED * torch.randn(exact.shape, generator=random, dtype=torch.float64)).to(dtype)
        exact.copy_(moved)
        rounded.copy_(moved)


def logprobs(method: AnyMethod, tokens_1T: Tensor) -> Tensor:
    """Log-probabilities of a text."""
    _, logprobs_1T = method.read(method.start(), tokens_1T)
    assert logprobs_1T is not None
    return logprobs_1T[0].double()


def quarters(method: str, names: list[str], tokens: int) -> list[dict[str, Any]]:
    """Differences to float64, for every type."""
    torch.manual_seed(0)
    exact: Any = LlamaForCausalLM(LlamaConfig(**SIZES))
    tokens_1T = torch.randint(0, VOCABULARY, (1, tokens))
    rows = []
    for name in names:
        # Both sides have the weights that the narrow type can hold.
        model = copy.deepcopy(exact).to(dtype_named(name))
        exact_side, narrow_side = (built(model, dtype, method) for dtype in (torch.float64, dtype_named(name)))
        move_alike(exact_side, narrow_side, dtype_named(name))
        wide, narrow = (logprobs(side, tokens_1T) for side in (exact_side, narrow_side))
        parts = (narrow - wide).abs().chunk(4)
        means, largest = ([float(measure(part)) for part in parts] for measure in (torch.mean, torch.amax))
        rows.append({"method": method, "dtype": name, "mean": means, "largest": largest, "growth": means[3] / means[0]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--method", default=METHODS)
    parser.add_argument("--dtype", default="float32,bfloat16,float16")
    options = parser.parse_args()
    names = options.dtype.split(",")
    methods = [grammar.spelled(item.name, None, item.settings) for item in grammar.items(options.method, "method")]
    rows = [row for method in methods for row in quarters(method, names, options.tokens)]
    device = hardware(torch.device("cpu"))
    print(json.dumps({"bench": "precision", "device": device, "tokens": options.tokens, **SIZES, "rows": rows}))


if __name__ == "__main__":
    main()
