"""Retrieval of text by BM25 in front of the recent tokens: In-Context RALM (Ram et al. 2023).

Legend: B rows, T tokens of a call, t tokens up to the next search, S tokens of the longest text, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from contextlab import calls, states
from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone
from contextlab.formula import Formula
from contextlab.method import Capabilities, ContextMethod, Lengths, State
from contextlab.methods.blocks import Taken
from contextlab.methods.bm25.config import BM25Config
from contextlab.methods.bm25.formula import BM25Formula
from contextlab.methods.bm25.search import Search
from contextlab.methods.full import Full
from contextlab.methods.local_cache import LocalState
from contextlab.writing import pad


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

    def texts(self) -> list[list[int]]:
        """The tokens of every row."""
        pairs = zip(self.tokens_BS.tolist(), self.length_B.tolist(), strict=True)
        return [tokens[:length] for tokens, length in pairs]


class BM25(ContextMethod[BM25Config, TextState]):
    """Keeps the text; the k chunks of it that match its end best are read in front of its recent tokens.

    A search is made every `stride` tokens, and at the end of the context where that is known. The last `query` tokens
    are searched for in all whole chunks that lie before the last `recent` tokens. Until the next search tokens see
    the k best chunks in the order of the text, then all tokens after the last chunk that could be retrieved. So a
    prediction depends on the text in front of it alone. Reading computes nothing: the model reads when something is
    predicted.
    """

    Config = BM25Config

    def __init__(self, backbone: Backbone, config: BM25Config | None = None) -> None:
        super().__init__(backbone, config)
        self.view = self.config.view(backbone.max_positions)
        self.search = Search(backbone)
        self.full = Full(backbone)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming of any length."""
        return Capabilities()

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """That of full attention to what is in view."""
        model, full = Model.of(self.backbone), self.full.formula()
        return None if model is None or full is None else BM25Formula(model, full, self.view, ahead)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> TextState:
        """An empty text, with a search at the end of the context."""
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        hidden_C = self.backbone.bos_hidden_C
        tokens_BS = torch.zeros(batch_size, 0, dtype=torch.int32, device=hidden_C.device)
        first = self.view.first(ahead.context if ahead else 0)
        return TextState(zeros_B, hidden_C.expand(batch_size, -1), tokens_BS, zeros_B + first)

    @torch.no_grad()
    def read(
        self, state: TextState, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[TextState, Tensor | None]:
        """Keep the tokens; see `ContextMethod.read`."""
        count_B = torch.full_like(state.length_B, tokens_BT.shape[1]) if lengths_B is None else lengths_B.cpu()
        after = _appended(state, tokens_BT, count_B)
        return after, self._scored(after, state.length_B, tokens_BT) if logprobs else None

    @torch.no_grad()
    def score(self, state: TextState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """All candidates after one view, where no search is inside of them."""
        positions = zip(state.length_B.tolist(), state.first_B.tolist(), strict=True)
        room = min(self.view.room(*position) for position in positions)
        if not 0 < max(map(len, candidates), default=0) <= room:
            return super().score(state, candidates)
        with calls.within(self.full):
            return self.full.score(self.viewed(state.texts(), state.first_B.tolist()), candidates)

    @torch.no_grad()
    def next_logprobs(self, state: TextState) -> Tensor:
        """After all that is in view; see `ContextMethod.next_logprobs`."""
        with calls.within(self.full):
            return self.full.next_logprobs(self.viewed(state.texts(), state.first_B.tolist()))

    def continuation(self, state: TextState, prompts: Sequence[Sequence[int]]) -> Callable[[Tensor | None], Tensor]:
        """A text that is read anew only after searches."""
        return _Continuation(self, state, prompts)

    def check_state(self, state: TextState) -> None:
        """The text is one of the backbone's tokens."""
        super().check_state(state)
        states.within("length_B", state.length_B, 0, state.tokens_BS.shape[1])
        states.within("tokens_BS", state.tokens_BS, 0, self.backbone.vocab_size - 1)
        states.within("first_B", state.first_B, 1, self.view.stride)

    def anew(self, position: int, first: int) -> bool:
        """Whether a search is made in front of the token at a position."""
        return self.view.searched(position, first) == position

    def in_view(self, text: list[int], first: int) -> list[int]:
        """The tokens from which the next one after a text is predicted."""
        view, searched = self.view, self.view.searched(len(text), first)
        cuts = range(0, view.chunks(searched) * view.chunk, view.chunk)
        chunks = [text[begin : begin + view.chunk] for begin in cuts]
        best = self.search.best(chunks, text[max(0, searched - view.query) : searched], view.k)
        return [token for number in best for token in chunks[number]] + text[len(chunks) * view.chunk :]

    def viewed(self, texts: Sequence[list[int]], firsts: Sequence[int]) -> LocalState:
        """The state of full attention after what is in view at the end of every text; an empty one has nothing."""
        views = [self.in_view(text, first) for text, first in zip(texts, firsts, strict=True)]
        tokens_BT, lengths_B = pad(views, self.backbone.device)
        return self.full.read(self.full.start(len(views)), tokens_BT, lengths_B, logprobs=False)[0]

    def _scored(self, after: TextState, begin_B: Tensor, tokens_BT: Tensor) -> Tensor:
        """`logprobs_BT` of the tokens of a text from its begin on."""
        texts, firsts = after.texts(), after.first_B.tolist()
        logprobs_BT = torch.zeros(tokens_BT.shape, dtype=torch.float32, device=tokens_BT.device)
        done_B, count_B = torch.zeros_like(begin_B), after.length_B - begin_B
        while bool((done_B < count_B).any()):
            position_B = begin_B + done_B
            room_B = torch.tensor([self.view.room(*pair) for pair in zip(position_B.tolist(), firsts, strict=True)])
            take_B = torch.minimum(count_B - done_B, room_B)
            read = zip(texts, position_B.tolist(), take_B.tolist(), strict=True)
            taken = Taken(done_B, take_B, tokens_BT)
            with calls.within(self.full):
                # A row that has ended has no view.
                viewed = self.viewed([text[: end * (take > 0)] for text, end, take in read], firsts)
                _, logprobs_Bt = self.full.read(viewed, taken.tokens_Bt, take_B)
            assert logprobs_Bt is not None
            taken.put(logprobs_Bt, logprobs_BT)
            done_B = done_B + take_B
        return logprobs_BT


class _Continuation:
    """Texts continued by their prompts, and then by one chosen token after the other."""

    def __init__(self, method: BM25, state: TextState, prompts: Sequence[Sequence[int]]) -> None:
        self.method, self.firsts = method, state.first_B.tolist()
        self.texts = [text + list(prompt) for text, prompt in zip(state.texts(), prompts, strict=True)]
        self.viewed = method.full.start(len(prompts))

    @torch.no_grad()
    def __call__(self, chosen_B: Tensor | None) -> Tensor:
        """`logprobs_BV` after one more token of every row."""
        method, rows = self.method, range(len(self.texts))
        if chosen_B is not None:
            for text, token in zip(self.texts, chosen_B.tolist(), strict=True):
                text.append(token)
        anew = [row for row in rows if chosen_B is None or method.anew(len(self.texts[row]), self.firsts[row])]
        others = [row for row in rows if row not in anew]
        parts = []
        with calls.within(method.full):
            if anew:
                parts.append(method.viewed([self.texts[row] for row in anew], [self.firsts[row] for row in anew]))
            if others and chosen_B is not None:
                tokens_B1 = chosen_B[others][:, None].to(method.backbone.device)
                parts.append(method.full.read(self.viewed.index(others), tokens_B1, logprobs=False)[0])
            order = sorted(rows, key=(anew + others).__getitem__)
            self.viewed = states.joined(parts).index(order)
            return method.full.next_logprobs(self.viewed)


def _appended(state: TextState, tokens_BT: Tensor, count_B: Tensor) -> TextState:
    """The text with each row's first `count_B` tokens after it."""
    length_B = state.length_B + count_B
    slots, device = int(length_B.max()), state.device
    steps_T = torch.arange(tokens_BT.shape[1], device=device)
    # Padding goes to one more place, which is left out.
    places_BT = torch.where(steps_T < count_B.to(device)[:, None], state.length_B.to(device)[:, None] + steps_T, slots)
    old_BS = torch.nn.functional.pad(state.tokens_BS, (0, slots + 1 - state.tokens_BS.shape[1]))
    tokens_BS = old_BS.scatter(1, places_BT, tokens_BT.to(torch.int32))[:, :slots]
    return dataclasses.replace(state, tokens_BS=tokens_BS, length_B=length_B)
