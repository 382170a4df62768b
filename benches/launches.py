"""Kernel launches of methods beside those of transformers, counted on a simulated GPU.

The model has the blocks and the heads of SmolLM2-135M, with random weights, and is narrower: how many kernels there are
depends on the number of layers alone. A block is 1,024 tokens that are read without log-probabilities after 3,072
others; a token is the most probable one, which waits for the device once.

    python benches/launches.py [--layers 30] [--methods full,sliding] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor

from contextlab import process
from contextlab.backbone import Backbone
from contextlab.backbone.toys import byte_tokenizer
from contextlab.method import AnyMethod
from contextlab.naming import NamedMethod
from contextlab.planning.shaped import built_in, named_on
from contextlab.tensors import dtype_named
from contextlab.testing.simulated_gpu import DeviceCounts, SimulatedGPU

WIDTH, VOCABULARY, MLP = 144, 257, 64
"""Sizes of the model, on which its launches do not depend."""
BLOCK, BEFORE, BEYOND, DECODED = 1024, 3072, 100, 2
"""Tokens of a block, before it, between it and those that are decoded, and decoded ones."""
PLAIN = "transformers"
WITH_GRADIENTS = "computes gradients while it reads"
UNCOUNTED = {
    "least-squares": "writes as many tokens as a chunk has after it, each in a pass of its own",
    "press": "keeps what a library beside this one chooses, row by row",
    "composed": "launches what both of its methods do",
    **dict.fromkeys(("bm25", "dense"), "searches on the host, and reads what was found anew"),
}
"""Methods whose block or token is no single pass."""

Read = Callable[[Tensor], None]
Choose = Callable[[], Tensor]


def backbone(layers: int, dtype: torch.dtype) -> Backbone:
    """Random weights, on the device of a simulation."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=MLP,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        bos_token_id=256,
        eos_token_id=256,
    )
    with process.seeded(0):
        model: Any = transformers.LlamaForCausalLM(config)
    return Backbone(model.to("cuda", dtype), byte_tokenizer(), "random weights", digest="")


def of_method(method: AnyMethod) -> tuple[Read, Choose]:
    """How a method reads tokens `(1, T)` silently, and chooses the next one."""
    state = method.start()

    def read(tokens_1T: Tensor) -> None:
        nonlocal state
        state, _ = method.read(state, tokens_1T, logprobs=False)

    return read, lambda: method.next_logprobs(state).argmax(-1, keepdim=True)


def of_transformers(model: Any) -> tuple[Read, Choose]:
    """The same of a model of transformers with a cache."""
    cache, last_1C = transformers.DynamicCache(config=model.config), torch.empty(0)

    def read(tokens_1T: Tensor) -> None:
        nonlocal last_1C
        output = model.base_model(input_ids=tokens_1T, past_key_values=cache, use_cache=True)
        last_1C = output.last_hidden_state[:, -1]

    return read, lambda: model.lm_head(last_1C).argmax(-1, keepdim=True)


@torch.no_grad()
def counted(gpu: SimulatedGPU, read: Read, choose: Choose) -> dict[str, DeviceCounts]:
    """What a block was, and the decoded tokens together."""
    random = torch.Generator().manual_seed(0)
    before_1T, block_1T, beyond_1T = (
        torch.randint(0, 256, (1, length), generator=random).to("cuda") for length in (BEFORE, BLOCK, BEYOND)
    )
    for part_1T in before_1T.split(BLOCK, dim=1):
        read(part_1T)
    block = gpu.counts = DeviceCounts()
    read(block_1T)
    gpu.counts = DeviceCounts()
    read(beyond_1T)
    chosen_11 = choose()
    decoded = gpu.counts = DeviceCounts()
    for _ in range(DECODED):
        chosen_11.tolist()
        read(chosen_11)
        chosen_11 = choose()
    return {"block": block, "token": decoded}


def per_unit(counts: DeviceCounts, units: int) -> dict[str, float]:
    """Counts of one of several equal units."""
    return {name: count / units for name, count in dataclasses.asdict(counts).items()}


def record(name: str, counts: dict[str, DeviceCounts]) -> dict[str, Any]:
    """One line of the result."""
    return {"method": name, "block": per_unit(counts["block"], 1), "token": per_unit(counts["token"], DECODED)}


def measured(named: NamedMethod, plain: dict[str, Any], layers: int, dtype: torch.dtype) -> dict[str, Any]:
    """One method, with its launches as multiples of those of transformers."""
    uncounted = {"method": named.label, "block": None, "token": None}
    if named.name in UNCOUNTED:
        return {**uncounted, "reason": UNCOUNTED[named.name]}
    with SimulatedGPU() as gpu:
        method = named.build(backbone(layers, dtype))
        if method.capabilities.needs_gradients:
            return {**uncounted, "reason": WITH_GRADIENTS}
        row = record(named.label, counted(gpu, *of_method(method)))
    for unit in ("block", "token"):
        row[unit]["times"] = row[unit]["launches"] / plain[unit]["launches"]
    return row


def measure(methods: str, layers: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Transformers, and the methods that a text lists."""
    with SimulatedGPU() as gpu:
        model = backbone(layers, dtype)
        plain = record(PLAIN, counted(gpu, *of_transformers(model.model)))
        listed = named_on(methods, model)
    rows = [plain]
    for named in listed:
        print(named.label, file=sys.stderr, flush=True)
        rows.append(measured(named, plain, layers, dtype))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--methods", default=",".join(built_in()))
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    rows = measure(arguments.methods, arguments.layers, dtype_named(arguments.dtype))
    print(json.dumps({"layers": arguments.layers, "dtype": arguments.dtype, "results": rows}))


if __name__ == "__main__":
    main()
