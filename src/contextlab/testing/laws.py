"""The laws of the interface, which hold for every method, checked on small random models.

Legend: B rows, T tokens, N candidates, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
from contextlab.formula import Row
from contextlab.method import AnyMethod, ContextMethod
from contextlab.testing import learning
from contextlab.testing.parts import LENGTH, SHORT, Broken, read, same, texts_for, unchanged, usable
from contextlab.testing.threads import threads

FAMILIES = ("tiny-llama", "tiny-gpt2")
EXACT = ("tiny-gpt2", "tiny-opt")
"""Families that compute everything in float64; the norms of Llama are always float32."""
SILENT = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 139, SHORT)
APART = 0.02
"""The largest difference between what was counted and what a formula says."""
CANDIDATES = ([5, 6, 7, 8, 9], [5, 9], [11], [12, 13, 14, 15, 16, 17, 18])

Make = Callable[[Backbone], AnyMethod]
Law = Callable[[AnyMethod], None]


@dataclasses.dataclass(frozen=True)
class LawResult:
    """Whether one law holds for one family of models; `detail` describes the failure where it does not."""

    law: str
    family: str
    passed: bool
    detail: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Case:
    """One law on one small random model.

    Attributes:
        law: name of the law.
        family: name of the backbone.
        dtype: type of the backbone.
        device: where the backbone computes.
    """

    law: str
    family: str
    dtype: str
    device: str = "cpu"

    @property
    def label(self) -> str:
        """The family, and the type where it is not float32."""
        return self.family if self.dtype == "float32" else f"{self.family} {self.dtype}"

    def broken(self, make: Make) -> str | None:
        """The failure in one sentence; None where the law holds.

        Args:
            make: builds the method on a backbone; an exception counts as a broken law.

        Raises:
            UserError: when the backbone cannot be loaded.
        """
        law = LAWS[self.law] if self.law in LAWS else learning.LAWS[self.law]
        backbone = backbones.load(self.family, device=self.device, dtype=self.dtype)
        try:
            method = make(backbone)
            if self.dtype == "float32" and method.capabilities.few_bits:
                # An error of rounding between two codes would become a whole step.
                method = make(backbones.load(self.family, device=self.device, dtype="float64"))
            law(method)
        except Broken as broken:
            return str(broken)
        except UserError as error:
            return f"refused: {error}"
        except Exception as error:  # a third party's method may raise anything; the other laws must still be checked
            return f"{type(error).__name__}: {error}"
        return None


def cases(families: tuple[str, ...] = FAMILIES, device: str = "cpu") -> Iterator[Case]:
    """All laws in every family, in float32, or float64 where a state is in few bits; the bitwise ones also in bfloat16,
    those of learning in float64.

    Args:
        families: names of backbones.
        device: where they compute.
    """
    for family in families:
        for dtype, names in (("float32", tuple(LAWS)), ("bfloat16", BITWISE)):
            yield from (Case(name, family, dtype, device) for name in names)
    for family in (family for family in families if family in EXACT):
        yield from (Case(name, family, "float64", device) for name in learning.LAWS)


def check(make: Make, families: tuple[str, ...] = FAMILIES) -> list[LawResult]:
    """All laws on a method, on one small random model of every family.

    Args:
        make: builds the method on a backbone; an exception is reported as a broken law.
        families: names of backbones.
    """
    results = []
    for case in cases(families):
        started = time.perf_counter()
        detail = case.broken(make)
        seconds = time.perf_counter() - started
        results.append(LawResult(case.law, case.label, detail is None, detail or "", seconds))
    return results


def causality(method: AnyMethod) -> None:
    """Changing the tokens after t does not change log-probabilities at or before t."""
    cuts = sorted({1, 17, 63, 127, 128, 129, 200, LENGTH - 1})
    whole = texts_for(method, 1).repeat(len(cuts), 1)
    changed = whole.clone()
    for row, cut in enumerate(cuts):
        changed[row, cut:] = (changed[row, cut:] + 1 + row) % usable(method)
    before, after = (read(method, text)[1] for text in (whole, changed))
    for row, cut in enumerate(cuts):
        same(before[row, :cut], after[row, :cut], f"tokens from {cut} on changed an earlier log-probability")


def streaming(method: AnyMethod) -> None:
    """Reading a text in two calls, or reading and scoring it, equals reading it in one call, at every split.

    Where the first part is read without log-probabilities, splits at and beside powers of two have to do: that its
    state predicts the same is a separate law.
    """
    if not method.capabilities.exact_streaming:
        return
    text = texts_for(method, 1)
    whole = read(method, text)[1][0]
    _splits(method, text[0, :SHORT], whole[:SHORT], range(SHORT + 1), scored=True)
    _splits(method, text[0, :SHORT], whole[:SHORT], SILENT, scored=False)
    for scored in (True, False):
        _splits(method, text[0], whole, (0, 1, 62, 200, 248, 255, 256, 257, LENGTH), scored=scored)
    state = read(method, text[:, :100])[0]
    tail = [text[0, 100:140].tolist(), text[0, 100:103].tolist()]
    scores = method.score(state, tail)
    same(scores[0, 0], whole[100:140], "score differs from read")
    same(scores[0, 1, :3], whole[100:103], "score of a shorter candidate differs from read")


def _splits(method: AnyMethod, text_T: Tensor, whole_T: Tensor, splits: Sequence[int], *, scored: bool) -> None:
    length, splits_B = len(text_T), torch.tensor(splits)
    rest = torch.stack([text_T.roll(-split) for split in splits])
    before = text_T.repeat(len(splits), 1)
    state, first = method.read(method.start(len(splits)), before, splits_B, logprobs=scored)
    _, second = method.read(state, rest, length - splits_B)
    assert second is not None
    for row, split in enumerate(splits):
        if first is not None:
            same(first[row, :split], whole_T[:split], f"the part before split {split} differs")
        same(second[row, : length - split], whole_T[split:], f"the part after split {split} differs ({scored=})")


def silent_reading(method: AnyMethod) -> None:
    """Reading without log-probabilities leaves a state that predicts the same."""
    text, future = texts_for(method, 2), texts_for(method, 2, seed=4)[:, :40]
    for begin, end in ((0, 128), (0, 256), (0, LENGTH), (100, 140), (100, LENGTH)):
        state = read(method, text[:, :begin])[0]
        silent, nothing = method.read(state, text[:, begin:end], logprobs=False)
        if nothing is not None:
            raise Broken("log-probabilities were returned although none were wanted")
        spoken, _ = read(method, text[:, begin:end], state)
        result, expected = (read(method, future, after)[1] for after in (silent, spoken))
        same(result, expected, f"tokens {begin} to {end} read without log-probabilities predict otherwise")


def score_is_pure(method: AnyMethod) -> None:
    """`score` and `generate` leave the state bitwise as it was, and scoring equals reading a fork."""
    for length in (0, 1, 100, 125, 128):
        state = read(method, texts_for(method, 2)[:, :length])[0]
        before = {name: tensor.clone() for name, tensor in state.tensors().items()}
        scores = method.score(state, CANDIDATES)
        method.generate(state, [[3], [4, 5]], max_new_tokens=3)
        unchanged(state, before)
        same(scores, ContextMethod.score(method, state, CANDIDATES), f"score after {length} tokens differs from a fork")
        for n, candidate in enumerate(CANDIDATES):
            if bool((scores[:, n, len(candidate) :] != 0).any()):
                raise Broken("log-probabilities after a candidate's end are not 0")


def generate(method: AnyMethod) -> None:
    """Prompts after one row are continued as after forks of it, and alone as beside other prompts."""
    prompts = [[3, 5, 7, 9], [], [11], list(range(20, 60)), [4, 4]]
    for length in (0, 100, SHORT):
        state = read(method, texts_for(method, 1)[:, :length])[0]
        continuations = method.generate(state, prompts, max_new_tokens=6)
        if continuations != method.generate(state.fork(len(prompts)), prompts, max_new_tokens=6):
            raise Broken(f"prompts after {length} tokens are continued differently after forks")
        for prompt, written in zip(prompts, continuations, strict=True):
            stop = written[2:3]
            if method.generate(state, [prompt], max_new_tokens=6, stop=stop) != [written[: written.index(stop[0])]]:
                raise Broken(f"a prompt after {length} tokens is continued differently alone, or not stopped")


def forks(method: AnyMethod) -> None:
    """Forks of a state do not influence each other; indexing selects rows."""
    state = read(method, texts_for(method, 2)[:, :100])[0]
    text = texts_for(method, 6, seed=1)[:, :60]
    forked, _ = method.read(state.fork(3), text)
    again = read(method, texts_for(method, 1, seed=2)[:, :5].repeat(6, 1), forked)[1]
    for row in range(6):
        alone, _ = method.read(state.index([row // 3]), text[row : row + 1])
        same(
            read(method, texts_for(method, 1, seed=2)[:, :5], alone)[1][0],
            again[row],
            f"fork {row} depends on the others",
        )


def rows(method: AnyMethod) -> None:
    """Rows of a batch do not influence each other, for any lengths and any padding, and each holds its own bytes."""
    lengths = torch.tensor([LENGTH, 0, 1, 63, 128, 131, 257])
    text = texts_for(method, len(lengths))
    together = method.read(method.start(len(lengths)), text, lengths)
    padding_BT = (torch.arange(LENGTH) >= lengths[:, None]).to(text.device)
    other = text.masked_fill(padding_BT, 7)
    padded = method.read(method.start(len(lengths)), other, lengths)
    following = texts_for(method, len(lengths), seed=3)[:, :50]
    after = read(method, following, together[0])[1]
    candidates = [CANDIDATES[: 1 + row % 2] for row in range(len(lengths))]
    scores = method.score_rows(together[0], candidates)
    assert together[1] is not None
    assert padded[1] is not None
    same(together[1], padded[1], "padding changes log-probabilities")
    for row, length in enumerate(lengths.tolist()):
        state, alone = read(method, text[row : row + 1, :length])
        same(together[1][row, :length], alone[0], f"row {row} of length {length} depends on the others")
        if bool((together[1][row, length:] != 0).any()):
            raise Broken("log-probabilities at padding are not 0")
        same(after[row], read(method, following[row : row + 1], state)[1][0], f"row {row} continues differently")
        if (held := together[0].row(row).nbytes) != state.nbytes:
            raise Broken(f"row {row} holds {held} bytes together with others and {state.nbytes} alone")
        own = method.score(state, candidates[row])[0]
        same(scores[row, : len(own), : own.shape[1]], own, f"row {row} scores its candidates differently")


def normalised(method: AnyMethod) -> None:
    """The probabilities of all tokens sum to one, after any context."""
    everything = [[token] for token in range(method.backbone.vocab_size)]
    for length in (0, 1, 100, 128, 140):
        state = read(method, texts_for(method, 2)[:, :length])[0]
        scores_BV = method.score(state, everything)[..., 0]
        total_B = scores_BV.double().logsumexp(-1)
        same(total_B, torch.zeros_like(total_B), f"probabilities after {length} tokens do not sum to one")
        same(scores_BV, method.next_logprobs(state), "next_logprobs differs from scoring every token")


def lengths(method: AnyMethod) -> None:
    """Texts of length 0, 1, 63, 100 and 1,000 give finite log-probabilities and are counted."""
    for length in (0, 1, 63, 100, 1000):
        random = torch.Generator().manual_seed(length)
        text = torch.randint(0, usable(method), (1, length), generator=random).to(method.backbone.device)
        state, logprobs = read(method, text)
        if logprobs.shape != (1, length) or not bool(logprobs.isfinite().all()) or bool((logprobs > 0).any()):
            raise Broken(f"{length} tokens give log-probabilities of shape {tuple(logprobs.shape)} or not finite")
        if state.length_B.tolist() != [length]:
            raise Broken(f"{length} tokens are counted as {state.length_B.tolist()}")


def saving(method: AnyMethod) -> None:
    """A state that is saved and loaded predicts bitwise the same, and `nbytes` is the size of its tensors."""
    state = read(method, texts_for(method, 2)[:, :200])[0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.safetensors"
        state.save(path)
        file_bytes = sum(tensor.numel() * tensor.element_size() for tensor in load_file(path).values())
        loaded = method.load_state(path)
    if file_bytes != state.nbytes or loaded.nbytes != state.nbytes:
        raise Broken(f"the state has {state.nbytes} bytes by nbytes and {file_bytes} in its file")
    future = texts_for(method, 2, seed=4)[:, :40]
    if not torch.equal(read(method, future, state)[1], read(method, future, loaded)[1]):
        raise Broken("a loaded state predicts otherwise")


def determinism(method: AnyMethod) -> None:
    """The same calls give bitwise the same numbers, and sampling with the same seed the same tokens."""
    text = texts_for(method, 2)
    first, second = (read(method, text) for _ in range(2))
    if not torch.equal(first[1], second[1]):
        raise Broken("reading the same text twice gives different log-probabilities")
    options: dict[str, Any] = {"max_new_tokens": 5, "temperature": 1.0, "seed": 3}
    if method.generate(first[0], [[1], [2]], **options) != method.generate(second[0], [[1], [2]], **options):
        raise Broken("sampling with the same seed gives different tokens")


def counting(method: AnyMethod) -> None:
    """Calls have bitwise the same results when products are counted, calls watched and memory measured."""
    text, prompts = texts_for(method, 2)[:, :SHORT], [[3, 5, 7], []]
    state = read(method, text)[0]
    calls: dict[str, Callable[[], Any]] = {
        "read": lambda: read(method, text)[1],
        "read on": lambda: read(method, text[:, :60], state)[1],
        "score": lambda: method.score(state, CANDIDATES),
        "generate": lambda: method.generate(state, prompts, max_new_tokens=3),
    }
    for name, call in calls.items():
        alone = call()
        with ProductCounter(), FlopCounter(), PeakMemory():
            counted = call()
        equal = torch.equal(alone, counted) if isinstance(alone, Tensor) else alone == counted
        if not equal:
            raise Broken(f"{name} gives other results when it is counted")


def restart(method: AnyMethod) -> None:
    """Restarted rows continue as from an empty state, and the other rows as before."""
    new_B = torch.tensor([True, False, True, False])
    text, following = texts_for(method, 4), texts_for(method, 4, seed=3)[:, :200]
    for lengths in ([200, 60, 128, 7], [LENGTH] * 4):
        state, _ = method.read(method.start(4), text, torch.tensor(lengths))
        after, future = read(method, following, method.restart(state, new_B))
        if after.length_B.tolist() != [200 + length * (not new) for length, new in zip(lengths, new_B, strict=True)]:
            raise Broken(f"tokens of restarted rows are counted as {after.length_B.tolist()}")
        same(future[~new_B], read(method, following, state)[1][~new_B], "a row beside a restarted one differs")
        same(future[new_B], read(method, following[new_B])[1], "a restarted row differs from a new row")


def backbone_is_untouched(method: AnyMethod) -> None:
    """No call changes the backbone's weights or its attention implementation."""
    model = method.backbone.model
    before = backbones.weights_digest(model), model.config._attn_implementation, model.training
    state = read(method, texts_for(method, 1))[0]
    method.score(state, CANDIDATES)
    method.generate(state, [[1, 2]], max_new_tokens=2)
    if (backbones.weights_digest(model), model.config._attn_implementation, model.training) != before:
        raise Broken("the backbone was changed")


