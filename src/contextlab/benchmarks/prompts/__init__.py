"""Prompts: text files in this folder, questions in a chat template, and tokens of a context and its continuation."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from contextlab.errors import UserError, unknown

if TYPE_CHECKING:
    from contextlab.backbone import Backbone


Wording = Literal["plain", "chat", "chat-question"]


PLACES = re.compile(r"\{(\w+)\}")
"""Placeholders of a text."""
MARK = "what-the-user-says"


def prompt(name: str) -> str:
    """The text of `<name>.txt`, without the line end at the end of the file; a text with a placeholder is itself one.

    Raises:
        UserError: when there is no such prompt.
    """
    if "{" in name:
        return name
    folder = resources.files(__name__)
    try:
        return (folder / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    except OSError:
        names = sorted(file.name.removesuffix(".txt") for file in folder.iterdir() if file.name.endswith(".txt"))
        raise unknown("prompt", name, names) from None


@functools.cache
def published(name: str) -> dict[str, Any]:
    """The prompts of a suite as published, from `<name>.json`, which states their source and licence."""
    content: dict[str, Any] = json.loads((resources.files(__name__) / f"{name}.json").read_text(encoding="utf-8"))
    return content


def formatted(text: str, names: Mapping[str, str]) -> str:
    """A text whose placeholders have other names, in the form that `str.format` takes; other brackets stay.

    Args:
        text: with placeholders.
        names: by placeholder, its new name.
    """
    text = text.replace("{", "{{").replace("}", "}}")
    for place, name in names.items():
        text = text.replace(f"{{{{{place}}}}}", f"{{{name}}}")
    return text


def user_turn(backbone: Backbone) -> tuple[str, str]:
    """The text of the chat template before and after a user's message, up to the beginning of the answer.

    The BOS token, from which every state starts, is left out as in `without_bos`.

    Raises:
        UserError: when the backbone has no chat template.
    """
    tokenizer = backbone.tokenizer
    if not tokenizer.chat_template:
        raise UserError(f"{backbone.name} has no chat template: leave prompt= or chat= out, or use another backbone.")
    messages = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition(MARK)
    return without_bos(before, after, tokenizer.bos_token), after


def without_bos(before: str, after: str, bos: str | None) -> str:
    """The text `before` a message without BOS, unless BOS marks later turns as well and is a part of the first."""
    text = before.removeprefix(bos or "")
    return before if bos and bos in text + after else text


def between_turns(backbone: Backbone) -> str:
    """The text of the chat template between an answer and the next message of the user.

    Raises:
        UserError: when the backbone has no chat template.
    """
    user_turn(backbone)
    exchange = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]
    messages = [*exchange, exchange[0]]
    text: str = backbone.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text.split(MARK)[2]


def join(backbone: Backbone, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of a context and of its continuation, by the rule of lm-evaluation-harness.

    White space at the end of the context moves to the continuation, since most tokenizers put it before a word. Both
    are then encoded as one text. The continuation's tokens are those after the number of tokens that the context has
    alone, also where the tokenizer merges characters of both.
    """
    stripped = context.rstrip()
    context_tokens = backbone.encode(stripped)
    return context_tokens, backbone.encode(context + continuation)[len(context_tokens) :]
