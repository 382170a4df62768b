"""TRIME (Zhong et al., EMNLP 2022): a next-token distribution that memory takes part in, in training as in use."""

from __future__ import annotations

from contextlab.methods.trime.config import TRIMEConfig
from contextlab.methods.trime.method import TRIME

__all__ = ["TRIME", "TRIMEConfig"]
