"""The page in a browser: everything that a reader does with it."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stored_examples import accurate, keep, line, metric, of_tokens
from stored_runs import result
from test_page import NASTY

from contextlab.reports.page import page as page_of

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]

RIGHT = {"window": "aab", "full": "abb", "sinks": "ccc"}
"""Which of three candidates each method chooses in the examples e0, e1 and e2; the second is right."""


def choices(method: str) -> list[dict[str, Any]]:
    lines = []
    for n, letter in enumerate(RIGHT[method]):
        position = "abc".index(letter)
        nats = [0.5 if k == position else 1.0 + k for k in range(3)]
        record = {
            "id": f"e{n}",
            "prediction": position,
            "answer": 1,
            "correct": position == 1,
            "nats": nats,
            "context_tokens": 90,
        }
        lines.append(
            line(f"e{n}", float(position == 1), record=record, parts={"accuracy": [[float(position == 1), 1, f"e{n}"]]})
        )
    return lines


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Without a sandbox, which containers do not allow; the page is ours.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page in the browser, with everything it said and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.view = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.view.on("console", lambda message: self.said.append(message.text))
        self.view.on("pageerror", lambda error: self.said.append(str(error)))
        self.view.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.view.on("request", lambda request: self.requests.append(request.url))
        self.view.goto(file.as_uri())
        self.view.wait_for_selector("html[data-ready]")

    def column(self, table: str, number: int) -> list[str]:
        cells = self.view.locator(f"#{table} tbody tr td:nth-child({number})")
        return [text.strip() for text in cells.all_inner_texts()]

    def examples(self) -> list[str]:
        return self.column("examples-table", 1)


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    for method in RIGHT:
        keep(tmp_path, accurate(method, RIGHT[method].count("b") / 3), choices(method))
    texts = [of_tokens("book", 2.0, {"0k": 2.0})]
    texts[0]["record"]["segments"] = [2.5, 1.5]
    keep(tmp_path, result("hso", 2.0, split="S1"), texts)
    file = tmp_path / "page.html"
    file.write_text(page_of([tmp_path]), "utf-8")
    opened = Opened(browser, file)
    yield opened
    assert opened.said == []
    assert opened.requests == [file.as_uri()]
    opened.view.close()


def test_runs_are_sorted_by_any_column_in_both_directions(opened: Opened) -> None:
    head = opened.view.locator("#runs-table th", has_text="value")
    head.locator("button").click()
    assert opened.column("runs-table", 2) == ["2.000", "0.667", "0.333", "0.000"]
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert opened.column("runs-table", 2) == ["0.000", "0.333", "0.667", "2.000"]
    opened.view.locator("#runs-table th", has_text="method").locator("button").click()
    assert opened.column("runs-table", 1) == ["full", "hso", "sinks", "window"]


def test_runs_are_filtered_by_words_and_metrics_chosen(opened: Opened) -> None:
    opened.view.locator("#runs-filter").fill("pg22 tiny")
    assert len(opened.column("runs-table", 1)) == 4
    opened.view.locator("#runs-filter").fill("SINKS")
    assert opened.column("runs-table", 1) == ["sinks"]
    opened.view.locator("#runs-filter").fill("")
    opened.view.locator("#runs-metric").select_option("word_perplexity")
    assert opened.column("runs-table", 2).count("") == 3
    assert set(opened.column("runs-table", 3)) == {""}


def test_the_first_columns_are_method_value_difference_and_cost(opened: Opened) -> None:
    heads = opened.view.locator("#runs-table th").all_inner_texts()
    assert heads[:6] == ["method", "value", "difference", "TFLOPs per example", "state in MiB", "seconds per example"]
    rows = dict(zip(opened.column("runs-table", 1), opened.column("runs-table", 3), strict=True))
    assert re.fullmatch(r"\+0\.333 \[-\d\.\d+, \d\.\d+\]", rows["full"])
    assert rows["window"] == ""


def test_nothing_is_wider_than_a_phone(browser: Any, opened: Opened) -> None:
    opened.view.set_viewport_size({"width": 390, "height": 800})
    assert opened.view.evaluate("document.documentElement.scrollWidth") <= 390
    box = opened.view.locator("#runs-table tbody tr").nth(1).locator("td").nth(2).bounding_box()
    assert box["x"] + box["width"] <= 390


def test_examples_of_a_run_are_opened_beside_another_run(opened: Opened) -> None:
    opened.view.locator("#runs-table td button", has_text="full").click()
    opened.view.locator("#run-b").select_option(label="window \u00b7 pg22/S2")
    summary = opened.view.locator("#examples-summary")
    playwright.expect(summary).to_have_text("A is better in 1, B in 0, neither in 2 of 3 examples (accuracy).")
    opened.view.locator("#examples-kept").select_option("a")
    assert opened.examples() == ["e1"]
    opened.view.locator("#examples-table td button").click()
    detail = opened.view.locator("#example")
    playwright.expect(detail).to_contain_text("Example e1")
    rows = [re.sub(r"\s+", " ", text) for text in detail.locator("table").first.locator("tbody tr").all_inner_texts()]
    assert rows == [
        "candidate 0 1.000 0.500 \u2190 chosen",
        "candidate 1 (right) 0.500 \u2190 chosen 2.000",
        "candidate 2 3.000 3.000",
    ]
    assert "make it with --data" in detail.inner_text()
    opened.view.locator("#examples-kept").select_option("b")
    assert opened.examples() == []
    opened.view.locator("#examples-kept").select_option("all")
    opened.view.locator("#examples-filter").fill("2")
    assert opened.examples() == ["e2"]


def test_a_text_is_shown_along_its_segments(opened: Opened) -> None:
    opened.view.locator("#runs-table td button", has_text="hso").click()
    playwright.expect(opened.view.locator("#examples-summary")).to_have_text("1 examples (nats_per_token).")
    opened.view.locator("#examples-table td button").click()
    assert "Nats per token along the text" in opened.view.locator("#example").inner_text()


def test_everything_works_with_the_keyboard(opened: Opened) -> None:
    keys = opened.view.keyboard
    opened.view.locator("#runs-filter").focus()
    keys.type("window")
    for _ in range(3):
        keys.press("Tab")
    keys.press("Enter")
    heads = opened.view.locator("#runs-table th")
    assert heads.first.get_attribute("aria-sort") == "ascending"
    assert opened.view.evaluate("document.activeElement.textContent") == "method"
    for _ in range(heads.count()):
        keys.press("Tab")
    assert opened.view.evaluate("document.activeElement.textContent") == "window"
    keys.press("Enter")
    assert opened.view.evaluate("document.activeElement.id") == "examples"
    playwright.expect(opened.view.locator("#examples-summary")).to_contain_text("3 examples")
    opened.view.locator("#examples-table td button").first.focus()
    keys.press("Enter")
    assert opened.view.evaluate("document.activeElement.id") == "example"
    # Every control has a name that is read aloud.
    unnamed = "[...document.querySelectorAll('input, select')].filter((one) => !one.labels.length).length"
    assert opened.view.evaluate(unnamed) == 0


def test_points_of_the_picture_say_what_they_are_and_open_examples(opened: Opened) -> None:
    points = opened.view.locator("#picture-drawing .point")
    assert points.count() == 3
    points.nth(1).locator("path").last.hover()
    hover = opened.view.locator(".hover")
    assert hover.is_visible()
    assert hover.inner_text() == points.nth(1).get_attribute("aria-label")
    assert "accuracy difference +0.333 [" in hover.inner_text()
    assert opened.view.locator("#picture-drawing path.front").count() == 0
    opened.view.locator("#picture-height").select_option("value")
    points.nth(1).locator("path").last.hover()
    assert "accuracy 0.667" in hover.inner_text()
    points.nth(1).focus()
    opened.view.keyboard.press("Enter")
    assert opened.view.locator("#run-a option:checked").inner_text().startswith("full")
    opened.view.locator("#picture-cost").select_option("state")
    assert points.count() == 3


def test_at_most_eight_points_have_a_name_and_no_two_names_overlap(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for n in range(12):
        keep(folder, accurate("window" if n == 0 else f"mine-{n}", 0.5, run_id=f"r{n}"), choices("full"))
    (tmp_path / "many.html").write_text(page_of([folder]))
    view = Opened(browser, tmp_path / "many.html").view
    names = view.locator("#picture-drawing text.name")
    assert names.count() == 8
    assert any("window" in (name.text_content() or "") for name in names.all())
    boxes = [name.bounding_box() for name in names.all()]
    tops = sorted(box["y"] for box in boxes if box is not None)
    assert all(below - above > 10 for above, below in itertools.pairwise(tops))
    assert view.locator("#picture-drawing .point").count() == 12
    assert view.locator("#picture-drawing .grey").count() == 4
    assert "Grey: 4 further runs" in view.locator("#picture-drawing").inner_text()


def test_cards_open(opened: Opened) -> None:
    card = opened.view.locator("#cards details", has_text="method sinks")
    card.locator("summary").focus()
    opened.view.keyboard.press("Enter")
    assert card.get_attribute("open") is not None
    assert card.locator("dt").count() > 0


def test_foreign_text_is_text(browser: Any, tmp_path: Path) -> None:
    metrics = {"accuracy": metric(0.5), NASTY: metric(1.0)}
    run = accurate(
        NASTY, 0.5, run_id="nasty", task=NASTY, split="x", backbone=NASTY, metrics=metrics, data={"note": NASTY}
    )
    record = {"id": NASTY, "prediction": NASTY, "answer": 0, "nats": [NASTY, 1.0], NASTY: NASTY}
    keep(tmp_path, run, [line(NASTY, 1.0, record=record)])
    (tmp_path / "page.html").write_text(page_of([tmp_path], title=NASTY), "utf-8")
    opened = Opened(browser, tmp_path / "page.html")
    opened.view.locator("#examples-table td button").click()
    playwright.expect(opened.view.locator("#example")).to_contain_text("alert(1)")
    assert opened.view.locator("img").count() == 0
    assert opened.view.locator("script").count() == 3
    assert opened.said == []
    assert opened.requests == [(tmp_path / "page.html").as_uri()]
    opened.view.close()


def test_many_runs_with_many_examples_open(browser: Any, tmp_path: Path) -> None:
    lines = [{**choices("full")[n % 3], "id": f"x{n}"} for n in range(500)]
    for n in range(200):
        run = accurate("window", n / 200, method_config={"N": n}, changed=["N"], run_id=f"w{n}")
        keep(tmp_path, run, lines)
    (tmp_path / "page.html").write_text(page_of([tmp_path]), "utf-8")
    opened = Opened(browser, tmp_path / "page.html")
    assert len(opened.column("runs-table", 1)) == 200
    opened.view.locator("#runs-table td button").nth(150).click()
    playwright.expect(opened.view.locator("#examples-summary")).to_contain_text("neither in 500 of 500")
    assert len(opened.examples()) == 200
    opened.view.locator("#examples-table .more").click()
    assert len(opened.examples()) == 500
    assert opened.said == []
    opened.view.close()
