"""What kvpress's own pipeline keeps of a context, and how it goes on: made once, in an environment of its own.

    pip install kvpress==0.5.5
    python tests/methods/press/own_pipeline.py > tests/methods/press/own_pipeline.json

The environment is that of kvpress's requirements, and need not have this package.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

CONTEXT, QUESTION, WRITTEN = 96, (7, 11, 13), 12
BOS = 0
SETTINGS: dict[str, dict[str, Any]] = {
    "Knorm": {"name": "Knorm", "ratio": 0.4},
    "KeyDiff": {"name": "KeyDiff", "ratio": 0.5},
    "Random": {"name": "Random", "ratio": 0.3, "options": {"seed": 5}},
    "StreamingLLM": {"name": "StreamingLLM", "ratio": 0.6, "options": {"n_sink": 3}},
    "LagKV": {"name": "LagKV", "ratio": 0.35, "options": {"lag_size": 16}},
    "CUR": {"name": "CUR", "ratio": 0.5},
    "SnapKV": {"name": "SnapKV", "ratio": 0.5, "options": {"window_size": 12}},
    "SnapKV, all moved up": {"name": "SnapKV", "ratio": 0.5, "when": "window", "options": {"window_size": 12}},
    "TOVA": {"name": "TOVA", "ratio": 0.7},
    "ExpectedAttention": {"name": "ExpectedAttention", "ratio": 0.5},
    "Cap": {"name": "Cap", "ratio": 0.5},
    "NonCausalAttn": {"name": "NonCausalAttn", "ratio": 0.5, "options": {"chunk_size": 20}},
    "Block": {"name": "Block(KeyDiff)", "ratio": 0.5, "options": {"block_size": 10}},
    "CriticalKV": {"name": "CriticalKV(SnapKV)", "ratio": 0.5, "options": {"window_size": 12}},
    "EntropyGatedChunkKV": {"name": "EntropyGatedChunkKV(SnapKV)", "ratio": 0.5, "options": {"window_size": 12}},
}
"""By a name of its own, the settings of a press as `press` of this package takes them."""


def model() -> Any:
    """A small random Llama, whose weights are the same in all versions of transformers."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=BOS,
        eos_token_id=None,
        tie_word_embeddings=False,
    )
    llama: Any = LlamaForCausalLM(config).eval()
    random = torch.Generator().manual_seed(34)
    for _, weight in sorted(llama.named_parameters()):
        values = torch.randn(weight.shape, generator=random)
        weight.data.copy_(values * 0.3 if weight.dim() > 1 else 1 + values * 0.1)
    return llama


def context() -> list[int]:
    """Tokens of the context, BOS first; none comes twice, so that every value of every layer is another."""
    random = torch.Generator().manual_seed(3)
    return [BOS, *(1 + torch.randperm(255, generator=random)[: CONTEXT - 1]).tolist()]


def places(kept_KSD: Tensor, all_KSD: Tensor) -> list[list[int]]:
    """Which of all values those that were kept are, head by head and in order."""
    same = (kept_KSD[:, :, None] == all_KSD[:, None]).all(-1)
    assert bool((same.sum(-1) == 1).all())
    return [sorted(row) for row in same.int().argmax(-1).tolist()]


def tokenizer() -> Any:
    """Words are `w` and the number of a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    first = "<s>"
    words = Tokenizer(
        models.WordLevel({first: BOS, **{f"w{token}": token for token in range(1, 256)}}, unk_token=first)
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=first)


def press(settings: dict[str, Any]) -> Any:
    """The press of these settings."""
    import kvpress

    name, options = settings["name"].removesuffix(")"), dict(settings.get("options", {}))
    outer, _, inner = name.rpartition("(")
    around = {key: options.pop(key) for key in ("block_size",) if key in options}
    inner_press = getattr(kvpress, f"{inner}Press")(compression_ratio=settings["ratio"], **options)
    if outer:
        inner_press = getattr(kvpress, f"{outer}Press")(press=inner_press, **around)
    return kvpress.KeyRerotationPress(press=inner_press) if settings.get("when") == "window" else inner_press


def main() -> None:
    """Print what is kept and written."""
    from kvpress import KVPressTextGenerationPipeline

    llama = model()
    pipeline = KVPressTextGenerationPipeline(model=llama, tokenizer=tokenizer())
    text, question = ("".join(f" w{token}" for token in tokens) for tokens in (context()[1:], QUESTION))

    def run(chosen: Any) -> tuple[Any, list[int]]:
        cache = DynamicCache()
        answer = pipeline(text, question=question, press=chosen, cache=cache, max_new_tokens=WRITTEN)["answer"]
        return cache, [int(word[1:]) for word in answer.split()]

    whole, _ = run(None)
    results = {}
    for name, settings in SETTINGS.items():
        cache, written = run(press(settings))
        layers = zip(cache.layers, whole.layers, strict=True)
        kept = [places(layer.values[0], all_of.values[0]) for layer, all_of in layers]
        results[name] = {"kept": kept, "written": written}
    versions = {package: version(package) for package in ("kvpress", "transformers", "torch")}
    json.dump({"versions": versions, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
