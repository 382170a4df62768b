from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contextlab.errors import UserError
from contextlab.reports.plots.chosen import PictureOptions
from contextlab.reports.plots.curves import MOST, training, trainings
from contextlab.trained import SHIPPED

VALID = {"loss": 3.0, "wrong": 3.1, "content_gain": 0.1, "content_error": 0.05, "share": None}


def step(tokens: int, nats: float) -> dict[str, Any]:
    return {"tokens": tokens, "loss": 99.0, "nats": nats}


def curve(folder: Path, lines: list[dict[str, Any]], tail: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "curve.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + tail)
    return folder


def card(folder: Path, label: str, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"label": label, "method": label.partition("(")[0], "curve": [{"tokens": 0, **VALID}], "losses": []}
    (folder / "card.json").write_text(json.dumps(content | fields))
    return folder


def test_steps_and_validations_are_panels(tmp_path: Path) -> None:
    lines = [{"tokens": 0, "validation": VALID}, step(10, 4.0), step(20, 3.5), {"tokens": 20, "validation": VALID}]
    losses, held_back, gains = training([curve(tmp_path / "run", lines)], PictureOptions()).panels
    assert (losses.series[0].x, losses.series[0].y) == ((10.0, 20.0), (4.0, 3.5))
    assert (held_back.series[0].x, held_back.series[0].y) == ((0.0, 20.0), (3.0, 3.0))
    assert gains.series[0].y == (0.1, 0.1)
    assert gains.series[0].intervals[0] == pytest.approx((0.05, 0.15))


def test_a_running_training_is_drawn_without_its_incomplete_line(tmp_path: Path) -> None:
    folder = curve(tmp_path / "run", [step(10, 4.0)], tail='{"tokens": 2')
    (losses,) = training([folder], PictureOptions()).panels
    assert losses.series[0].x == (10.0,)


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 6 * MOST, 6 * MOST + 5])
def test_a_straight_curve_stays_where_it_is_when_it_is_averaged(count: int, tmp_path: Path) -> None:
    lines = [step(10 * n + 3, 50 - n / 100) for n in range(count)]
    (losses,) = training([curve(tmp_path / "run", lines)], PictureOptions()).panels
    (series,) = losses.series
    assert len(series.x) <= MOST
    assert list(series.y) == pytest.approx([50 - (x - 3) / 1000 for x in series.x])


def test_long_curves_are_averaged_and_keep_their_mean(tmp_path: Path) -> None:
    lines = [step(n, float(n % 7)) for n in range(6 * MOST)]
    (losses,) = training([curve(tmp_path / "run", lines)], PictureOptions()).panels
    (line,) = losses.series
    assert len(line.x) == MOST
    assert sum(line.y) / MOST == pytest.approx(sum(line["nats"] for line in lines) / len(lines))


def test_several_trainings_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    card(tmp_path / "a", "longmem(K=32,M=1)")
    card(tmp_path / "b", "longmem(K=64,M=1)")
    card(tmp_path / "c", "sliding(rank=8)")
    card(tmp_path / "d", "sliding(rank=8)")
    labels = [series.label for series in training([tmp_path], PictureOptions()).panels[0].series]
    assert labels == ["longmem(K=32)", "longmem(K=64)", "sliding #1", "sliding #2"]


def test_the_weights_of_the_package_have_curves() -> None:
    cards = [json.loads(path.read_text()) for path in SHIPPED.glob("*/card.json")]
    stored = sorted((card["label"], [line["tokens"] for line in card["curve"]]) for card in cards)
    known = trainings([SHIPPED])
    assert sorted((course.label, [tokens for tokens, _ in course.validations]) for course in known) == stored


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"curve": [{"tokens": 1}]}', '{"curve": 3}', '{"curve": [{"tokens": "x"}]}']
)
def test_a_broken_card_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "card.json").write_text(content)
    with pytest.raises(UserError) as caught:
        training([tmp_path], PictureOptions())
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_trainings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contextlab train"):
        training([tmp_path], PictureOptions())
