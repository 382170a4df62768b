"""The speed of this machine."""

from __future__ import annotations

import itertools

import pytest

from contextlab.reports.papers import speed


def test_the_fastest_pass_counts_with_the_flops_of_the_embedded_models_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Passes of 9, 8, 7, 6 and 5 seconds.
    clock = iter(itertools.accumulate((0, 9, 1, 8, 1, 7, 1, 6, 1, 5)))
    monkeypatch.setattr(speed.time, "perf_counter", lambda: next(clock))
    projections = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    flops = 1024 * 2 * (2 * projections + 4 * 576 * 512)
    # Norms and embeddings are counted as if they were products.
    assert speed.speed_here() == pytest.approx(flops / 5, rel=1e-3)
