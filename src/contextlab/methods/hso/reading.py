"""One call of `read`: buffers as long as the call needs, filled and moved in place, window by window.

Legend: B rows, T tokens of the call, t tokens of a window, S slots of the cache, C width of the model.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab.attention import Layout
from contextlab.backbone import Backbone, KeyValueProjections
from contextlab.errors import UserError
from contextlab.methods.hso.adam import Step
from contextlab.methods.hso.attend import KeyValueAttend, WindowAttend
from contextlab.methods.hso.config import HSOConfig
from contextlab.methods.hso.inputs import InputAttend
from contextlab.methods.hso.state import HSOState, MomentBuffers, grown

DIVERGED = 1.0
"""Nats per token above the plain model's loss."""
JUDGED_TOKENS = 25
"""Least tokens over which losses are compared: one or two tokens say nothing about a run."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """Inputs of one forward pass; padding goes to a slot that no real token sees.

    Attributes:
        slot_Bt: where each token's states go.
        position_Bt: their positions.
        offset_B: by how many positions a row's positions lie after its slots.
        past: slots of the longest row in front of the pass.
        tokens_Bt: the tokens.
        target_Bt: the tokens after them.
        known_Bt: whether that target has been read.
    """

    slot_Bt: Tensor
    position_Bt: Tensor
    offset_B: Tensor
    past: int
    tokens_Bt: Tensor
    target_Bt: Tensor
    known_Bt: Tensor


class HsoReading:
    """A read in progress.

    Attributes:
        rest_B: tokens of the call still to be read.
        logprobs_BT: log-probabilities; None when not wanted.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: HSOConfig,
        state: HSOState,
        tokens_BT: Tensor,
        lengths_B: Tensor | None,
        *,
        context: int,
        scored: bool,
        projections: KeyValueProjections | None = None,
    ) -> None:
        rows, length = tokens_BT.shape
        self.backbone, self.config, self.context, self.projections = backbone, config, context, projections
        self.resets = config.eviction == "reset"
        self.before, self.tokens_BT = state, tokens_BT.clone()
        # What a window does depends on losses too: counts are on the device for the time of a call.
        device = tokens_BT.device
        self.length_B = state.length_B.to(device)
        self.rest_B = lengths_B.to(device) if lengths_B is not None else tokens_BT.new_full((rows,), length)
        self.done_B = torch.zeros_like(self.rest_B)
        self.used_B, self.open_B, self.left_B = (x.to(device) for x in (state.used_B, state.open_B, state.left_B))
        self.mean_B, self.recent_B, self.worst_B = (x.clone() for x in (state.mean_B, state.recent_B, state.worst_B))
        self.pending_BC, self.lost_B = state.pending_BC, state.pending_BC.isnan().any(1)
        self.stretch = -(-JUDGED_TOKENS // self.config.k)
        self.logprobs_BT: Tensor | None = None
        if scored:
            self.logprobs_BT = torch.zeros(rows, length, device=tokens_BT.device)
            if length:
                first_B1 = self.backbone.logprobs(state.pending_BC[:, None], self.tokens_BT[:, :1])
                self.logprobs_BT[:, :1] = first_B1.masked_fill(self.rest_B[:, None] == 0, 0.0)
        else:
            self._skip_forgotten()
        most = self.context + (0 if self.resets else self.config.k)
        # One slot more than a row can fill, for what is not real; tokens are known one further than states.
        needed = min(int((self.used_B + self.open_B + self.rest_B).amax()), most) + 1
        self.slots = max(needed, state.tokens_BS.shape[1])
        self.tokens_BS = grown(state.tokens_BS, 1, self.slots + 1)
        self.buffers = MomentBuffers(self.config, state, self.slots)

    def window(self) -> None:
        """Read on to the end of every row's window, and update those whose last target is in this call."""
        config = self.config
        take_B = torch.minimum(self.rest_B, torch.minimum(config.k - self.open_B, self.left_B))
        end_B, ends_B = self.open_B + take_B, take_B == self.left_B
        follows_B = self.rest_B > take_B
        closes_B = (end_B == config.k) & ~ends_B & (follows_B | (config.lr == 0))
        learning_B = closes_B & ~self.lost_B
        learns = config.lr > 0 and bool(learning_B.any())
        self._enter(take_B)
        inputs = self._pass(torch.zeros_like(end_B) if learns else self.open_B, end_B, follows_B)
        if inputs.slot_Bt.shape[1]:
            with torch.set_grad_enabled(learns):
                attend = self._attend(inputs)
                hidden_BtC = attend.hidden(inputs.tokens_Bt, inputs.position_Bt)
                predicts = learns or self.logprobs_BT is not None
                logprobs_Bt = self.backbone.logprobs(hidden_BtC, inputs.target_Bt) if predicts else None
            self._report(inputs, hidden_BtC.detach(), logprobs_Bt, take_B)
            if logprobs_Bt is not None and learns:
                self._learn(inputs, attend, logprobs_Bt, learning_B)
        self.used_B = torch.where(closes_B, self.used_B + end_B, self.used_B).masked_fill(ends_B, 0)
        self.open_B = end_B.masked_fill(closes_B | ends_B, 0)
        self.left_B = torch.where(ends_B, self.context, self.left_B - take_B)
        self.done_B, self.rest_B = self.done_B + take_B, self.rest_B - take_B
        if self.resets:
            self.buffers.restart(ends_B)
        else:
            self._evict()

    def state(self) -> HSOState:
        """The state after the call.

        Raises:
            UserError: when every row has diverged.
        """
        self._lose(~self.pending_BC.isfinite().all(1), "is no longer finite")
        slots, used = int((self.used_B + self.open_B).amax()), int(self.used_B.amax())
        return HSOState(
            **self.buffers.cut(slots, used),
            length_B=(self.length_B + self.done_B).cpu(),
            pending_BC=self.pending_BC,
            tokens_BS=self.tokens_BS[:, :slots].contiguous(),
            used_B=self.used_B.cpu(),
            open_B=self.open_B.cpu(),
            left_B=self.left_B.cpu(),
            mean_B=self.mean_B,
            recent_B=self.recent_B,
            worst_B=self.worst_B,
        )

    @property
    def _base_B(self) -> Tensor:
        """Positions of the first tokens of the unfinished windows."""
        return self.used_B if self.resets else self.length_B + self.done_B - self.open_B

    def _skip_forgotten(self) -> None:
        """Nothing is kept of contexts that end in this call: without scores they need not be read."""
        passes_B = self.rest_B > self.left_B
        whole_B = (self.rest_B - self.left_B - 1) // self.context * self.context
        skipped_B = (self.left_B + whole_B).masked_fill(~passes_B, 0)
        self.done_B, self.rest_B = self.done_B + skipped_B, self.rest_B - skipped_B
        self.used_B, self.open_B = (x.masked_fill(passes_B, 0) for x in (self.used_B, self.open_B))
        self.left_B = self.left_B.masked_fill(passes_B, self.context)

    def _enter(self, take_B: Tensor) -> None:
        """Note the tokens that are taken, and the one after them as a target."""
        steps = torch.arange(int(take_B.amax()) + 1, device=take_B.device)
        real_Bt = (steps <= take_B[:, None]) & (steps < self.rest_B[:, None])
        slot_Bt = ((self.used_B + self.open_B)[:, None] + steps).masked_fill(~real_Bt, self.slots)
        index_Bt = (self.done_B[:, None] + steps).clamp(max=self.tokens_BT.shape[1] - 1)
        self.tokens_BS.scatter_(1, slot_Bt, self.tokens_BT.gather(1, index_Bt))

    def _pass(self, begin_B: Tensor, end_B: Tensor, follows_B: Tensor) -> Pass:
        """The tokens of every row's window from `begin_B` to `end_B`."""
        size_B1 = (end_B - begin_B)[:, None]
        steps = torch.arange(int(size_B1.amax()), device=begin_B.device)
        real_Bt = steps < size_B1
        last = int((self.used_B + end_B).amax())
        slot_Bt = ((self.used_B + begin_B)[:, None] + steps).masked_fill(~real_Bt, last)
        return Pass(
            slot_Bt,
            (self._base_B + begin_B)[:, None] + steps,
            self._base_B - self.used_B,
            int((self.used_B + begin_B).amax()),
            self.tokens_BS.gather(1, slot_Bt),
            self.tokens_BS.gather(1, slot_Bt + 1),
            real_Bt & ((steps < size_B1 - 1) | follows_B[:, None]),
        )

    def _attend(self, inputs: Pass, *, fixed: bool = False, shift: list[Tensor] | None = None) -> WindowAttend:
        view = int(inputs.slot_Bt.amax()) + 1
        cached = [x[:, :, :view] for x in self.buffers.cached]
        if self.projections is None:
            return KeyValueAttend(self.backbone, cached, inputs.slot_Bt, inputs.position_Bt, fixed=fixed, shift=shift)
        return InputAttend(
            self.projections,
            cached,
            inputs.slot_Bt,
            inputs.position_Bt,
            past=inputs.past,
            offset_B=inputs.offset_B,
            past_moves=self.config.update == "full",
            fixed=fixed,
            shift=shift,
        )

    def _report(self, inputs: Pass, hidden_BtC: Tensor, logprobs_Bt: Tensor | None, take_B: Tensor) -> None:
        """Note what is new: a window that is run once more has been reported before."""
        until_B = self.used_B + self.open_B
        if self.logprobs_BT is not None and logprobs_Bt is not None:
            index_Bt = inputs.slot_Bt + 1 - until_B[:, None]
            new_Bt = inputs.known_Bt & (index_Bt > 0)
            index_Bt = (self.done_B[:, None] + index_Bt).masked_fill(~new_Bt, 0)
            logprobs_Bt = logprobs_Bt.detach().float().masked_fill(self.lost_B[:, None], float("nan"))
            self.logprobs_BT.scatter_add_(1, index_Bt, logprobs_Bt.masked_fill(~new_Bt, 0.0))
        at_B = until_B + take_B - 1 - inputs.slot_Bt[:, 0]
        last_B1C = at_B.clamp(0, hidden_BtC.shape[1] - 1)[:, None, None].expand(-1, 1, hidden_BtC.shape[2])
        moved_B = (take_B > 0) & ~self.lost_B
        self.pending_BC = torch.where(moved_B[:, None], hidden_BtC.gather(1, last_B1C)[:, 0], self.pending_BC)

    def _learn(self, inputs: Pass, attend: WindowAttend, logprobs_Bt: Tensor, closes_B: Tensor) -> None:
        """Move the states of the rows whose window is complete against the gradient of its summed loss."""
        counted_Bt = inputs.known_Bt & closes_B[:, None]
        self._check(logprobs_Bt.detach().float().masked_fill(~counted_Bt, 0.0).sum(1) / -self.config.k, closes_B)
        closes_B = closes_B & ~self.lost_B
        counted_Bt = inputs.known_Bt & closes_B[:, None]
        rows = slice(None) if bool(closes_B.all()) else closes_B.nonzero()[:, 0]
        moments = self.buffers.moments(self.used_B)
        window = [x.gather(2, attend.slot_index(x)) for x in attend.cached] if self.config.steps == 2 else []
        for number in range(1, self.config.steps + 1):
            if number == 2:
                attend, logprobs_Bt = self._again(inputs, attend, window)
            attend.differentiate(logprobs_Bt, -counted_Bt.to(logprobs_Bt))
            self.buffers.move(rows, self._step(rows, number, attend), attend, moments)

    def _again(self, inputs: Pass, attend: WindowAttend, window: list[Tensor]) -> tuple[WindowAttend, Tensor]:
        """The window a second time (HSO-2), with the states that its first step has moved."""
        if self.config.second == "fixed":
            attend = self._attend(inputs, fixed=True)
        else:
            moved = (x.gather(2, attend.slot_index(x)) for x in attend.cached)
            attend = self._attend(inputs, shift=[new - old for new, old in zip(moved, window, strict=True)])
        with torch.enable_grad():
            hidden_BtC = attend.hidden(inputs.tokens_Bt, inputs.position_Bt)
            return attend, self.backbone.logprobs(hidden_BtC, inputs.target_Bt)

    def _step(self, rows: slice | Tensor, number: int, attend: WindowAttend) -> Step:
        """How often each state has moved follows from its position: once or twice for every window since its own."""
        config = self.config
        slot_BS = attend.slot_BT if config.update == "present" else torch.arange(attend.view, device=self.used_B.device)
        position_BS = (self._base_B - self.used_B)[:, None] + slot_BS
        windows_B1 = (self._base_B // config.k)[:, None]
        count_BS = config.steps * (windows_B1 - position_BS // config.k).clamp(min=0) + number
        lr_B1 = config.lr * ((windows_B1 + 1).double() / (config.warmup + 1)).clamp(max=1)
        return Step.of(config, lr_B1[rows, None, :, None], count_BS[rows, None, :, None], attend.cached[0])

    def _evict(self) -> None:
        """Drop the oldest states where more are in view than the context holds."""
        over_B = (self.used_B - self.context).clamp(min=0)
        self.buffers.evict(over_B, self.context, self.tokens_BS)
        self.used_B = self.used_B - over_B

    def _check(self, loss_B: Tensor, closes_B: Tensor) -> None:
        """Compare with the plain model where losses look suspicious, and bring the record of losses up to date.

        Windows are judged in stretches of at least 25 tokens. Suspicious is a stretch that costs 1 nat per token more
        than the windows of its context before it, and more than any that was compared before. The first stretch of a
        context is compared where it has more than one window: the first window is the plain model's.

        Raises:
            UserError: when every row has diverged: a loss that is not finite, or a stretch that is worse than the plain
                model's by 1 nat per token.
        """
        self._lose(closes_B & ~loss_B.isfinite(), "is no longer finite")
        closes_B = closes_B & ~self.lost_B
        windows_B = self._base_B // self.config.k
        offset_B = windows_B % self.stretch
        mean_B = self.mean_B.masked_fill(windows_B == 0, 0.0)
        before_B = (mean_B * windows_B - self.recent_B * (offset_B > 0)) / (windows_B - offset_B).clamp(min=1)
        recent_B = torch.where(offset_B == 0, loss_B, self.recent_B + loss_B)
        judged_B = recent_B / self.stretch
        ends_B, first_B = closes_B & (offset_B == self.stretch - 1), windows_B < self.stretch
        suspicious_B = (judged_B > before_B + DIVERGED) & (judged_B > self.worst_B)
        high_B = ends_B & torch.where(first_B, self.stretch > 1, suspicious_B)
        for row in high_B.nonzero()[:, 0].tolist():
            if float(judged_B[row]) >= self._plain_loss(row) + DIVERGED:
                lost_B = torch.arange(len(high_B), device=high_B.device) == row
                self._lose(lost_B, f"is {DIVERGED:g} nat per token worse than the plain model's")
        self.worst_B = torch.where(high_B | (ends_B & first_B), judged_B, self.worst_B)
        self.recent_B = torch.where(closes_B, recent_B, self.recent_B)
        self.mean_B = torch.where(closes_B, mean_B + (loss_B - mean_B) / (windows_B + 1), self.mean_B)

    def _plain_loss(self, row: int) -> float:
        """Loss of the row's stretch by the plain model, which reads all that is in view again; nats per token."""
        end = int(self.used_B[row]) + self.config.k
        judged = min(self.stretch * self.config.k, end)
        tokens_1S = self.tokens_BS[row : row + 1, : end + 1]
        slot_1S = torch.arange(end, device=tokens_1S.device)[None]
        position_1S = slot_1S + (self._base_B - self.used_B)[row]
        hidden_1SC = self.backbone.forward(tokens_1S[:, :-1], position_1S, self.backbone.reader(1, Layout(slot_1S)))
        return -float(self.backbone.logprobs(hidden_1SC[:, -judged:], tokens_1S[:, -judged:]).mean())

    def _lose(self, rows_B: Tensor, what: str) -> None:
        """Give rows up: their log-probabilities are NaN from here on, the other rows go on.

        Raises:
            UserError: when no row is left.
        """
        self.lost_B = self.lost_B | rows_B
        if len(rows_B) and bool(self.lost_B.all()):
            raise self._diverged(what)
        self.pending_BC = self.pending_BC.masked_fill(self.lost_B[:, None], float("nan"))

    def _diverged(self, what: str) -> UserError:
        return UserError(f"HSO diverged: its loss {what}; use an lr lower than {self.config.lr:g}.")
