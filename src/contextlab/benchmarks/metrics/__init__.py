"""Metrics with confidence intervals, and what compares an answer with the expected ones."""
