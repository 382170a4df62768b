from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import contextlab
from contextlab.errors import UserError
from contextlab.harness import conversation as conversations
from contextlab.harness.conversation import PLAIN, Conversation, Turns, parts, turns
from contextlab.method import AnyMethod, Capabilities, Lengths, State

CHATML = (
    "{% if messages[0].role != 'system' %}<system>Help.</system>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
INSTRUCTIONS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }};{% endif %}{% endfor %}"
)
MARKED = "{{ bos_token }}system Help.{% for m in messages %}{{ bos_token }}{{ m.role }} {{ m.content }}.{% endfor %}"
UNLIKE = "{% for m in messages %}{{ 'first' if loop.first else 'then' }} {{ m.content }}.{% endfor %}!"
TEXT = "The key is red. "


def method(name: str = "sliding(N=16)", template: str | None = None) -> AnyMethod:
    loaded = contextlab.load(name, backbone="tiny-llama", device="cpu")
    loaded.backbone.tokenizer.chat_template = template
    return loaded


def told(template: str | None = None, name: str = "sliding(N=16)", **options: Any) -> Conversation:
    conversation = Conversation(method(name, template), **{"max_new_tokens": 6, **options})
    conversation.read(TEXT)
    return conversation


def answer(conversation: Conversation, question: str) -> str:
    return "".join(conversation.ask(question))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, PLAIN),
        (CHATML, Turns("<system>Help.</system>", "<user>", "</user><assistant>", "</assistant>")),
        (INSTRUCTIONS, Turns("", "[INST] ", " [/INST]", ";")),
        (MARKED, Turns("<|end|>system Help.", "<|end|>user ", ".", ".")),
        (UNLIKE, Turns("", ".then ", ".!", ".!")),
    ],
)
def test_the_turns_of_a_chat_template(template: str | None, expected: Turns) -> None:
    assert turns(method(template=template).backbone) == expected


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize(
    "name", ["sliding(N=16)", "window(N=16)", "evalm(W=16,c=4,weights=none)", "hso(context=16)", "closed-book"]
)
def test_answers_are_those_of_the_whole_text_so_far(template: str | None, name: str) -> None:
    """The text, the questions and what was answered are one text for the method, however it was divided into calls."""
    conversation = told(template, name)
    backbone, words = conversation.method.backbone, turns(conversation.method.backbone)
    options = {"max_new_tokens": 6, "stop": conversation._stop}
    context = backbone.encode(TEXT.rstrip()) + (backbone.encode(words.introduction) if words.introduction else [])
    ahead = Lengths(len(context), 6)
    for question in ("What?", "Why?", "Who?"):
        prompt = backbone.encode(f"{words.before}{question}{words.after}")
        state = conversation.method.start(ahead=ahead)
        with torch.set_grad_enabled(conversation.method.capabilities.needs_gradients):
            state, _ = conversation.method.read(state, torch.tensor([context]), logprobs=False)
            (written,) = conversation.method.generate(state, [prompt], **options)
        assert answer(conversation, question) == backbone.decode(written)
        context += prompt + written + (backbone.encode(words.end) if words.end else [])


def test_forgetting_goes_back_to_the_text_alone() -> None:
    conversation = told(CHATML)
    first = answer(conversation, "What?")
    after = conversation.state
    answer(conversation, "Why?")
    conversation.forget()
    assert answer(conversation, "What?") == first
    assert torch.equal(conversation.state.length_B, after.length_B)


@pytest.mark.parametrize("template", [None, CHATML])
def test_a_saved_state_goes_on_as_the_conversation_would_have(template: str | None, tmp_path: Path) -> None:
    conversation, other = told(template), Conversation(method(template=template), max_new_tokens=6)
    answer(conversation, "What?")
    conversation.save(tmp_path / "state")
    other.load(tmp_path / "state")
    first = answer(other, "Why?")
    assert first == answer(conversation, "Why?")
    answer(other, "Who?")
    other.forget()
    assert answer(other, "Why?") == first


