"""What a worker finds out before a sweep: the identities of runs, their cost by formula, and its machine.

No example is run: protocols are given a method that reads nothing, whose calls have only the cost of the formula.

Legend: B rows, T tokens of a call, N candidates, M tokens of the longest candidate.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor

from contextlab import backbone as backbones
from contextlab import grammar
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.accounting.memory import resident_bytes
from contextlab.accounting.products import ProductCounter
from contextlab.backbone import Backbone
from contextlab.formula import FORKS, copies_at_once, total
from contextlab.harness.batches import size_of
from contextlab.harness.case import TaskCase, cases, controls_of
from contextlab.harness.identity import identity
from contextlab.harness.runner import seeded_example
from contextlab.harness.selection import BuiltMethod, built, select
from contextlab.harness.store import run_id
from contextlab.method import AnyMethod, Capabilities, ContextMethod, Lengths, State
from contextlab.methods.parts.branches import at_once
from contextlab.sweeps.plan import Machine, RunEstimate, Survey, SweepRun
from contextlab.sweeps.suite import Suite
from contextlab.writing import pad

SAMPLE = 16
"""The most examples of a run whose cost is computed; the others cost the mean of these."""
BLOCK = 512
"""Tokens of the forward pass that measures the rate; a method reads a long text in blocks of about this length."""
TRIALS = 5
VALUES = 24
"""Numbers per token that a layer holds, divided by the width: queries, keys, values, and the wider ones of the MLP."""
WEIGHT_BYTES, LOGIT_BYTES = 8, 12
"""Bytes per attention weight and per logit: numbers of two or three types beside each other."""


class Unread(ContextMethod[Any, State]):
    """A method that only counts: it has the lengths, the formula and the abilities of another one.

    Attributes:
        forwards: forward passes of the model, at least.
        longest: tokens of the longest text.
        most_rows: rows of the largest call that reads, each with a state of its own.
        most_copies: of a state in the largest call that scores or writes, as many as `FORK_BYTES` hold.
        most_tokens: of all rows of the largest call.
    """

    def __init__(self, method: AnyMethod) -> None:
        super().__init__(method.backbone)
        self.method = method
        self.forwards, self.longest, self.most_rows, self.most_copies, self.most_tokens = 0, 0, 1, 1, 1

    @property
    def capabilities(self) -> Capabilities:
        """Those of the other method."""
        return self.method.capabilities

    def formula(self, ahead: Lengths | None = None) -> Any:
        """That of the other method."""
        return self.method.formula(ahead)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> State:
        """Rows of length 0."""
        device = self.backbone.device
        return State(
            torch.zeros(batch_size, dtype=torch.int64, device=device), torch.zeros(batch_size, 1, device=device)
        )

    def read(
        self, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        """Longer rows, and log-probabilities of 0."""
        rows, tokens = tokens_BT.shape
        self._called(state, rows, tokens, -(-tokens // BLOCK))
        self.most_rows = max(self.most_rows, rows)
        lengths_B = torch.full_like(state.length_B, tokens) if lengths_B is None else lengths_B
        after = State(state.length_B + lengths_B, state.pending_BC)
        return after, torch.zeros(rows, tokens, device=tokens_BT.device) if logprobs else None

    def score(self, state: State, candidates: Sequence[Sequence[int]]) -> Tensor:
        """`logprobs_BNM` of 0."""
        tokens_NM, _ = pad(candidates, state.device)
        rows = state.batch_size * len(candidates)
        self._called(state, rows, tokens_NM.shape[1], 1)
        self.most_copies = max(self.most_copies, rows)
        return torch.zeros(state.batch_size, *tokens_NM.shape, device=state.device)

    def generate(
        self, state: State, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **_options: Any
    ) -> list[list[int]]:
        """Answers of the greatest length."""
        tokens = max(map(len, prompts), default=0) + max_new_tokens
        self._called(state, min(len(prompts), max(FORKS, at_once(tokens))), tokens, max_new_tokens)
        self.most_copies = max(self.most_copies, min(len(prompts), FORKS))
        return [[0] * max_new_tokens for _ in prompts]

    def _called(self, state: State, rows: int, tokens: int, forwards: int) -> None:
        self.forwards += forwards
        self.longest = max(self.longest, int(state.length_B.max()) + tokens)
        self.most_tokens = max(self.most_tokens, rows * min(tokens, BLOCK))


def survey(suite: Suite, backbone: str) -> Survey:
    """The runs of a suite on one backbone, and what this machine can do.

    Raises:
        UserError: as `bench`, before anything is run.
    """
    process_bytes = psutil.Process().memory_info().rss
    methods, tasks = select(
        suite.method, suite.task, suite.split, suite.set, history=suite.history, tokens=suite.tokens
    )
    tasks = [named.loaded(suite.data) for named in tasks]
    model = backbones.resolve(backbone, device=suite.device, dtype=suite.dtype, quantise=suite.quantise)
    tasks = [named.loaded(suite.data, model) for named in tasks]
    on_tasks = list(cases(tasks, controls_of(suite.context), suite.limit))
    machine = _machine(model, process_bytes)
    runs: list[SweepRun] = []
    for case, named in itertools.product(on_tasks, methods):
        (method,) = built([named.on(model)], model)
        runs += _runs((named.label, backbone), method, case, suite, machine)
    return Survey(runs=runs, machine=machine)


def _runs(
    named: tuple[str, str], method: BuiltMethod, case: TaskCase, suite: Suite, machine: Machine
) -> Iterator[SweepRun]:
    """The runs of one method on one case, for all seeds, with the names of method and backbone in the suite."""
    # Labels leave out the folders of files, which a worker needs.
    task = grammar.spelled(case.name, grammar.split(case.split).name, case.task.config.changed())
    size = size_of(suite.batch)
    estimate, peak_bytes = _needs(method.method, case, size if isinstance(size, int) else 1, machine)
    for seed in suite.seed:
        pair = method.name, method.method
        key = identity(pair, (case.name, case.task), case.split, case.options, case.dataset, case.protocol, seed)
        yield SweepRun(
            method=named[0],
            task=task,
            backbone=named[1],
            context=case.options.context,
            seed=seed,
            run_id=run_id(key),
            examples=len(case.selected),
            estimate=estimate,
            peak_bytes=peak_bytes,
        )


def _needs(method: AnyMethod, case: TaskCase, batch: int, machine: Machine) -> tuple[RunEstimate | None, int]:
    """Cost and peak memory of all examples by formula, from some of them, evenly spaced; `batch` are side by side."""
    count = len(case.selected)
    sample = range(0, count, -(-count // SAMPLE))
    unread = Unread(method)
    meter = Meter(unread, Ledger(method.backbone.device, counting=False))
    costs = [_costs(meter, case, index) for index in sample]
    resident = resident_bytes(method.backbone.model) + method.added_parameters * method.backbone.dtype.itemsize
    states = max((state for _, state in costs), default=0)
    copies = max(unread.most_rows, min(unread.most_copies, copies_at_once(states)))
    peak_bytes = resident + batch * (2 * copies * states + _call_bytes(unread, states))
    flops = total([flops for flops, _ in costs])
    if flops is None:
        return None, peak_bytes
    seconds = flops / machine.flops_per_second + unread.forwards * machine.seconds_per_call
    share = count / len(sample)
    return RunEstimate(flops=round(share * flops), seconds=share * seconds), peak_bytes


def _costs(meter: Meter, case: TaskCase, index: int) -> tuple[int | None, int]:
    """FLOPs of one example, and bytes of its state; a whole cache where the method has no formula."""
    example = case.dataset.examples[index]
    try:
        with seeded_example(0, example.id, str(meter.backbone.device)):
            case.protocol.evaluate(meter, example, case.other(index))
    except Exception:
        # A protocol of others may need real predictions; its run says what is wrong, if anything is.
        meter.take()
        return None, 0
    measures = meter.take()
    state, size = measures["state"], 0
    if state is not None:
        size = state["bytes_formula"] or _cache_bytes(meter.backbone, state["tokens"])
    return total([cost["flops_formula"] for cost in measures["cost"].values()]), size


def _cache_bytes(backbone: Backbone, tokens: int, layers: int | None = None) -> int:
    """Bytes of the keys and values of a text, of all layers when None: the state of a method without a formula."""
    numbers = 2 * tokens * (layers or backbone.layers) * backbone.kv_heads * backbone.head_width
    return numbers * backbone.attention_dtype.itemsize


def _call_bytes(unread: Unread, state_bytes: int) -> int:
    """Bytes of what the largest call computes: values of a layer, or of all where a gradient needs them; attention
    weights of one layer; and logits.
    """
    backbone, tokens = unread.backbone, unread.most_tokens
    layers = backbone.layers if unread.capabilities.needs_gradients else 1
    values = tokens * layers * VALUES * backbone.width * backbone.dtype.itemsize
    keys = min(unread.longest, state_bytes // _cache_bytes(backbone, 1, layers=1))
    weights = tokens * keys * backbone.heads * WEIGHT_BYTES
    return values + weights + min(tokens, backbone.head_tokens) * backbone.vocab_size * LOGIT_BYTES


def _machine(backbone: Backbone, process_bytes: int) -> Machine:
    """This machine, with the rate of the model's own forward passes."""
    device = backbone.device
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    flops, seconds = _forward(backbone, min(BLOCK, backbone.max_positions))
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        gpus=gpus,
        free_bytes=torch.cuda.mem_get_info(device)[0] if gpus else psutil.virtual_memory().available,
        process_bytes=process_bytes,
        flops_per_second=flops / seconds,
        seconds_per_call=_forward(backbone, 1)[1],
    )


@torch.no_grad()
def _forward(backbone: Backbone, tokens: int) -> tuple[int, float]:
    """FLOPs of a forward pass, and the seconds of the fastest of several, with which other programs interfere least."""
    tokens_BT = torch.zeros(1, tokens, dtype=torch.int64, device=backbone.device)
    seconds = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        with ProductCounter() as products:
            float(backbone.model(tokens_BT).logits[0, -1, 0])
        seconds.append(time.perf_counter() - started)
    return products.flops, min(seconds)
