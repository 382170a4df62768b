"""EVALM (Li et al. 2023, "In-Context Learning with Many Demonstration Examples") and the causal EVA it stands on."""

from __future__ import annotations

from contextlab.methods.evalm.causal_eva import CausalEVA
from contextlab.methods.evalm.config import PAPER, EVALMConfig
from contextlab.methods.evalm.method import EVALM, eva_attention_of

__all__ = ["EVALM", "PAPER", "CausalEVA", "EVALMConfig", "eva_attention_of"]
