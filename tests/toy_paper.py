"""A small paper with recipes that run in a second on a random model."""

from __future__ import annotations

from typing import Any

import stored_runs

from contextlab.harness.stored import Result
from contextlab.reports.papers.schema import Paper

RUN = {
    "methods": ["window", "closed-book"],
    "rows": ["plain", "new"],
    "task": "pg22/S1(tokens=48)",
    "limit": 2,
    "tokens": 48,
    "read": {"books": "token_perplexity"},
}
TABLE: dict[str, Any] = {
    "name": "table1",
    "label": "Table 1",
    "section": "3",
    "about": "Perplexity of books.",
    "keys": ["model"],
    "columns": [{"name": "books", "unit": "perplexity"}, {"name": "questions", "unit": "accuracy %"}],
    "rows": [["plain", "20.0", "50.0"], ["new", "15.0", "62.5 (1.5)"]],
    "baselines": ["plain"],
    "corrections": [
        {"row": "new", "column": "books", "printed": "15.0", "corrected": "16.0", "reason": "a sum was wrong"}
    ],
    "data": "many books",
    "size": "100 books",
    "remarks": ["The text says 14.0."],
    "embedded": {"runs": [RUN], "differs": ["Other books."]},
    "paper": {"backbone": "tiny-llama", "tokens": 1_000_000, "context": 1000, "runs": [RUN]},
}
FIGURE: dict[str, Any] = {
    "name": "figure2",
    "label": "Figure 2",
    "section": "4",
    "about": "Memory against length.",
    "keys": [],
    "columns": [],
    "rows": [],
    "says": ["The memory of *plain* grows."],
    "data": "books | papers",
    "size": "not stated",
    "not_here": "nothing measures it",
    "paper": {"missing": "the model was lost", "tokens": 5, "context": 5},
}
MODEL = {"about": "Toy 1B", "trained": "2B tokens", "parameters": 1_000_000_000, "layers": 10, "width": 100}


def paper(**changes: Any) -> Paper:
    """The paper; changes are of its table."""
    about = {"name": "toy", "title": "Toys", "authors": "Doe et al.", "venue": "nowhere", "arxiv": "0000.00000"}
    return Paper.model_validate({**about, "model": MODEL, "entry": [{**TABLE, **changes}, FIGURE]})


def result(value: float = 18.0, method: str = "window", **changes: Any) -> Result:
    """A stored result of three texts, without their parts."""
    cost = {"flops": 3 * 10**12, "peak_bytes": 4 * 2**20, "seconds": 2.0, "tokens": 100}
    metric = {"value": value, "low": value - 1, "high": value + 2, "n": 3}
    toy = stored_runs.result(
        method,
        method_config={"N": 1024, "rank": 8},
        split="S1",
        tokens=48,
        data={"note": "generated", "sha256": "0"},
        measure={"name": "nats_per_token", "higher_is_better": False},
        metrics={"token_perplexity": metric, "accuracy": {**metric, "value": 0.5, "low": None, "high": None}},
        cost={"contextualize": {**cost, "flops": 10**12}, "query": cost},
        state={"bytes": 2**20, "floats": 2**18, "tokens": 1},
        provenance={"device": "cpu (toy)", "started": "2026"},
        parts=None,
    )
    return stored_runs.changed(toy, **changes)
