from __future__ import annotations

import csv
from pathlib import Path

import pytest
from toy_sweeps import suite

from contextlab.formula import FORKS
from contextlab.sweeps import survey as surveys
from contextlab.sweeps.survey import survey


def peak_bytes(folder: Path, questions: int) -> int:
    """Of one context with so many questions."""
    path = folder / f"{questions}.csv"
    with path.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(("context", "question", "answer"))
        rows.writerows(("a word", "which?", "another") for _ in range(questions))
    task = f"questions(path={path},max_new_tokens=2)"
    (run,) = survey(suite(folder / "runs", method="sliding", task=task), "tiny-llama").runs
    return run.peak_bytes


def test_answers_need_no_more_copies_of_a_state_than_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All tokens of these answers lie side by side in one pass; without them only copies of the state are left.
    monkeypatch.setattr(surveys, "_call_bytes", lambda *_: 0)
    single, several, many = (peak_bytes(tmp_path, questions) for questions in (1, FORKS, 4 * FORKS))
    assert single < several == many
    monkeypatch.setattr("contextlab.formula.FORK_BYTES", 1)
    assert peak_bytes(tmp_path, FORKS) == single