def test_no_file_is_lost_and_no_foreign_state_is_taken(tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("text")
    conversation = told()
    with pytest.raises(UserError, match="exists: name a new file"):
        conversation.save(book)
    assert book.read_text() == "text"
    with pytest.raises(UserError):
        conversation.load(book)
    with pytest.raises(UserError):
        conversation.load(tmp_path / "absent")
    conversation.save(tmp_path / "state")
    with pytest.raises(UserError, match="another method"):
        told(name="window(N=16)").load(tmp_path / "state")
    conversation.forget()
    assert answer(conversation, "What?") == answer(told(), "What?")


def test_an_answer_that_is_left_early_stays_said_as_far_as_it_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conversations, "parts", lambda _, tokens: map(str, tokens))
    conversation, shorter = told(CHATML, max_new_tokens=6), told(CHATML, max_new_tokens=3)
    answering = conversation.ask("What?")
    for _ in range(3):
        next(answering)
    answering.close()
    assert answer(shorter, "What?")
    shorter.max_new_tokens = 6
    assert answer(conversation, "Why?") == answer(shorter, "Why?")


@pytest.mark.parametrize("call", range(4))
def test_an_interrupted_call_leaves_the_conversation_before_it(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation, whole = told(CHATML), told(CHATML)
    read, calls = conversation.method.read, iter(range(100))

    def interrupted(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return read(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(conversation.method, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answer(conversation, "What?")
    if call:
        whole.max_new_tokens = call
        answer(whole, "What?")
        whole.max_new_tokens = 6
    assert answer(conversation, "Why?") == answer(whole, "Why?")


def test_a_conversation_longer_than_a_method_reads_is_refused_and_goes_on_after_forgetting() -> None:
    conversation = told(name="full", max_new_tokens=8)
    first = answer(conversation, "What is red?")
    conversation.max_new_tokens = 100
    with pytest.raises(UserError, match=r"forget the conversation with /forget\.$"):
        answer(conversation, "What is red?")
    conversation.max_new_tokens = 8
    conversation.forget()
    assert answer(conversation, "What is red?") == first
    with pytest.raises(UserError, match="--tokens"):
        conversation.read("word " * 40)
    assert conversation.read("word " * 40, tokens=20) == 20


@pytest.mark.parametrize(("exact", "expected"), [(True, [512, 512, 76]), (False, [1100])])
def test_a_method_that_reads_otherwise_in_parts_reads_the_text_at_once(
    exact: bool, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    conversation = Conversation(method(), max_new_tokens=2)
    read = conversation.method.read

    def noted(state: State, tokens_BT: Tensor, **options: bool) -> tuple[State, Tensor | None]:
        lengths.append(tokens_BT.shape[1])
        return read(state, tokens_BT, **options)

    monkeypatch.setattr(type(conversation.method), "capabilities", Capabilities(exact_streaming=exact))
    monkeypatch.setattr(conversation.method, "read", noted)
    conversation.read("a" * 1100)
    assert lengths == expected


def test_samples_depend_on_the_seed_alone() -> None:
    first, again, other = (answer(told(temperature=2.0, seed=seed), "What?") for seed in (1, 1, 2))
    assert first == again != other


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 255), max_size=12))
def test_text_is_streamed_in_whole_characters_and_nothing_is_lost(text: str, noise: list[int]) -> None:
    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    assert "".join(parts(decode, text.encode())) == text
    assert all("\ufffd" not in part for part in parts(decode, text.replace("\ufffd", "").encode()))
    assert decode(list(text.encode()) + noise).startswith("".join(parts(decode, text.encode())))


def test_streaming_does_not_wait_for_the_end() -> None:
    drawn: list[int] = []

    def tokens() -> Iterator[int]:
        for token in b"abc":
            drawn.append(token)
            yield token

    streamed = parts(lambda read: bytes(read).decode(), tokens())
    assert (next(streamed), len(drawn)) == ("a", 1)
