"""The interface: a context method is a state machine over tokens.

Tensor names carry their shape. Legend: B batch rows, T tokens of one call, N candidates, M tokens of the longest
candidate, C width of the model, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from contextlab import calls, process, states
from contextlab.config import MethodConfig as MethodConfig
from contextlab.errors import UserError
from contextlab.formula import FORKS, Formula, copies_at_once
from contextlab.learned import LearnedWeights
from contextlab.states import State as State
from contextlab.writing import Writer, pad, pad_rows

if TYPE_CHECKING:
    from contextlab.attention import Attend
    from contextlab.backbone import Backbone

C = TypeVar("C", bound="MethodConfig")
S = TypeVar("S", bound="State")


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """The abilities of a method, as data; the harness reads these and never the type.

    Attributes:
        exact_streaming: `read(ab)` equals `read(a)` then `read(b)` at every split.
        needs_gradients: reading differentiates through the backbone.
        max_context: tokens after which the method starts again from an empty state; None when it has no such limit.
        segment: length of the segments whose local context starts cold; None when there are none.
        uses_context: False for a method that ignores what it reads before the question.
        independent_rows: whether no row of a state influences another, so that texts can be read side by side.
        few_bits: whether numbers of a state are rounded to few steps: an error of rounding may become a whole step.
    """

    exact_streaming: bool = True
    needs_gradients: bool = False
    max_context: int | None = None
    segment: int | None = None
    uses_context: bool = True
    independent_rows: bool = True
    few_bits: bool = False


@dataclasses.dataclass(frozen=True)
class Lengths:
    """Lengths of the context and the question that will be read, from which a method places its boundaries.

    Attributes:
        context: tokens that will be read before the question.
        question: tokens of the longest question or candidate that will follow.
    """

    context: int
    question: int = 0

    def first_segment(self, segment: int) -> int:
        """The length of a first segment that lets a later one, of `segment` tokens, end with the question."""
        return (self.context + self.question) % segment or segment


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predictions of the tokens of one call, for a loss, with a graph back to the learned weights.

    Attributes:
        logprobs_BT: log P(token | everything before it), in float32 or the model's own wider type; 0 at padding.
        head_BTC: the hidden states of `hidden_BTC`; None where the head alone does not make the distribution.
    """

    logprobs_BT: Tensor
    head_BTC: Tensor | None

    @property
    def hidden_BTC(self) -> Tensor:
        """The hidden states that predict the tokens, for losses over whole distributions (`Backbone.logits`); 0 at
        padding.

        Raises:
            UserError: when the distribution needs more than hidden states and the backbone's head.
        """
        if self.head_BTC is None:
            raise UserError(
                "A loss over whole distributions needs a method whose distribution the backbone's head makes alone: "
                "train this one with the objective lm."
            )
        return self.head_BTC


