"""What the accounting costs: a small Llama reads 512 tokens 20 times, with and without the ledger."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaModel

from contextlab.accounting.ledger import Ledger, signature
from contextlab.accounting.memory import resident_bytes

READS = 20


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    config = LlamaConfig(
        vocab_size=1024, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4
    )
    model = LlamaModel(config)
    tokens = torch.randint(1024, (1, 512))
    ledger = Ledger("cpu", resident_bytes=resident_bytes(model))

    @torch.inference_mode()
    def forward() -> object:
        return model(tokens, use_cache=False)

    def entered() -> object:
        return ledger.call("query", forward, tokens=tokens.numel(), key=signature(tokens))

    forward()
    # Taken in turns, so that both see the same load of the machine.
    pairs = [(_timed(forward), _timed(entered)) for _ in range(READS)]
    plain, metered = (statistics.median(times) for times in zip(*pairs, strict=True))
    first = pairs[0][1]
    print(
        json.dumps(
            {
                "reads": READS,
                "plain_seconds": plain,
                "metered_seconds": metered,
                "median_ratio": metered / plain,
                "counted_first_seconds": first,
                "total_ratio": sum(pair[1] for pair in pairs) / sum(pair[0] for pair in pairs),
            }
        )
    )


if __name__ == "__main__":
    main()
