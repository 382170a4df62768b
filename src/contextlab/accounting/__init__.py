"""Cost of a method: model FLOPs, peak memory, time and state size, by phase."""
