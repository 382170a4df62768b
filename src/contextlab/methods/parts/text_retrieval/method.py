"""Retrieval of text in front of the recent tokens: In-Context RALM (Ram et al. 2023).

Legend: B rows, T tokens of a call, t tokens up to the next search, S tokens of the longest text, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from contextlab import calls, states
from contextlab.backbone import Backbone
from contextlab.method import Capabilities, ContextMethod, Lengths, State
from contextlab.methods.full import Full
from contextlab.methods.parts.blocks import BlockTokens
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.text_retrieval.config import TextConfig
from contextlab.writing import pad, put

C = TypeVar("C", bound=TextConfig)


@dataclasses.dataclass(frozen=True)
class TextState(State):
    """A text.

    Attributes:
        tokens_BS: int32, 0 after a row's end.
        first_B: tokens before the first search.
    """

    tokens_BS: Tensor
    first_B: Tensor

    def unpadded(self) -> Self:
        """The state without places that no row uses; see `State.unpadded`."""
        return dataclasses.replace(self, tokens_BS=self.tokens_BS[:, : int(self.length_B.max())]).own(self.owner)


T = TypeVar("T", bound=TextState)


class TextMethod(ContextMethod[C, T]):
    """Keeps the text; the k best chunks of it are read in front of its recent tokens. A subclass says which are `best`.

    A search is made every `stride` tokens, and at the end of the context where that is known. The last `query` tokens
    are searched for in all whole chunks that lie before the last `recent` tokens. Until the next search tokens see
    the k best chunks in the order of the text, then all tokens after the last chunk that could be retrieved. So a
    prediction depends on the text in front of it alone.
    """

    def __init__(self, backbone: Backbone, config: C | None = None) -> None:
        super().__init__(backbone, config)
        self.view = self.config.view(backbone.max_positions)
        self.full = Full(backbone)

    @abstractmethod
    def best(self, state: T, row: int, chunks: Sequence[Sequence[int]], query: Sequence[int]) -> list[int]:
        """The numbers of the k best chunks, in the order of the text; of all where there are no more.

        Args:
            state: that has read the chunks.
            row: whose they are.
            chunks: the first ones of its text.
            query: tokens that are searched for.
        """

    def begin(self, empty: TextState) -> T:
        """An empty state, of an empty text and what else the method keeps."""
        return cast(T, empty)

    def indexed(self, state: T) -> T:
        """The state after its text has grown, with all that searches need."""
        return state

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming of any length."""
        return Capabilities()

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> T:
        """An empty text, with a search at the end of the context."""
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        hidden_C = self.backbone.bos_hidden_C
        tokens_BS = torch.zeros(batch_size, 0, dtype=torch.int32, device=hidden_C.device)
        first = self.view.first(ahead.context if ahead else 0)
        return self.begin(TextState(zeros_B, hidden_C.expand(batch_size, -1), tokens_BS, zeros_B + first))

    @torch.no_grad()
    def read(
        self, state: T, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[T, Tensor | None]:
        """Keep the tokens; see `ContextMethod.read`."""
        count_B = torch.full_like(state.length_B, tokens_BT.shape[1]) if lengths_B is None else lengths_B.cpu()
        after = self.indexed(_appended(state, tokens_BT, count_B))
        return after, self._scored(after, state.length_B, tokens_BT) if logprobs else None

    @torch.no_grad()
    def score(self, state: T, candidates: Sequence[Sequence[int]]) -> Tensor:
        """All candidates after one view, where no search is inside of them."""
        positions = zip(state.length_B.tolist(), state.first_B.tolist(), strict=True)
        room = min(self.view.room(*position) for position in positions)
        if not 0 < max(map(len, candidates), default=0) <= room:
            return super().score(state, candidates)
        with calls.within(self.full):
            return self.full.score(self.viewed(state, state.length_B), candidates)

    @torch.no_grad()
    def next_logprobs(self, state: T) -> Tensor:
        """After all that is in view; see `ContextMethod.next_logprobs`."""
        with calls.within(self.full):
            return self.full.next_logprobs(self.viewed(state, state.length_B))

    def continuation(self, state: T, prompts: Sequence[Sequence[int]]) -> Callable[[Tensor | None], Tensor]:
        """A text that is read again only after searches."""
        return _Continuation(self, state, prompts)

    def check_state(self, state: T) -> None:
        """The text is one of the backbone's tokens."""
        super().check_state(state)
        states.within("length_B", state.length_B, 0, state.tokens_BS.shape[1])
        states.within("tokens_BS", state.tokens_BS, 0, self.backbone.vocab_size - 1)
        states.within("first_B", state.first_B, 1, self.view.stride)

    def searches_at(self, position: int, first: int) -> bool:
        """Whether a search is made in front of the token at a position."""
        return self.view.searched(position, first) == position

    def in_view(self, state: T, row: int, length: int) -> list[int]:
        """The tokens from which the next one after the first `length` of a row's text is predicted."""
        view, searched = self.view, self.view.searched(length, int(state.first_B[row]))
        text = state.tokens_BS[row, :length].tolist()
        cuts = range(0, view.chunks(searched) * view.chunk, view.chunk)
        chunks = [text[begin : begin + view.chunk] for begin in cuts]
        best = self.best(state, row, chunks, text[max(0, searched - view.query) : searched])
        return [token for number in best for token in chunks[number]] + text[len(chunks) * view.chunk :]

    def viewed(self, state: T, length_B: Tensor) -> LocalState:
        """The state of full attention after what is in view at a length of every row's text; nothing at length 0."""
        views = [self.in_view(state, row, length) for row, length in enumerate(length_B.tolist())]
        tokens_BT, lengths_B = pad(views, self.backbone.device)
        return self.full.read(self.full.start(len(views)), tokens_BT, lengths_B, logprobs=False)[0]

    def _scored(self, after: T, begin_B: Tensor, tokens_BT: Tensor) -> Tensor:
        """`logprobs_BT` of the tokens of a text from its begin on."""
        firsts = after.first_B.tolist()
        logprobs_BT = torch.zeros(tokens_BT.shape, dtype=torch.float32, device=tokens_BT.device)
        done_B, count_B = torch.zeros_like(begin_B), after.length_B - begin_B
        while bool((done_B < count_B).any()):
            position_B = begin_B + done_B
            room_B = torch.tensor([self.view.room(*pair) for pair in zip(position_B.tolist(), firsts, strict=True)])
            take_B = torch.minimum(count_B - done_B, room_B)
            block = BlockTokens(done_B, take_B, tokens_BT)
            with calls.within(self.full):
                # A row that has ended has no view.
                viewed = self.viewed(after, torch.where(take_B > 0, position_B, 0))
                _, logprobs_Bt = self.full.read(viewed, block.tokens_Bt, take_B)
            assert logprobs_Bt is not None
            block.put(logprobs_Bt, logprobs_BT)
            done_B = done_B + take_B
        return logprobs_BT


class _Continuation:
    """Texts that grow by one token after the other, each with full attention to what is in view."""

    def __init__(self, method: TextMethod[Any, Any], state: TextState, prompts: Sequence[Sequence[int]]) -> None:
        self.method, self.state, self.prompts = method, state, prompts
        self.viewed = method.full.start(len(prompts))

    @torch.no_grad()
    def __call__(self, chosen_B: Tensor | None) -> Tensor:
        """`logprobs_BV` after one more token of every row."""
        method, device, rows = self.method, self.state.device, range(len(self.prompts))
        tokens_BT, lengths_B = pad(self.prompts, device) if chosen_B is None else (chosen_B[:, None].to(device), None)
        self.state, _ = method.read(self.state, tokens_BT, lengths_B, logprobs=False)
        lengths, firsts = self.state.length_B.tolist(), self.state.first_B.tolist()
        searching = [row for row in rows if chosen_B is None or method.searches_at(lengths[row], firsts[row])]
        others = [row for row in rows if row not in searching]
        parts = []
        with calls.within(method.full):
            if searching:
                searched = self.state.index(searching)
                parts.append(method.viewed(searched, searched.length_B))
            if others:
                parts.append(method.full.read(self.viewed.index(others), tokens_BT[others], logprobs=False)[0])
            order = sorted(rows, key=(searching + others).__getitem__)
            self.viewed = states.joined(parts).index(order)
            return method.full.next_logprobs(self.viewed)


def _appended(state: T, tokens_BT: Tensor, count_B: Tensor) -> T:
    """The text with each row's first `count_B` tokens after it."""
    length_B = state.length_B + count_B
    tokens_BS = put(state.tokens_BS, tokens_BT.to(torch.int32), state.length_B, count_B)[:, : int(length_B.max())]
    return dataclasses.replace(state, tokens_BS=tokens_BS, length_B=length_B)
