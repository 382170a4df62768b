"""Sweeps: grids of runs that are planned first, divided into shards, run by many workers, and merged."""