def equals_baseline_without_memory(method: AnyMethod) -> None:
    """With an empty memory the method equals the baseline that its paper names."""
    baseline = method.baseline()
    if baseline is not None:
        text = texts_for(method, 2)
        same(read(method, text)[1], read(baseline, text)[1], f"differs from {type(baseline).__name__}")


def formula(method: AnyMethod) -> None:
    """Where the method declares a formula, the count of a call equals it within 2 %, and so do bytes of a state."""
    by_formula = method.formula()
    if by_formula is None:
        return
    text, state, before = texts_for(method, 1), method.start(), 0
    for count, scored in ((SHORT, True), (60, False), (LENGTH - SHORT - 60, True)):
        part = text[:, before : before + count]
        with ProductCounter() as reading:
            state, _ = method.read(state, part, logprobs=scored)
        _agree(reading.flops, by_formula.read([Row(before, count)], logprobs=scored), by_formula.least, "FLOPs of read")
        before += count
        _agree(state.nbytes, by_formula.state_bytes(before), False, "bytes of the state")
    with ProductCounter() as scoring:
        method.score(state, CANDIDATES)
    candidates = [len(candidate) for candidate in CANDIDATES]
    _agree(scoring.flops, by_formula.score(before, candidates), by_formula.least, "FLOPs of score")


def _agree(measured: int, expected: int | None, least: bool, what: str) -> None:
    if expected is None or abs(measured - expected) <= APART * expected or (least and measured > expected):
        return
    raise Broken(f"{what} are {measured} by the count and {expected} by the formula")


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
    "formula": formula,
    "restart": restart,
    "backbone untouched": backbone_is_untouched,
    "equals its baseline": equals_baseline_without_memory,
    "threads": threads,
}

BITWISE = ("saving", "determinism", "counting")
"""Laws that hold in every number type."""
