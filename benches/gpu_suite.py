"""All measurements that need a GPU, in one command: tests and speed of the kernels, and costs of the methods.

    python benches/gpu_suite.py --out DIR [--section tests,kernels,...] [--toy]

Every section writes one JSON file into DIR and is not run again while that file is there; `summary.md` is made of all
of them. Weights are random and of the papers' shapes, so nothing is fetched. `--toy` runs the same code on toy sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tables
import torch
import transformers
from torch import Tensor

from contextlab.accounting.memory import PeakMemory, resident_bytes
from contextlab.backbone import PAPER_SHAPES, PAPER_VOCABULARY, Backbone
from contextlab.cli.kernels import measured
from contextlab.harness.identity import hardware
from contextlab.method import AnyMethod, Lengths
from contextlab.methods.evalm import EVALM, PAPER, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.hso import HSO, HSOConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.longmem.newgpt import NewGPTConfig, NewGPTForCausalLM
from contextlab.methods.window import Window

TESTS = Path(__file__).parents[1] / "tests" / "kernels"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PUBLISHED = {4096: {"full": 14666, "longmem": 22638}, 8192: {"full": 8417, "longmem": 21343}}

QUESTION = 30

Section = Callable[[bool], dict[str, Any]]


def tests(toy: bool) -> dict[str, Any]:
    """The tests that need a GPU; a toy run only collects them."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(command + ["--collect-only"] * toy, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"The tests failed:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return {"collected_only": toy, "outcome": done.stdout.strip().splitlines()[-1]}


def kernels(toy: bool) -> dict[str, Any]:
    """`contextlab kernels bench`."""
    return measured([], DEVICE.type, "toy" if toy else DEVICE.type, repeats=2 if toy else 20)


def longmem(toy: bool) -> dict[str, Any]:
    """LongMem, Table 7: tokens per second and memory of a 1k window with a bank, beside full attention."""
    shape = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2} if toy else {}
    segment, rows, lengths = (16, 2, (64, 128)) if toy else (1024, 4, tuple(PUBLISHED))
    records = []
    for length in lengths:
        model = NewGPTForCausalLM(NewGPTConfig(max_position_embeddings=length, **shape))
        backbone = _on_device(model, "newgpt")
        config = LongMemConfig(N=segment, K=16 if toy else 64, init="paper")
        for name, method in (("full", Full(backbone)), ("longmem", LongMem(backbone, config))):
            tokens_BT = torch.randint(backbone.vocab_size, (rows, length), device=DEVICE)
            cost = _cost(functools.partial(_read, method, tokens_BT, segment), model, toy)
            published = PUBLISHED.get(length, {}).get(name)
            records.append(
                {
                    "method": name,
                    "context": length,
                    "rows": rows,
                    "tokens_per_second": tokens_BT.numel() / cost["seconds"],
                    "published_tokens_per_second": published,
                    **cost,
                }
            )
    return {"records": records}


def hso(toy: bool) -> dict[str, Any]:
    """HSO, Table 5: seconds per example of GPT-2 medium, with 2 and 8 demonstrations of about 25 tokens."""
    medium = transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16)
    small = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2)
    backbone = _on_device(transformers.GPT2LMHeadModel(small if toy else medium), "gpt2-medium")
    records = []
    for demonstrations, published in ((2, 0.4), (8, 1.0)):
        tokens_BT = torch.randint(backbone.vocab_size, (1, 25 * (demonstrations + 1)), device=DEVICE)
        for name, method in (("window", Window(backbone)), ("hso", HSO(backbone, HSOConfig(k=10, lr=0.01)))):
            cost = _cost(functools.partial(_read, method, tokens_BT, 10), backbone.model, toy)
            paper = published if name == "hso" else None
            records.append({"method": name, "n": demonstrations, "published_seconds": paper, **cost})
    return {"records": records}


def evalm(toy: bool) -> dict[str, Any]:
    """EVALM, figure 4: seconds and memory of encoding by length, read in pieces or as one sequence."""
    width, heads, layers = (32, 2, 2) if toy else PAPER_SHAPES["evalm-350m"]
    config = EVALMConfig(W=16, c=16, sinks=0, remote_bias=0.0) if toy else PAPER
    records = []
    for length in (64, 128) if toy else (8192, 32768):
        shape: dict[str, Any] = {
            "hidden_size": width,
            "word_embed_proj_dim": width,
            "ffn_dim": 4 * width,
            "num_hidden_layers": layers,
        }
        opt = transformers.OPTConfig(
            vocab_size=97 if toy else PAPER_VOCABULARY,
            num_attention_heads=heads,
            max_position_embeddings=length,
            **shape,
        )
        backbone = _on_device(transformers.OPTForCausalLM(opt), "evalm-350m")
        tokens_1T = torch.randint(backbone.vocab_size, (1, length), device=DEVICE)
        method = EVALM(backbone, config)
        runs = {
            "full, piece by piece": functools.partial(_read, Full(backbone), tokens_1T, 1024, logprobs=False),
            "evalm, piece by piece": functools.partial(_read, method, tokens_1T, length, logprobs=False),
            "full, as one": functools.partial(_forward, backbone, tokens_1T),
            "evalm, as one": functools.partial(_forward, backbone, tokens_1T, method),
        }
        for name, run in runs.items():
            cost = _cost(run, backbone.model, toy)
            records.append({"method": name, "context": length, "tokens_per_second": length / cost["seconds"], **cost})
    return {"records": records}


