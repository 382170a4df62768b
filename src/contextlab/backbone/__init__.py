"""Backbones: any causal language model of transformers with its tokenizer; the only room that knows checkpoints."""

from __future__ import annotations

from contextlab.backbone.loading import compute_device, known, load, load_tokenizer, resolve, wrap
from contextlab.backbone.low_rank import Linear, UpdatedBackbone, linear_layers
from contextlab.backbone.own import OwnBackbone
from contextlab.backbone.projections import KeyValueProjections
from contextlab.backbone.sentences import SentenceEncoder
from contextlab.backbone.stretched import Rope, StretchedBackbone, check_rotary
from contextlab.backbone.toys import PAPER_POSITIONS, PAPER_SHAPES, PAPER_VOCABULARY, REFUSED, TINY
from contextlab.backbone.wrapper import Backbone
from contextlab.tensors import versions, weights_digest

__all__ = [
    "PAPER_POSITIONS",
    "PAPER_SHAPES",
    "PAPER_VOCABULARY",
    "REFUSED",
    "TINY",
    "Backbone",
    "KeyValueProjections",
    "Linear",
    "OwnBackbone",
    "Rope",
    "SentenceEncoder",
    "StretchedBackbone",
    "UpdatedBackbone",
    "check_rotary",
    "compute_device",
    "known",
    "linear_layers",
    "load",
    "load_tokenizer",
    "resolve",
    "versions",
    "weights_digest",
    "wrap",
]
