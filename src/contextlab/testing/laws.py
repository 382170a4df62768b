"""The laws of the interface, checked on small random models: what every method must do, whatever it is.

Legend: B rows, T tokens, N candidates, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from contextlab import backbone as backbones
from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.memory import PeakMemory
from contextlab.accounting.products import ProductCounter
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod

FAMILIES = ("tiny-llama", "tiny-gpt2")
TOLERANCE = 1e-4
LENGTH = 300
SHORT = 140  # just past the first boundary of the small models' segments, short enough to be split everywhere
CANDIDATES = ([5, 6, 7, 8, 9], [5, 9], [11], [12, 13, 14, 15, 16, 17, 18])

Make = Callable[[Backbone], ContextMethod]
Law = Callable[[ContextMethod], None]


@dataclasses.dataclass(frozen=True)
class LawResult:
    """Whether one law holds for one family of models; `detail` says what went wrong where it does not."""

    law: str
    family: str
    passed: bool
    detail: str
    seconds: float


class Broken(Exception):
    """A law does not hold; the text says what was seen."""


def check(make: Make, families: tuple[str, ...] = FAMILIES) -> list[LawResult]:
    """All laws on a method, on one small random model of every family; the bitwise ones in bfloat16 too.

    Args:
        make: builds the method on a backbone; what it raises is reported as a broken law.
        families: names of backbones.
    """
    results = []
    for family in families:
        for dtype, laws in (("float32", tuple(LAWS)), ("bfloat16", BITWISE)):
            backbone = backbones.load(family, device="cpu", dtype=dtype)
            label = family if dtype == "float32" else f"{family} {dtype}"
            for name in laws:
                started = time.perf_counter()
                detail = _broken(LAWS[name], make, backbone)
                results.append(LawResult(name, label, detail is None, detail or "", time.perf_counter() - started))
    return results


def _broken(law: Law, make: Make, backbone: Backbone) -> str | None:
    try:
        law(make(backbone))
    except Broken as broken:
        return str(broken)
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:  # a third party's method may fail in any way; the check must go on
        return f"{type(error).__name__}: {error}"
    return None


def causality(method: ContextMethod) -> None:
    """Changing the tokens after t changes no log-probability at or before t."""
    cuts = sorted({1, 17, 63, 127, 128, 129, 200, LENGTH - 1})
    whole = _text(1).repeat(len(cuts), 1)
    changed = whole.clone()
    for row, cut in enumerate(cuts):
        changed[row, cut:] = (changed[row, cut:] + 1 + row) % _usable(method)
    before, after = (_read(method, text)[1] for text in (whole, changed))
    for row, cut in enumerate(cuts):
        _same(before[row, :cut], after[row, :cut], f"tokens from {cut} on changed an earlier log-probability")


def streaming(method: ContextMethod) -> None:
    """`read(ab)` equals `read(a)` then `read(b)`, at every split, scored or not; `score` continues a read text."""
    if not method.capabilities.exact_streaming:
        return
    text = _text(1)
    whole = _read(method, text)[1][0]
    _splits(method, text[0, :SHORT], whole[:SHORT], torch.arange(SHORT + 1))
    _splits(method, text[0], whole, torch.tensor([0, 1, 62, 200, 248, 255, 256, 257, LENGTH]))
    state = _read(method, text[:, :100])[0]
    tail = [text[0, 100:140].tolist(), text[0, 100:103].tolist()]
    scores = method.score(state, tail)
    _same(scores[0, 0], whole[100:140], "score differs from reading on")
    _same(scores[0, 1, :3], whole[100:103], "score of a shorter candidate differs from reading on")


def _splits(method: ContextMethod, text_T: Tensor, whole_T: Tensor, splits: Tensor) -> None:
    length = len(text_T)
    rest = torch.stack([text_T.roll(-int(split)) for split in splits])
    for scored in (True, False):
        before = text_T.repeat(len(splits), 1)
        state, first = method.read(method.start(len(splits)), before, splits, logprobs=scored)
        _, second = method.read(state, rest, length - splits)
        assert second is not None
        for row, split in enumerate(splits.tolist()):
            if first is not None:
                _same(first[row, :split], whole_T[:split], f"the part before split {split} differs")
            _same(second[row, : length - split], whole_T[split:], f"the part after split {split} differs ({scored=})")


def silent_reading(method: ContextMethod) -> None:
    """Reading without log-probabilities leaves a state with the same future, whatever it leaves out on the way."""
    text, future = _text(2), _text(2, seed=4)[:, :40]
    for begin, end in ((0, 128), (0, 256), (0, LENGTH), (100, 140), (100, LENGTH)):
        state = _read(method, text[:, :begin])[0]
        silent, nothing = method.read(state, text[:, begin:end], logprobs=False)
        if nothing is not None:
            raise Broken("log-probabilities were returned although none were wanted")
        spoken, _ = _read(method, text[:, begin:end], state)
        found, expected = (_read(method, future, after)[1] for after in (silent, spoken))
        _same(found, expected, f"tokens {begin} to {end} read in silence have another future")


def score_is_pure(method: ContextMethod) -> None:
    """`score` and `generate` leave the state bitwise as it was, and scoring equals reading a fork."""
    for length in (0, 1, 100, 125, 128):
        state = _read(method, _text(2)[:, :length])[0]
        before = {name: tensor.clone() for name, tensor in state.tensors().items()}
        scores = method.score(state, CANDIDATES)
        method.generate(state, [[3], [4, 5]], max_new_tokens=3)
        _unchanged(state, before)
        _same(
            scores, ContextMethod.score(method, state, CANDIDATES), f"score after {length} tokens differs from a fork"
        )
        for n, candidate in enumerate(CANDIDATES):
            if bool((scores[:, n, len(candidate) :] != 0).any()):
                raise Broken("log-probabilities behind a candidate's end are not 0")


def generate(method: ContextMethod) -> None:
    """Prompts behind a single row are continued as behind forks of it, and alone as beside others."""
    prompts = [[3, 5, 7, 9], [], [11], list(range(20, 60)), [4, 4]]
    for length in (0, 100, SHORT):
        state = _read(method, _text(1)[:, :length])[0]
        found = method.generate(state, prompts, max_new_tokens=6)
        if found != method.generate(state.fork(len(prompts)), prompts, max_new_tokens=6):
            raise Broken(f"prompts after {length} tokens are continued otherwise than behind forks")
        for prompt, written in zip(prompts, found, strict=True):
            stop = written[2:3]
            if method.generate(state, [prompt], max_new_tokens=6, stop=stop) != [written[: written.index(stop[0])]]:
                raise Broken(f"a prompt after {length} tokens is continued otherwise alone, or beyond its end")


def forks(method: ContextMethod) -> None:
    """Forks of a state go their own ways; indexing picks rows."""
    state = _read(method, _text(2)[:, :100])[0]
    texts = _text(6, seed=1)[:, :60]
    forked, _ = method.read(state.fork(3), texts)
    again = _read(method, _text(1, seed=2)[:, :5].repeat(6, 1), forked)[1]
    for row in range(6):
        alone, _ = method.read(state.index([row // 3]), texts[row : row + 1])
        _same(_read(method, _text(1, seed=2)[:, :5], alone)[1][0], again[row], f"fork {row} depends on the others")


def rows(method: ContextMethod) -> None:
    """Rows of a batch do not influence each other, whatever their lengths and whatever stands in the padding."""
    lengths = torch.tensor([LENGTH, 0, 1, 63, 128, 131, 257])
    text = _text(len(lengths))
    together = method.read(method.start(len(lengths)), text, lengths)
    other = text.masked_fill(torch.arange(LENGTH) >= lengths[:, None], 7)
    padded = method.read(method.start(len(lengths)), other, lengths)
    following = _text(len(lengths), seed=3)[:, :50]
    after = _read(method, following, together[0])[1]
    assert together[1] is not None
    assert padded[1] is not None
    _same(together[1], padded[1], "what stands in the padding matters")
    for row, length in enumerate(lengths.tolist()):
        state, alone = _read(method, text[row : row + 1, :length])
        _same(together[1][row, :length], alone[0], f"row {row} of length {length} depends on the others")
        if bool((together[1][row, length:] != 0).any()):
            raise Broken("log-probabilities at padding are not 0")
        _same(after[row], _read(method, following[row : row + 1], state)[1][0], f"row {row} goes on differently")


def normalised(method: ContextMethod) -> None:
    """The probabilities of all tokens sum to one, after any context."""
    everything = [[token] for token in range(method.backbone.vocab_size)]
    for length in (0, 1, 100, 128, 140):
        state = _read(method, _text(2)[:, :length])[0]
        scores_BV = method.score(state, everything)[..., 0]
        _same(
            scores_BV.double().logsumexp(-1), torch.zeros(2), f"probabilities after {length} tokens do not sum to one"
        )
        _same(scores_BV, method.next_logprobs(state), "next_logprobs differs from scoring every token")


def lengths(method: ContextMethod) -> None:
    """Texts of length 0, 1, 63, 100 and 1,000 give finite log-probabilities and are counted."""
    for length in (0, 1, 63, 100, 1000):
        text = torch.randint(0, _usable(method), (1, length), generator=torch.Generator().manual_seed(length))
        state, logprobs = _read(method, text)
        if logprobs.shape != (1, length) or not bool(logprobs.isfinite().all()) or bool((logprobs > 0).any()):
            raise Broken(f"{length} tokens give log-probabilities of shape {tuple(logprobs.shape)} or not finite")
        if state.length_B.tolist() != [length]:
            raise Broken(f"{length} tokens are counted as {state.length_B.tolist()}")


def saving(method: ContextMethod) -> None:
    """A state saved and loaded has bitwise the same future, and `nbytes` is what the saved tensors hold."""
    state = _read(method, _text(2)[:, :200])[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        state.save(path)
        held = sum(tensor.numel() * tensor.element_size() for tensor in load_file(path).values())
        loaded = method.load_state(path)
    if held != state.nbytes or loaded.nbytes != state.nbytes:
        raise Broken(f"the state says {state.nbytes} bytes, the file holds {held}")
    future = _text(2, seed=4)[:, :40]
    if not torch.equal(_read(method, future, state)[1], _read(method, future, loaded)[1]):
        raise Broken("a loaded state has another future")


def determinism(method: ContextMethod) -> None:
    """The same calls give bitwise the same numbers, and sampling with the same seed the same tokens."""
    text = _text(2)
    first, second = (_read(method, text) for _ in range(2))
    if not torch.equal(first[1], second[1]):
        raise Broken("reading the same text twice gives different log-probabilities")
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 1.0, "seed": 3}
    if method.generate(first[0], [[1], [2]], **options) != method.generate(second[0], [[1], [2]], **options):
        raise Broken("sampling with the same seed gives different tokens")


def counting(method: ContextMethod) -> None:
    """Calls that are counted, by their products or under the watch, give bitwise what they give uncounted."""
    text, prompts = _text(2)[:, :SHORT], [[3, 5, 7], []]
    state = _read(method, text)[0]
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: _read(method, text)[1],
        "read on": lambda: _read(method, text[:, :60], state)[1],
        "score": lambda: method.score(state, CANDIDATES),
        "generate": lambda: method.generate(state, prompts, max_new_tokens=3),
    }
    for name, call in calls.items():
        alone = call()
        for counter in (ProductCounter(), FlopCounter(), PeakMemory()):
            with counter:
                other = call()
            same = torch.equal(alone, other) if isinstance(alone, Tensor) else alone == other
            if not same:
                raise Broken(f"{name} gives other results under {type(counter).__name__}")


def backbone_is_untouched(method: ContextMethod) -> None:
    """After any call the backbone's weights and its attention setting are bitwise what they were."""
    model = method.backbone.model
    before = backbones.weights_digest(model), model.config._attn_implementation, model.training
    state = _read(method, _text(1))[0]
    method.score(state, CANDIDATES)
    method.generate(state, [[1, 2]], max_new_tokens=2)
    if (backbones.weights_digest(model), model.config._attn_implementation, model.training) != before:
        raise Broken("the backbone was changed")