class ContextMethod(LearnedWeights, ABC, Generic[C, S]):
    """A way to give a language model more context: starts empty, reads tokens, scores or writes text.

    Causality: a returned log-probability depends on the state and on earlier tokens only. The returned state may
    depend on all of them. An empty state predicts its first token from the backbone's BOS token alone; BOS is not
    kept in the context, so that a context of the caller's own tokens is exactly that.
    """

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    called_by: int | None = None
    """The thread with a call from outside under way, whose arguments have been checked."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the arguments of calls from outside, whatever class they reach (see `calls`)."""
        super().__init_subclass__(**options)
        for name in calls.CHECKS.keys() & vars(cls).keys():
            setattr(cls, name, calls.checked(name)(vars(cls)[name]))

    def __init__(self, backbone: Backbone, config: C | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.config: C = config if config is not None else cast(C, self.Config())
        self.config.check_size()

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The abilities of this method, with this backbone and configuration."""

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """The cost of its calls by arithmetic, from lengths and settings alone; None where it declares none.

        Args:
            ahead: of the text's start.
        """
        return None

    @abstractmethod
    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> S:
        """An empty state.

        Args:
            batch_size: number of rows.
            ahead: the lengths of context and question where they are known; methods without boundaries ignore it,
                the others place their boundaries for them.
        """

    @abstractmethod
    def read(
        self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[S, Tensor | None]:
        """Consume tokens.

        Args:
            state: a state of this method; left as it was.
            tokens_BT: int64, right-padded.
            lengths_B: tokens of each row that count; all of them when None.
            logprobs: whether log-probabilities are wanted; without them the vocabulary projection is skipped.

        Returns:
            The state after the tokens, and `logprobs_BT` (float32): log P(token | everything before it), 0 at
            padding; None when not wanted.
        """

    def learn(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> tuple[S, Prediction]:
        """Consume tokens as `read` does, with a graph back to `learned` and none into the backbone.

        The state carries its part of the graph on: `State.detach` ends it, for truncated backpropagation.

        Args:
            state: a state of this method; left as it was.
            tokens_BT: int64, right-padded.
            lengths_B: tokens of each row that count; all of them when None.

        Raises:
            UserError: when the method has nothing to learn.
        """
        raise UserError(f"{type(self).__name__} has nothing to learn: use read.")

    def learn_context(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> S:
        """The state that `learn` leaves, without predictions where a method can leave them out.

        Args:
            state: a state of this method; left as it was.
            tokens_BT: int64, right-padded.
            lengths_B: tokens of each row that count; all of them when None.

        Raises:
            UserError: when the method has nothing to learn.
        """
        return self.learn(state, tokens_BT, lengths_B)[0]

    def memory_alone(self, state: S) -> S:
        """The state with what the memory keeps and an empty local context: only the memory says what was read.

        Differentiable. What is predicted after it measures the memory; objectives over a memory's content learn from
        it. The first token after it may still be predicted from the end of the text.

        Raises:
            UserError: when the method cannot leave its local context there.
        """
        raise UserError(
            f"{type(self).__name__} keeps no memory that can be read without its local context: use --objective lm, "
            "teacher or contrast."
        )

    def restart(self, state: S, rows_B: Tensor, *, ahead: Lengths | None = None) -> S:
        """The state with an empty one in the rows where `rows_B` (bool) is true; the other rows stay as they are.

        For streams of documents side by side, of which one ends.
        """
        empty = self.start(state.batch_size, ahead=ahead)
        if bool(rows_B.all()):
            return empty
        return state.where(~rows_B, empty).unpadded().own(self)

    @calls.checked("score")
    def score(self, state: S, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Log-probabilities of several continuations of every row; the state is left as it was.

        Returns:
            `logprobs_BNM`, float32, 0 after a candidate's end.
        """
        tokens_NM, lengths_N = pad(candidates, state.device)
        rows = state.batch_size
        return self._from_copies(state, tokens_NM.expand(rows, -1, -1), lengths_N.expand(rows, -1))

    @calls.checked("score_rows")
    def score_rows(self, state: S, candidates: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """`score` with candidates of every row's own.

        Args:
            state: a state of this method with independent rows; left as it was.
            candidates: of every row.

        Returns:
            `logprobs_BNM`, float32, 0 after a candidate's end and where a row has fewer candidates than another.
        """
        return self._from_copies(state, *pad_rows(candidates, state.device))

    def _from_copies(self, state: S, tokens_BNM: Tensor, lengths_BN: Tensor) -> Tensor:
        """Candidates read from copies of the state, as many at once as `FORK_BYTES` hold, at least one of every row."""
        together = copies_at_once(state.nbytes)
        parts = []
        for tokens_BnM, lengths_Bn in zip(tokens_BNM.split(together, 1), lengths_BN.split(together, 1), strict=True):
            forks = state.fork(lengths_Bn.shape[1])
            _, logprobs = self.read(forks, tokens_BnM.flatten(0, 1), lengths_Bn.flatten())
            assert logprobs is not None
            parts.append(logprobs.view(tokens_BnM.shape))
        return torch.cat(parts, dim=1)

    @calls.checked("generate")
    def generate(
        self,
        state: S,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue every row after its prompt; the state is left as it was.

        Args:
            state: a state of this method with one row per prompt, or a single row that every prompt follows.
            prompts: tokens read before writing; may be empty.
            max_new_tokens: the most tokens written per row.
            stop: tokens that end a row; they are not part of the answer.
            temperature: 0 takes the most probable token, otherwise samples.
            seed: of the sampling.
        """
        together = max(len(prompts), 1)
        if state.batch_size == 1 < len(prompts):
            together = min(FORKS, copies_at_once(state.nbytes))
        writer = Writer(max_new_tokens, stop, temperature, seed)
        written: list[list[int]] = []
        for start in range(0, len(prompts), together):
            part = prompts[start : start + together]
            rows = state if state.batch_size == len(part) else state.fork(len(part))
            written += writer.write(len(part), self.continuation(rows, part))
        return written

    def continuation(self, state: S, prompts: Sequence[Sequence[int]]) -> Callable[[Tensor | None], Tensor]:
        """The function `chosen_B` to `logprobs_BV` with which `generate` continues every row of a state after its
        prompt: at first after no token, then after one more of every row.
        """
        return _Continuation(self, state, prompts)

    @calls.checked("next_logprobs")
    @torch.no_grad()
    def next_logprobs(self, state: S) -> Tensor:
        """`logprobs_BV`, float32: the distribution of the next token of every row."""
        return self.backbone.logprobs_of_all(state.pending_BC)

    def baseline(self) -> AnyMethod | None:
        """The method that this one equals while its memory is empty, where the paper says so."""
        return None

    @property
    def twin(self) -> str | None:
        """A baseline without memory that learns from the same tokens, as an argument of `--method`.

        What a method has learned beyond its twin is the use of its memory, not the domain.
        """
        return None

    def whole_attention(self) -> Attend | None:
        """The attention of every layer over whole texts, differentiable in what is learned; None where the method has
        no such form.

        It receives queries, keys and values of a text from its first token on, right-padded (`attention.Attend`).
        """
        return None

    def load_state(self, path: Path | str) -> S:
        """The state that `State.save` wrote to `path`.

        Raises:
            UserError: when the file is broken, or holds the state of another method, backbone or settings.
        """
        loaded = self.start().load(path, states.origin(self))
        try:
            self.check_state(loaded)
        except states.Misfit as misfit:
            raise states.unfit(path, misfit) from None
        return loaded

    def check_state(self, state: S) -> None:
        """Refuse values of a loaded state that no reading produces; shapes and types have been checked.

        Raises:
            states.Misfit: naming what is wrong.
        """
        states.finite(state.tensors())
        states.within("length_B", state.length_B, 0, states.MOST)


AnyMethod: TypeAlias = ContextMethod[Any, Any]
"""A method of whatever configuration and state: what the harness runs."""


def build(kind: type[AnyMethod], backbone: Backbone, config: MethodConfig) -> AnyMethod:
    """A method on a backbone.

    Raises:
        UserError: when its settings do not fit the backbone, or the memory.
    """
    try:
        # A method may copy the model, which must be in no other thread's use then.
        with process.ALONE, backbone.exclusive():
            return kind(backbone, config)
    except (MemoryError, RuntimeError) as error:
        if not process.out_of_memory(error):
            raise
        raise UserError(f"{kind.__name__} with these settings does not fit into memory: use smaller ones.") from error


class _Continuation:
    """A state continued by its prompts, and then by one chosen token after the other."""

    def __init__(self, method: AnyMethod, state: State, prompts: Sequence[Sequence[int]]) -> None:
        self.method, self.state, self.prompts = method, state, prompts

    def __call__(self, chosen_B: Tensor | None) -> Tensor:
        """`logprobs_BV` after one more token of every row."""
        device = self.state.device
        tokens_BT, lengths_B = pad(self.prompts, device) if chosen_B is None else (chosen_B[:, None].to(device), None)
        self.state, _ = self.method.read(self.state, tokens_BT, lengths_B, logprobs=False)
        return self.method.next_logprobs(self.state)
