from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import NATS, json_lines, line_of, result, store

from contextlab.errors import UserError
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import Options


def test_runs_of_different_code_are_drawn_only_where_the_caption_may_name_them(tmp_path: Path) -> None:
    for number, (method, nats) in enumerate(NATS.items()):
        run = result(method, nats, provenance={"commit": "ab"[number // 2] * 40})
        lines = [line_of(name, nats, index=n) for n, name in enumerate("xyz")]
        store(tmp_path / run.run_id, run, json_lines(*lines))
    with pytest.raises(UserError, match=r"2 states of the code .*--mixed"):
        picture("pareto", [tmp_path])
    options = Options(baseline="none")
    said = "Runs come from 2 states of the code: aaaaaaa (window, sliding), bbbbbbb (full)."
    assert picture("pareto", [tmp_path], options, mixed=True).caption.endswith(said)
    assert "code" not in picture("pareto", [tmp_path], options, where=["commit=aaaaaaa*"]).caption
