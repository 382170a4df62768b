"""The laws of learning: `learn` equals `read`, with the same gradients at every split and none in the backbone.

They are checked in float64, with weights that differ from their initial values: with many initial values the result
does not depend on some of the weights, so that every law would hold.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from contextlab.method import AnyMethod, State
from contextlab.testing.parts import SHORT, Broken, same, texts_for

MOVED = 0.05
"""Standard deviation of the noise that is added to learned weights."""
OPEN = -1.0
"""Replaces a weight of minus infinity."""
STEP = 1e-6
"""Half the step of a finite difference, small enough not to cross a kink of relu."""
STEP_BETWEEN_CODES = 1e-8
"""The step of numbers in few bits where `STEP` may have crossed a rounding, of which a gradient knows nothing."""
SMALL = 1e-4
"""Smaller gradients are compared by their absolute differences."""
EXACT = 1e-9
CLOSE = 1e-4
"""Largest relative difference between a gradient and a finite difference, which have rounding and truncation errors."""
STEP_TOGETHER = 1e-9
MOST = 100.0
"""How much further than by this step a parameter of small gradient is moved, where many are moved together."""
Directions = Mapping[nn.Parameter, Tensor]
SPLITS = (1, 63, 64, 127, 128, 129)


def learning_is_reading(method: AnyMethod) -> None:
    """`learn` equals `read` in log-probabilities and future; its hidden states give these log-probabilities.

    A method whose distribution does not follow from hidden states alone has none to check.
    """
    if (learned := _moved(method)) is None:
        return
    text, lengths = texts_for(method, 3)[:, :SHORT], torch.tensor([SHORT, 70, 0])
    state, predicted = method.learn(method.start(3), text, lengths)
    other, logprobs_BT = method.read(method.start(3), text, lengths)
    assert logprobs_BT is not None
    same(predicted.logprobs_BT.detach(), logprobs_BT, "learn gives other log-probabilities than read")
    if predicted.head_BTC is not None:
        hidden = method.backbone.logprobs(predicted.hidden_BTC, text).detach()
        real_BT = (torch.arange(SHORT) < lengths[:, None]).to(text.device)
        same(hidden[real_BT], logprobs_BT[real_BT], "the hidden states of learn do not predict the tokens")
    future = [method.read(after, texts_for(method, 3, seed=4)[:, :60])[1] for after in (state.detach(), other)]
    assert future[0] is not None
    assert future[1] is not None
    same(future[0], future[1], "a state after learn predicts otherwise")
    if any(tensor.requires_grad for tensor in state.detach().tensors().values()):
        raise Broken("a detached state still has a graph")
    if not any(bool(gradient.any()) for gradient in _gradients(learned, lambda: _loss(method, text))):
        raise Broken("no gradient reaches the learned module")


def gradients_at_every_split(method: AnyMethod) -> None:
    """Learning from a text in two calls has the same gradient as in one call."""
    if (learned := _moved(method)) is None:
        return
    text = texts_for(method, 2)[:, :SHORT]
    whole = _gradients(learned, lambda: _loss(method, text))
    for split in SPLITS:
        parts = _gradients(learned, lambda split=split: _loss(method, text, split))  # type: ignore[misc]
        _same_gradients(parts, whole, learned, f"split {split}")


def contexts_without_predictions(method: AnyMethod) -> None:
    """`learn_context` leaves the state of `learn`: what follows has the same log-probabilities and gradients."""
    if (learned := _moved(method)) is None:
        return
    text, lengths = texts_for(method, 2)[:, :SHORT], torch.tensor([SHORT, 70])
    end = texts_for(method, 2, seed=4)[:, :30]

    def context() -> State:
        state: State = method.learn_context(method.start(2), text, lengths)
        return state

    def learned_context() -> State:
        state: State = method.learn(method.start(2), text, lengths)[0]
        return state

    def after(read: Callable[[], State]) -> Tensor:
        return method.learn(read(), end)[1].logprobs_BT

    def mean(read: Callable[[], State]) -> Tensor:
        return after(read).double().mean()

    reads = (context, learned_context)
    logprobs = [after(read).detach() for read in reads]
    same(logprobs[0], logprobs[1], "a state after learn_context predicts otherwise")
    gradients = [_gradients(learned, functools.partial(mean, read)) for read in reads]
    _same_gradients(gradients[0], gradients[1], learned, "a context without predictions")


def exact_gradients(method: AnyMethod) -> None:
    """The gradient of every learned parameter along a random direction equals the finite difference.

    First along one direction of all parameters together, in which each has about the same part, so that an error in
    any of them is seen; one by one only where that differs, which also names the parameter.
    """
    if (learned := _moved(method)) is None:
        return
    text = texts_for(method, 2)[:, :SHORT]
    gradients = _gradients(learned, lambda: _exact_loss(method, text))
    random = torch.Generator().manual_seed(3)
    directions = {
        parameter: torch.randn(parameter.shape, generator=random, dtype=torch.float64).to(parameter)
        for parameter in learned.parameters()
    }
    slopes = {
        parameter: float((gradient * direction).sum())
        for (parameter, direction), gradient in zip(directions.items(), gradients, strict=True)
    }
    wide = [parameter for parameter in directions if parameter.dtype == torch.float64]
    scales = {p: math.copysign(min(1 / max(abs(slopes[p]), 1e-300), MOST), slopes[p]) for p in wide}
    together = {p: directions[p] * scales[p] for p in wide}
    exact = math.fsum(slopes[p] * scales[p] for p in wide)
    hold = set(wide) if wide and _differs(method, text, together, exact, STEP_TOGETHER) is None else set()
    for name, parameter in learned.named_parameters():
        if parameter in hold:
            continue
        along = {parameter: directions[parameter]}
        numeric = _differs(method, text, along, slopes[parameter])
        if numeric is not None and method.capabilities.few_bits:
            numeric = _differs(method, text, along, slopes[parameter], STEP_BETWEEN_CODES)
        if numeric is not None:
            raise Broken(
                f"the gradient of {name} is {slopes[parameter]:.6g} where the finite difference is {numeric:.6g}"
            )


def _differs(
    method: AnyMethod, text_BT: Tensor, directions: Directions, exact: float, step: float = STEP
) -> float | None:
    """The finite difference along directions of parameters where it is not a slope; else None."""
    # A parameter of a narrower type needs a larger step, because of its rounding errors.
    wide = all(parameter.dtype == torch.float64 for parameter in directions)
    if not wide:
        step = 1e-3
    ends = [_shifted(method, directions, sign * step, text_BT) for sign in (1, -1)]
    numeric = (ends[0] - ends[1]) / (2 * step)
    allowed = (CLOSE if wide else 1e-2) * max(abs(numeric), abs(exact), SMALL)
    return None if math.isfinite(exact) and abs(numeric - exact) <= allowed else numeric


def nothing_reaches_the_backbone(method: AnyMethod) -> None:
    """Backpropagation leaves no gradient in the backbone and does not change its parameters."""
    if _moved(method) is None:
        return
    parameters = list(method.backbone.model.parameters())
    before = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        _loss(method, texts_for(method, 1)[:, :SHORT]).backward()
        if any(parameter.grad is not None for parameter in parameters):
            raise Broken("a gradient reaches the backbone")
        if not all(parameter.requires_grad for parameter in parameters):
            raise Broken("the backbone's parameters are left frozen")
    finally:
        for parameter, needed in zip(parameters, before, strict=True):
            parameter.requires_grad_(needed)
            parameter.grad = None


def rows_learn_alone(method: AnyMethod) -> None:
    """The gradient of one row's loss does not depend on the other rows."""
    if (learned := _moved(method)) is None:
        return
    text = texts_for(method, 2)[:, :SHORT]
    other = torch.stack((text[0], text[1].flip(0)))
    first = torch.tensor([[1.0], [0.0]], dtype=torch.float64, device=text.device)
    gradients = [_gradients(learned, lambda t=t: _loss(method, t, weight_BT=first)) for t in (text, other)]  # type: ignore[misc]
    _same_gradients(gradients[1], gradients[0], learned, "another row")


