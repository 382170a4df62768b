"""Dynamic evaluation: the weights learn from every segment after it has been scored."""

from __future__ import annotations

from contextlab.methods.dynamic_eval.config import DynamicEvalConfig
from contextlab.methods.dynamic_eval.method import DynamicEval
from contextlab.methods.dynamic_eval.state import DynamicEvalState
from contextlab.methods.dynamic_eval.weights import gradient_statistics

__all__ = ["DynamicEval", "DynamicEvalConfig", "DynamicEvalState", "gradient_statistics"]
