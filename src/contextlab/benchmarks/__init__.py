"""Benchmarks: a task is data, a protocol, a prompt and a metric."""
