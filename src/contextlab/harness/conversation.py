"""A conversation about a text: questions and answers, one after another, in one state of a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track

from contextlab.benchmarks.prompts import MARK, without_bos
from contextlab.benchmarks.protocols.answers import last, stop_tokens
from contextlab.errors import UserError
from contextlab.method import AnyMethod, Lengths, State
from contextlab.writing import Writer, pad

if TYPE_CHECKING:
    from contextlab.backbone import Backbone

PIECE = 512
"""Tokens of the text that are read in one call, where that changes nothing, so that progress can be shown."""
BYTES_OF_CHARACTER = 4
UNFINISHED = "\ufffd"
"""The last character of a text whose last token ends within a character."""


@dataclasses.dataclass(frozen=True)
class Turns:
    """The text around the turns of a conversation.

    Attributes:
        introduction: once, before the first question.
        before: before every question.
        after: after every question, up to the beginning of the answer.
        end: after every answer.
    """

    introduction: str
    before: str
    after: str
    end: str


PLAIN = Turns("", "\n\nQuestion: ", "\nAnswer:", "")


def turns(backbone: Backbone) -> Turns:
    """The turns of the backbone's chat template; plain questions and answers where it has none."""
    tokenizer = backbone.tokenizer
    if not tokenizer.chat_template:
        return PLAIN
    exchange = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]
    ended = tokenizer.apply_chat_template(exchange, tokenize=False)
    continued = tokenizer.apply_chat_template([*exchange, exchange[0]], tokenize=False, add_generation_prompt=True)
    first, _, later = continued.partition(MARK)
    opening = without_bos(first, later, tokenizer.bos_token)
    end = ended.rpartition(MARK)[2]
    _, _, between, after = continued.split(MARK)
    before = between.removeprefix(end)
    # Where a template writes the first question otherwise than later ones, what stands before it is left out.
    introduction = opening.removesuffix(before) if opening.endswith(before) else ""
    return Turns(introduction, before, after, end)