def generative_adapter(toy: bool) -> dict[str, Any]:
    """GenerativeAdapter with the shape of Mistral 7B: a context becomes weights, and a question after it."""
    small: dict[str, Any] = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    with DEVICE:
        model = transformers.MistralForCausalLM(
            transformers.MistralConfig(sliding_window=None, **(small if toy else {}))
        )
    backbone = _on_device(model, "mistral-7b")
    # The released code's normalisation.
    config = GenerativeAdapterConfig(normalisation="svd-lowrank", chunk=32 if toy else 1024)
    records = []
    for length in (32, 64) if toy else (1024, 4096):
        tokens_1T = torch.randint(backbone.vocab_size, (1, length), device=DEVICE)
        question = [torch.randint(backbone.vocab_size, (QUESTION,)).tolist()]
        methods: dict[str, AnyMethod] = {
            "full": Full(backbone),
            "generative_adapter": GenerativeAdapter(backbone, config),
        }
        for name, method in methods.items():
            start = method.start(ahead=Lengths(length, QUESTION))
            read = functools.partial(method.read, start, tokens_1T, logprobs=False)
            state, _ = read()
            phases: dict[str, Callable[[], object]] = {
                "contextualize": read,
                "query": functools.partial(method.score, state, question),
            }
            for phase, run in phases.items():
                record = {"method": name, "context": length, "phase": phase, "state_floats": state.floats}
                records.append({**record, **_cost(run, backbone.model, toy)})
    return {"records": records}


SECTIONS: dict[str, Section] = {
    "tests": tests,
    "kernels": kernels,
    "longmem": longmem,
    "evalm": evalm,
    "hso": hso,
    "generative_adapter": generative_adapter,
}


def run(out: Path, names: Iterable[str], toy: bool) -> None:
    """Run the sections that have no result yet, then write the summary."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        target = out / f"{name}.json"
        if target.is_file():
            print(f"{name}: there already, {target}", file=sys.stderr)
            continue
        started = time.perf_counter()
        result = SECTIONS[name](toy)
        report = {"section": name, "toy": toy, "took": time.perf_counter() - started, **_machine(), "result": result}
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        partial.replace(target)
        print(f"{name}: {report['took']:.0f} s", file=sys.stderr)
    (out / "summary.md").write_text(summary(out))


def summary(out: Path) -> str:
    """The stored sections as Markdown."""
    parts = ["# Measured by benches/gpu_suite.py"]
    for name in SECTIONS:
        path = out / f"{name}.json"
        if not path.is_file():
            continue
        report = json.loads(path.read_text())
        result = report["result"]
        note = " **Toy sizes: no measurement.**" if report["toy"] else ""
        parts.append(f"## {name}\n\n{report['hardware']}, torch {report['torch']}, {report['took']:.0f} s.{note}")
        measured = result.get("results") or result.get("records")
        if "ceilings" in result:
            parts.append(", ".join(f"{key} {value:.4g}" for key, value in result["ceilings"].items()))
        parts.append(tables.records(measured) if measured else str(result["outcome"]))
    return "\n\n".join(parts) + "\n"


def _machine() -> dict[str, str]:
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return {"hardware": hardware(DEVICE), "python": platform.python_version(), **versions}


def _on_device(model: Any, name: str) -> Backbone:
    width = torch.float16 if DEVICE.type == "cuda" else torch.float32
    return Backbone(model.to(DEVICE, width).eval(), None, name)


def _read(method: AnyMethod, tokens_BT: Tensor, piece: int, *, logprobs: bool = True) -> None:
    state = method.start(len(tokens_BT))
    for part_Bt in tokens_BT.split(piece, dim=1):
        state, _ = method.read(state, part_Bt, logprobs=logprobs)


@torch.no_grad()
def _forward(backbone: Backbone, tokens_BT: Tensor, method: EVALM | None = None) -> None:
    """A whole sequence without the vocabulary projection, with the model's own attention or the method's."""
    with method.as_attention() if method else contextlib.nullcontext():
        backbone.model.base_model(tokens_BT, use_cache=False)


def _cost(read: Callable[[], object], model: torch.nn.Module, toy: bool) -> dict[str, float]:
    """Median seconds after a warm-up, their spread, and peak memory including weights."""
    with PeakMemory(DEVICE, resident_bytes(model)) as peak:
        read()
    times = []
    for _ in range(1 if toy else 3):
        _wait()
        started = time.perf_counter()
        read()
        _wait()
        times.append(time.perf_counter() - started)
    return {
        "seconds": statistics.median(times),
        "fastest": min(times),
        "slowest": max(times),
        "peak_bytes": peak.peak_bytes,
    }


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--section", default=",".join(SECTIONS), help="names, separated by commas")
    parser.add_argument("--toy", action="store_true")
    options = parser.parse_args()
    names = options.section.split(",")
    for name in names:
        if name not in SECTIONS:
            parser.error(f"there is no section '{name}': choose from {', '.join(SECTIONS)}")
    if DEVICE.type != "cuda" and not options.toy:
        parser.error("there is no GPU that torch can use here: add --toy to try the code out")
    torch.manual_seed(0)
    run(options.out, names, options.toy)
    print(options.out / "summary.md")


if __name__ == "__main__":
    main()