def equals_baseline_without_memory(method: ContextMethod) -> None:
    """Where the paper says that an empty memory leaves another method, it does."""
    baseline = method.baseline()
    if baseline is not None:
        text = _text(2)
        _same(_read(method, text)[1], _read(baseline, text)[1], f"differs from {type(baseline).__name__}")


LAWS: dict[str, Law] = {
    "causality": causality,
    "streaming": streaming,
    "silent reading": silent_reading,
    "score is pure": score_is_pure,
    "generate": generate,
    "forks": forks,
    "rows": rows,
    "normalised": normalised,
    "lengths": lengths,
    "saving": saving,
    "determinism": determinism,
    "counting": counting,
    "backbone untouched": backbone_is_untouched,
    "equals its baseline": equals_baseline_without_memory,
}

BITWISE = ("saving", "determinism", "counting")
"""Laws that hold whatever the width of the numbers."""


def _usable(method: ContextMethod) -> int:
    return method.backbone.vocab_size - 1


def _text(count: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def _read(method: ContextMethod, text: Tensor, state: Any = None) -> tuple[Any, Tensor]:
    state, logprobs = method.read(state if state is not None else method.start(len(text)), text)
    assert logprobs is not None
    return state, logprobs


def _same(a: Tensor, b: Tensor, broken: str) -> None:
    if (a.numel() and (gap := float((a.double() - b.double()).abs().max())) > TOLERANCE) or bool(a.isnan().any()):
        raise Broken(f"{broken} (by {gap:.2g})")


def _unchanged(state: Any, before: dict[str, Tensor]) -> None:
    for name, tensor in state.tensors().items():
        if not torch.equal(tensor, before[name]):
            raise Broken(f"{name} of the state was changed")