def graph_ends_where_it_is_cut(method: AnyMethod) -> None:
    """After `State.detach` a second call has the same gradients as after `read`."""
    if (learned := _moved(method)) is None:
        return
    text = texts_for(method, 2)[:, :SHORT]
    begin, end = text[:, :64], text[:, 64:]

    def after(state: State) -> Tensor:
        return method.learn(state, end)[1].logprobs_BT.double().mean()

    cut = _gradients(learned, lambda: after(method.learn(method.start(2), begin)[0].detach()))
    read = _gradients(learned, lambda: after(method.read(method.start(2), begin, logprobs=False)[0]))
    _same_gradients(cut, read, learned, "a detached state")


LAWS: dict[str, Callable[[AnyMethod], None]] = {
    "learning is reading": learning_is_reading,
    "gradients at every split": gradients_at_every_split,
    "contexts without predictions": contexts_without_predictions,
    "exact gradients": exact_gradients,
    "nothing reaches the backbone": nothing_reaches_the_backbone,
    "rows learn alone": rows_learn_alone,
    "graph ends where it is cut": graph_ends_where_it_is_cut,
}


def _moved(method: AnyMethod) -> nn.Module | None:
    """The learned module with weights that differ from their initial values; None where there is none."""
    if method.learned is None:
        return None
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in method.learned.parameters():
            parameter.nan_to_num_(neginf=OPEN)
            parameter.add_(MOVED * torch.randn(parameter.shape, generator=random).to(parameter))
    return method.learned


