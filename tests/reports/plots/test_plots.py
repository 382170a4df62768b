from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import NATS, json_lines, line_of, result, store

from contextlab.errors import UserError
from contextlab.reports.filters import Limit
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import PictureOptions


def test_runs_of_different_code_are_drawn_only_where_the_caption_may_name_them(tmp_path: Path) -> None:
    for number, (method, nats) in enumerate(NATS.items()):
        run = result(method, nats, provenance={"commit": "ab"[number // 2] * 40})
        lines = [line_of(name, nats, index=n) for n, name in enumerate("xyz")]
        store(tmp_path / run.run_id, run, json_lines(*lines))
    with pytest.raises(UserError, match=r"2 states of the code .*--mixed"):
        picture("pareto", [tmp_path])
    options = PictureOptions(baseline="none")
    note = "Runs come from 2 states of the code: aaaaaaa (window, sliding), bbbbbbb (full)."
    assert picture("pareto", [tmp_path], options, mixed=True).caption.endswith(note)
    assert "code" not in picture("pareto", [tmp_path], options, where=["commit=aaaaaaa*"]).caption


def test_a_limit_of_cost_leaves_runs_out_and_the_caption_says_so(tmp_path: Path) -> None:
    for number, (method, nats) in enumerate(NATS.items()):
        run = result(method, nats, state={"bytes": (number + 1) * 10**6, "floats": 1, "tokens": 1})
        lines = [line_of(name, nats, index=n) for n, name in enumerate("xyz")]
        store(tmp_path / run.run_id, run, json_lines(*lines))
    limit = Limit.parse("state=2MB")
    caption = picture("pareto", [tmp_path], PictureOptions(baseline="none"), under=[limit]).caption
    assert "left out: 1 of 3 runs by the limit state=2MB" in caption
    with pytest.raises(UserError, match="has no --under"):
        picture("training", [tmp_path], under=[limit])