class Conversation:
    """Questions about a text that was read once; every question and answer becomes part of the state.

    The text stands before the conversation, outside of the chat template; with a backbone that has none, questions and
    answers are plain text. An interrupted call leaves the state after the last call of the method that ended.

    Args:
        method: that reads and answers.
        max_new_tokens: the most tokens of an answer.
        temperature: 0 takes the most probable token, otherwise samples.
        seed: of the sampling.
    """

    def __init__(
        self, method: AnyMethod, *, max_new_tokens: int = 256, temperature: float = 0.0, seed: int = 0
    ) -> None:
        self.method, self.max_new_tokens = method, max_new_tokens
        self._sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        self._turns = turns(method.backbone)
        # Answers in a chat template may have several lines.
        self._stop = stop_tokens(method.backbone, lines=self._turns is PLAIN)
        opening, empty = method.backbone.with_bos([]), method.start()
        self._state: State = self._after(empty, opening) if opening else empty
        self._after_text, self._unread = self._state, list[int]()

    @property
    def state(self) -> State:
        """The state after all that was said."""
        return self._state

    def read(self, text: str, *, tokens: int | None = None, progress: bool = False) -> int:
        """Begin again with a text, and return how many tokens it has.

        Args:
            text: that questions are about.
            tokens: the most tokens read of it, its last ones.
            progress: whether to show progress on standard error.

        Raises:
            UserError: when the method cannot read it, and a question after it, as one text.
        """
        backbone = self.method.backbone
        text_tokens = last(backbone.encode(text.rstrip()), tokens)
        introduction = backbone.encode(self._turns.introduction) if self._turns.introduction else []
        whole = backbone.with_bos(text_tokens + introduction)
        self._check_room(len(whole), "keep its end only with --tokens, or use a backbone with more positions")
        step = PIECE if self.method.capabilities.exact_streaming else max(len(whole), 1)
        state: State = self.method.start(ahead=Lengths(len(whole), self.max_new_tokens))
        pieces = range(0, len(whole), step)
        for start in track(pieces, "reading", console=Console(stderr=True), transient=True, disable=not progress):
            state = self._after(state, whole[start : start + step])
        self._begin(state)
        return len(text_tokens)

    def ask(self, question: str) -> Generator[str, None, None]:
        """The answer in parts, each as soon as it is written; when it is left early, what was written stays said.

        Raises:
            UserError: when the conversation has become longer than the method can read as one text.
        """
        backbone, words = self.method.backbone, self._turns
        self._catch_up()
        prompt = backbone.encode(f"{words.before}{question}{words.after}")
        self._check_room(int(self._state.length_B) + len(prompt), "forget the conversation with /forget")
        # An interrupt until here leaves the question unsaid.
        if self.method.capabilities.exact_streaming:
            self._state = self._after(self._state, prompt)
            answered: Iterable[int] = self._streamed()
        else:
            answered = self._at_once(prompt)
        try:
            yield from parts(backbone.decode, answered)
        finally:
            self._unread += backbone.encode(words.end) if words.end else []

    def forget(self) -> None:
        """Go back to the text alone, or to the state that was loaded."""
        self._begin(self._after_text)

    def save(self, path: Path) -> None:
        """Write the state after all that was said.

        Raises:
            UserError: when there is such a file, or it cannot be written.
        """
        if path.exists():
            raise UserError(f"{path} exists: name a new file.")
        self._catch_up()
        self._state.save(path)

    def load(self, path: Path) -> None:
        """Go on from a state that `save` wrote; `forget` leads back to it.

        Raises:
            UserError: when the file is broken, or holds the state of another method, backbone or settings.
        """
        self._begin(self.method.load_state(path))

    def _begin(self, state: State) -> None:
        self._after_text, self._state, self._unread = state, state, []

    def _streamed(self) -> Iterator[int]:
        """The tokens of an answer; each is read when the next one is wanted, or else before the next question."""
        writer = Writer(1, (), **self._sampling)
        for _ in range(self.max_new_tokens):
            ((token,),) = writer.write(1, lambda _: self.method.next_logprobs(self._state))
            if token in self._stop:
                return
            self._unread = [token]
            yield token
            self._state, self._unread = self._after(self._state, [token]), []

    def _at_once(self, prompt: list[int]) -> list[int]:
        """The tokens of an answer of a method for which a text that is read in parts is another text."""
        options = {"max_new_tokens": self.max_new_tokens, "stop": self._stop, **self._sampling}
        with torch.set_grad_enabled(self.method.capabilities.needs_gradients):
            (written,) = self.method.generate(self._state, [prompt], **options)
        self._unread = prompt + written
        return written

    def _catch_up(self) -> None:
        """Read what was said and not read."""
        if self._unread:
            self._state, self._unread = self._after(self._state, self._unread), []

    def _after(self, state: State, tokens: list[int]) -> State:
        with torch.set_grad_enabled(self.method.capabilities.needs_gradients):
            tokens_BT = pad([tokens], state.device)[0]
            after: State = self.method.read(state, tokens_BT, logprobs=False)[0]
        return after

    def _check_room(self, tokens: int, remedy: str) -> None:
        limit = self.method.capabilities.max_context
        if limit is not None and limit < tokens + self.max_new_tokens:
            raise UserError(
                f"{type(self.method).__name__} reads at most {limit} tokens as one on {self.method.backbone.name}, and "
                f"{tokens} and an answer of {self.max_new_tokens} are more: {remedy}."
            )


def parts(decode: Callable[[list[int]], str], tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens in parts, each as soon as its characters are whole."""
    read: list[int] = []
    shown, unfinished = 0, 0
    for token in tokens:
        read.append(token)
        text = decode(read)
        unfinished = unfinished + 1 if text.endswith(UNFINISHED) else 0
        # What is no character after its last possible byte never becomes one.
        if unfinished % BYTES_OF_CHARACTER == 0 and len(text) > shown:
            yield text[shown:]
            shown = len(text)
    if read and len(text := decode(read)) > shown:
        yield text[shown:]