def _loss(method: AnyMethod, text_BT: Tensor, split: int = 0, weight_BT: Tensor | None = None) -> Tensor:
    state, first = method.learn(method.start(len(text_BT)), text_BT[:, :split])
    _, second = method.learn(state, text_BT[:, split:])
    logprobs_BT = torch.cat((first.logprobs_BT, second.logprobs_BT), dim=1).double()
    return (logprobs_BT if weight_BT is None else logprobs_BT * weight_BT).mean()


def _gradients(learned: nn.Module, loss: Callable[[], Tensor]) -> list[Tensor]:
    parameters = list(learned.parameters())
    gradients = torch.autograd.grad(loss(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def _exact_loss(method: AnyMethod, text_BT: Tensor) -> Tensor:
    """The mean log-probability in the backbone's type, since the head returns log-probabilities in float32."""
    predicted = method.learn(method.start(len(text_BT)), text_BT)[1]
    hidden_BTC = predicted.head_BTC
    if hidden_BTC is None:
        return predicted.logprobs_BT.mean()
    logprobs_BTV = method.backbone.model.get_output_embeddings()(hidden_BTC).log_softmax(-1)
    mean: Tensor = logprobs_BTV.gather(2, text_BT[..., None]).mean()
    return mean


def _shifted(method: AnyMethod, directions: Directions, step: float, text_BT: Tensor) -> float:
    """The loss after a step along directions of some parameters."""
    before = {parameter: parameter.detach().clone() for parameter in directions}
    with torch.no_grad():
        for parameter, direction in directions.items():
            parameter.add_(step * direction)
    try:
        return float(_exact_loss(method, text_BT).detach())
    finally:
        with torch.no_grad():
            for parameter, value in before.items():
                parameter.copy_(value)


def _same_gradients(ours: list[Tensor], theirs: list[Tensor], learned: nn.Module, what: str) -> None:
    for (name, parameter), a, b in zip(learned.named_parameters(), ours, theirs, strict=True):
        exact = EXACT if parameter.dtype == torch.float64 else 1e-6
        if not bool(a.isfinite().all()) or float((a - b).abs().max()) > exact * max(1.0, float(b.abs().max())):
            raise Broken(f"{what} changes the gradient of {name} by {float((a - b).abs().max()):.2g}")
