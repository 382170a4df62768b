"""Which backbones every method runs on, and which are refused for which reason, on small random models.

Prints one JSON line. Of every backbone: the largest difference between the log-probabilities of `full` and the model's
own, and whether the FLOPs of `full` by formula are those that were counted. Of every method and backbone: whether some
laws of the interface hold (`contextlab check` has all of them, on two families).

    python benches/backbones.py [--backbones tiny-qwen3,tiny-phi3] [--methods full,sliding]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from contextlab import backbone as backbones
from contextlab import grammar, naming, registry
from contextlab.accounting.products import ProductCounter
from contextlab.backbone import REFUSED, TINY, Backbone
from contextlab.errors import UserError
from contextlab.formula import Row
from contextlab.methods.full import Full
from contextlab.testing.laws import Case

LAWS = ("causality", "rows", "score is pure", "formula")
FAMILIES = {
    "tiny-llama": "Llama 1 and 2",
    "tiny-llama-linear": "Llama, rotary positions stretched linearly",
    "tiny-llama-llama3": "Llama 3",
    "tiny-llama-yarn": "Llama, YaRN",
    "tiny-llama-dynamic": "Llama, dynamic NTK",
    "tiny-mistral": "Mistral with its sliding window",
    "tiny-qwen2": "Qwen 2",
    "tiny-qwen3": "Qwen 3",
    "tiny-phi3": "Phi 3 and 4; rotary positions in three quarters of a head, as Phi-4-mini has",
    "tiny-phi3-longrope": "Phi 3 with 128k positions",
    "tiny-olmo2": "OLMo 2",
    "tiny-gpt2": "GPT-2",
    "tiny-opt": "OPT",
    "tiny-gpt-neox": "GPT-NeoX (Pythia)",
    "tiny-gemma2": "Gemma 2",
    "tiny-gemma3": "Gemma 3",
    "tiny-falcon": "Falcon",
    "tiny-gpt-oss": "gpt-oss",
}
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("generative-adapter", "tiny-gpt-neox"): {"modules": "*attention.dense"},
}
"""What a method needs on a backbone whose layers have other names."""
SHORTER: dict[str, dict[str, Any]] = {"least-squares": {"study_tokens": 4}, "dense": {"stride": 64}}
"""Settings of methods that take minutes as they are, in all families; they do not matter to the laws."""


def carried(name: str) -> dict[str, Any]:
    """A backbone that works: how near `full` is to it, and whether its formula is exact."""
    backbone = backbones.load(name, device="cpu")
    tokens_BT = torch.arange(backbone.max_positions)[None] * 7 % 256
    method = Full(backbone)
    read_BT = method.read(method.start(), tokens_BT)[1]
    assert read_BT is not None
    with ProductCounter() as counter:
        method.read(method.start(), tokens_BT)
    formula = method.formula()
    expected = None if formula is None else formula.read([Row(0, tokens_BT.shape[1])], logprobs=True)
    with torch.no_grad():
        own_BTV = backbone.model(tokens_BT, use_cache=False).logits.log_softmax(-1)
    own_BT = own_BTV[:, :-1].gather(-1, tokens_BT[:, 1:, None])[..., 0]
    return {
        "backbone": f"`{name}`",
        "family": FAMILIES[name],
        "positions": positions(backbone),
        "difference": float((read_BT[:, 1:] - own_BT).abs().max()),
        "formula": {None: "none", counter.flops: "equal"}.get(expected, f"{expected} against {counter.flops}"),
    }


def positions(backbone: Backbone) -> str:
    """How a backbone encodes them."""
    if backbone.learned_positions:
        return "learned"
    return f"rotary, {backbone.model.base_model.rotary_emb.rope_type}"


def reason(name: str) -> str:
    """Why a backbone is refused."""
    try:
        backbones.load(name, device="cpu")
    except UserError as error:
        return str(error)
    return "works"


def outcome(method: str, name: str) -> str:
    """Whether the laws hold for a method on a backbone."""
    settings = SETTINGS.get((method, name), {})
    named = naming.single(method, {**SHORTER.get(method, {}), **settings}).as_initialised()
    for law in LAWS:
        broken = Case(law, name, "float32").broken(lambda backbone: named.kind(backbone, named.config))
        if broken is not None:
            return broken if broken.startswith("refused") else f"{law} fails: {broken}"
    return f"with `{grammar.spelled_method(method, settings)}`" if settings else "works"


def rows(methods: list[str], names: list[str]) -> Iterator[dict[str, str]]:
    """The outcomes of every method."""
    for method in methods:
        print(method, file=sys.stderr, flush=True)
        yield {"method": f"`{method}`", **{name.removeprefix("tiny-"): outcome(method, name) for name in names}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backbones", default=",".join(name for name in FAMILIES if name in TINY))
    parser.add_argument("--methods", default=",".join(registry.methods()))
    options = parser.parse_args()
    names = options.backbones.split(",")
    result = {
        "bench": "backbones",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "laws": ", ".join(LAWS),
        "backbones": [carried(name) for name in names],
        "refused": [{"refused": f"`{name}`", "family": FAMILIES[name], "reason": reason(name)} for name in REFUSED],
        "methods": list(rows(options.methods.split(","), names)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
