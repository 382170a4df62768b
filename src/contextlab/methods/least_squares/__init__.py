"""The context as weights in closed form, without training: a ridge regression per layer and chunk."""

from __future__ import annotations

from contextlab.methods.least_squares.config import LeastSquaresConfig
from contextlab.methods.least_squares.method import LeastSquares, LeastSquaresState

__all__ = ["LeastSquares", "LeastSquaresConfig", "LeastSquaresState"]
