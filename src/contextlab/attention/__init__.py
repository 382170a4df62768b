"""Attention of unmodified transformers models, done by a method: the only room that knows transformers' internals."""

from __future__ import annotations

from contextlab.attention.cache import KV, Allocate, Buffers, Growth, Packing, after, empty_kv
from contextlab.attention.reader import CacheReader, Layout, sdpa
from contextlab.attention.recomputing import recomputing
from contextlab.attention.rotary import Positions, Rotary, per_head, rotate, signed
from contextlab.attention.seam import (
    Anatomy,
    Attend,
    anatomy,
    attending,
    attention_functions_kept,
    config_of,
    exclusive,
    in_this_thread,
    run_layer,
    seam,
    share_use,
    skip_rotation,
)

__all__ = [
    "KV",
    "Allocate",
    "Anatomy",
    "Attend",
    "Buffers",
    "CacheReader",
    "Growth",
    "Layout",
    "Packing",
    "Positions",
    "Rotary",
    "after",
    "anatomy",
    "attending",
    "attention_functions_kept",
    "config_of",
    "empty_kv",
    "exclusive",
    "in_this_thread",
    "per_head",
    "recomputing",
    "rotate",
    "run_layer",
    "sdpa",
    "seam",
    "share_use",
    "signed",
    "skip_rotation",
]
