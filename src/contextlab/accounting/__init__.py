"""Cost of a method: model FLOPs, peak memory, time and state size, by phase."""

COUNTING = 1
"""Version of how examples are drawn and costs are counted: raise it with every change after which the same code of
method, task and backbone would have other numbers. It is part of every run's identity, in place of the code of
`accounting` and `harness`."""
