"""What a card tells of its corpus and its curve."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_corpus import text, tiny

from contextlab import cards
from contextlab.training import card
from contextlab.training.corpus import prepare
from contextlab.training.loop import TrainingProgress

COSTS = st.tuples(st.integers(0, 10**18), st.floats(0, 1e6), st.integers(0, 10**12))
"""FLOPs, seconds and tokens."""


def test_a_card_names_works_licences_and_digests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "books"
    folder.mkdir()
    texts = [text(n, 50) for n in range(6)]
    (folder / "a.txt").write_text("".join(f"{document}\f\n" for document in texts))
    about = [
        {
            "title": f"T{n}",
            "licence": "CC0" if n < 4 else "public domain",
            "sha256": hashlib.sha256(document.encode()).hexdigest(),
        }
        for n, document in enumerate(texts)
    ]
    (folder / "index.jsonl").write_text("\n".join(map(json.dumps, about)))
    told = card._corpus(prepare(folder, tiny()))
    assert told["licences"] == ["CC0", "public domain"]
    assert [work["title"] for work in told["works"]] == [f"T{n}" for n in range(6)]
    assert sum(work["held_back"] for work in told["works"]) == len(told["held_back"]) == 2
    assert told["files"].keys() == {"a.txt", "index.jsonl"}
    assert told["tokens"] == sum(map(len, map(str.encode, texts)))


@given(own=COSTS, before=COSTS, flops_known=st.booleans())
def test_weights_have_cost_their_own_training_and_all_before(
    own: tuple[int, float, int], before: tuple[int, float, int], flops_known: bool
) -> None:
    trainer = SimpleNamespace(
        progress=TrainingProgress(tokens=own[2], flops=own[0], seconds=own[1]),
        method=SimpleNamespace(backbone=SimpleNamespace(device=torch.device("cpu"))),
    )
    flops = before[0] if flops_known else None
    earlier = SimpleNamespace(cost=cards.TrainingCost(flops=flops, seconds=before[1], tokens=before[2]))
    cost = card._cost(cast(Any, trainer), cast(Any, earlier))
    assert cost["flops"] == (own[0] + before[0] if flops_known else None)
    assert cost["seconds"] == own[1] + before[1]
    assert cost["tokens"] == own[2] + before[2]
    alone = card._cost(cast(Any, trainer), None)
    assert (alone["flops"], alone["seconds"], alone["tokens"]) == own


@pytest.mark.parametrize("count", [0, 1, 39, 40, 41, 1000])
def test_a_curve_is_thinned_to_a_few_points(count: int) -> None:
    steps = [{"tokens": n, "loss": float(n)} for n in range(count)]
    parts = card._parts(steps)
    assert [step for part in parts for step in part] == steps
    assert len(parts) <= card.POINTS
    assert not count or card._mean(parts[0], "loss") == pytest.approx((len(parts[0]) - 1) / 2)
