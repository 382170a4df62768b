"""How a context and what follows it become tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlab.backbone import Backbone


def join(backbone: Backbone, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of a context and of its continuation, by the rule of lm-evaluation-harness.

    White space that ends the context moves to the continuation, since most tokenizers put it before a word. Both are
    then encoded as one text, and the continuation's tokens are those behind as many as the context has alone. Where a
    tokenizer would have merged across the border, these few are what the harness scores too.
    """
    kept = context.rstrip()
    context_tokens = backbone.encode(kept)
    return context_tokens, backbone.encode(context + continuation)[len(context_tokens) :]
