"""Tokens of a context and of its continuation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlab.backbone import Backbone


def join(backbone: Backbone, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Tokens of a context and of its continuation, by the rule of lm-evaluation-harness.

    White space at the end of the context moves to the continuation, since most tokenizers put it before a word. Both
    are then encoded as one text. The continuation's tokens are those after the number of tokens that the context has
    alone, also where the tokenizer merges characters of both.
    """
    kept = context.rstrip()
    context_tokens = backbone.encode(kept)
    return context_tokens, backbone.encode(context + continuation)[len(context_tokens) :]
