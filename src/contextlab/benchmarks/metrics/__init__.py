"""Metrics with confidence intervals, and scores of written answers."""
