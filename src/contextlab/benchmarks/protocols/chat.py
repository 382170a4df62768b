"""Questions in the chat template of an instruction-tuned backbone, as in GenerativeAdapter's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.backbone import Backbone

Wording = Literal["plain", "chat", "chat-question"]

MARK = "what-the-user-says"


def user_turn(backbone: Backbone) -> tuple[str, str]:
    """The text of the chat template before and after a user's message, up to the beginning of the answer.

    The BOS token, from which every state starts, is left out of the first.

    Raises:
        UserError: when the backbone has no chat template.
    """
    tokenizer = backbone.tokenizer
    if not tokenizer.chat_template:
        raise UserError(f"{backbone.name} has no chat template: leave prompt= out or use another backbone.")
    messages = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    before, _, after = text.partition(MARK)
    return before.removeprefix(tokenizer.bos_token or ""), after
