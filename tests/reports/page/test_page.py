from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from stored_examples import accurate, keep, line, metric
from stored_runs import changed, result

from contextlab.benchmarks.examples import Block, Choice, Document, Labelled, Question, Reading
from contextlab.errors import UserError
from contextlab.reports.names import Names
from contextlab.reports.page import page
from contextlab.reports.page.content import END, cards, shown

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> -->\u2028&lt;"


class Parsed(HTMLParser):
    """Elements of a page, and the content of its scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.open: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = (dict(attrs).get("id") or tag) if tag in ("script", "style") else None

    def handle_data(self, data: str) -> None:
        if self.open is not None:
            self.scripts[self.open] = self.scripts.get(self.open, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.open = None


def overview(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Parsed(text).scripts["overview"])
    return content


def block(text: str, name: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(Parsed(text).scripts[name])))


def choice(name: str, prediction: int, answer: int = 0) -> dict[str, Any]:
    right = float(prediction == answer)
    record = {"id": name, "prediction": prediction, "answer": answer, "correct": bool(right), "nats": [1.0, 2.0]}
    return line(name, right, record=record, parts={"accuracy": [[right, 1, name]]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path, accurate("window", 0.5), [choice("a", 0), choice("b", 1)])
    keep(tmp_path, accurate("full", 1.0), [choice("b", 0), choice("a", 0)])
    return tmp_path


def test_display_names_are_those_of_the_page(folder: Path) -> None:
    runs = overview(page([folder], names=Names({"method": {"full": "dense attention"}})))["runs"]
    assert [run["short"] for run in runs] == ["window", "dense attention"]
    assert [run["method"] for run in runs] == ["window", "full"]


def test_a_page_holds_every_run_with_its_examples(folder: Path) -> None:
    text = page([folder])
    runs = overview(text)["runs"]
    assert [run["method"] for run in runs] == ["window", "full"]
    assert runs[0]["metrics"] == {"accuracy": [0.5, 0.4, 0.6, 3]}
    assert runs[0]["higher"] is True
    assert runs[0]["costs"] == {"flops": 2.5, "state": 1.0, "seconds": 1.5}
    assert {run["group"] for run in runs} == {0}
    examples = block(text, "run-1")
    assert examples["ids"] == ["b", "a"]
    assert examples["qualities"] == [1.0, 1.0]
    assert examples["answers"][0]["items"][0]["nats"] == [1.0, 2.0]


def test_runs_have_paired_differences_to_the_window_or_a_named_method(folder: Path) -> None:
    keep(folder, accurate("sinks", 0.0, context="none"), [choice("a", 1), choice("b", 1)])
    window, full, alone = overview(page([folder]))["runs"]
    assert window["difference"] is None
    assert [full["difference"][0], full["difference"][3]] == [0.5, 2]
    assert [row["against"] for row in (window, full, alone)] == ["window", "window", "sinks"]
    assert alone["difference"] is None
    window, full, alone = overview(page([folder], baseline="full"))["runs"]
    assert window["difference"][0] == -0.5
    assert [row["against"] for row in (window, full, alone)] == ["full", "full", None]
    with pytest.raises(UserError, match="There is no method in these results 'ful': did you mean 'full'"):
        page([folder], baseline="ful")


def test_runs_on_fewer_of_the_same_examples_are_another_group(folder: Path) -> None:
    keep(folder, accurate("sinks", 0.5), [choice("a", 0)])
    content = overview(page([folder]))
    assert [run["group"] for run in content["runs"]] == [0, 0, 1]
    assert [group["examples"] for group in content["groups"]] == [2, 1]


def test_a_page_says_which_runs_it_leaves_out(folder: Path) -> None:
    assert overview(page([folder]))["left_out"] == ""
    assert overview(page([folder], where=["method!=full"]))["left_out"] == "Left out: 1 of 2 runs by method!=full"


def test_names_that_only_look_alike_differ_on_the_page(tmp_path: Path) -> None:
    keep(tmp_path, accurate("win\u200bdow", 0.5), [choice("a", 0)])
    (run,) = overview(page([tmp_path]))["runs"]
    assert run["short"] == run["method"] == r"win\u200bdow"


def test_the_same_results_are_the_same_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert page([folder]) == page([folder], progress=True)
    assert capsys.readouterr().out == ""


def test_runs_on_other_data_are_another_group(folder: Path) -> None:
    keep(folder, accurate("sinks", 0.5, data={"sha256": "b" * 64}), [choice("a", 0)])
    assert [run["group"] for run in overview(page([folder]))["runs"]] == [0, 0, 1]
    assert len(overview(page([folder], where=["method=sinks"]))["groups"]) == 1


def test_a_page_asks_for_nothing_and_runs_only_its_own_script(folder: Path) -> None:
    text = page([folder])
    parsed = Parsed(text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    for tag, attributes in parsed.tags:
        assert not {"src", "style", "onclick", "onerror"} & set(attributes)
        assert tag not in ("iframe", "object", "embed", "img")
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
    (policy,) = [
        attributes["content"]
        for _, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    for kind in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(parsed.scripts[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_text_of_results_cannot_become_markup(tmp_path: Path) -> None:
    run = accurate(
        NASTY,
        0.5,
        task=NASTY,
        split="x",
        backbone=NASTY,
        metrics={"accuracy": metric(0.5), NASTY: metric(1.0)},
        data={"note": NASTY},
        run_id="nasty",
    )
    record = {"id": NASTY, "prediction": NASTY, "answer": 0, NASTY: NASTY}
    keep(tmp_path, run, [line(NASTY, 1.0, record=record)])
    keep(tmp_path, accurate("window", 0.5), [choice("a", 0)])
    plain, nasty = page([tmp_path], where=["method=window"]), page([tmp_path], title=NASTY)
    # One block more and nothing else: whatever is in the results, the elements are the same.
    tags = [tag for tag, _ in Parsed(nasty).tags]
    assert tags == [tag for tag, _ in Parsed(plain).tags] + ["script"] or len(tags) == len(Parsed(plain).tags) + 1
    assert html.escape(NASTY) in nasty
    assert NASTY not in nasty
    assert {run["backbone"] for run in overview(nasty)["runs"]} == {NASTY.replace("\u2028", r"\u2028"), "tiny-llama"}
    assert block(nasty, "run-0")["answers"][0]["items"][0]["said"] == NASTY


def test_an_early_run_without_index_or_parts_has_its_examples(tmp_path: Path) -> None:
    run = keep(
        tmp_path, result(), [line("a", 2.0, record={"id": "a", "tokens": 3}), line("b", None, record={"skipped": "x"})]
    )
    assert run.folder is not None
    path = run.folder / "examples.jsonl"
    lines = [json.loads(example_line) for example_line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({k: v for k, v in example_line.items() if k != "index"}) + "\n" for example_line in lines)
    )
    assert block(page([tmp_path]), "run-0")["qualities"] == [2.0, None]


def test_texts_are_shown_only_where_they_are_those_that_were_measured(tmp_path: Path) -> None:
    from contextlab import registry

    loaded = registry.task("needle").load("1k", None)
    measured = {"source": "sample", "sha256": loaded.sha256, "examples": 1, "note": "generated"}
    run = accurate("full", 0.5, task="needle", split="1k", data=measured)
    keep(tmp_path / "one", run, [line(loaded.examples[0].id, 1.0)])
    missing: list[str] = []
    text = page([tmp_path / "one"], data=tmp_path, on_missing=missing.append)
    assert missing == []
    (example,) = block(text, "texts-0").values()
    assert loaded.examples[0].context.endswith(example["end"].removeprefix("... "))
    assert set(example["questions"]) == {question.id for question in loaded.examples[0].questions}
    keep(tmp_path / "two", changed(run, data={"sha256": "0" * 64}), [line(loaded.examples[0].id, 1.0)])
    text = page([tmp_path / "two"], data=tmp_path, on_missing=missing.append)
    assert "others than those that were measured" in missing[0]
    assert "texts-0" not in Parsed(text).scripts
    assert "texts-0" not in Parsed(page([tmp_path / "one"])).scripts


def test_every_kind_of_example_is_shown() -> None:
    question = Question("q", "Who?", ("Ann",), ("Ann", "Bob"))
    long = "x" * 2 * END
    assert shown(Choice("a", "w", long, ("one", "two"), 0)) == {"end": f"... {'x' * END}", "options": ["one", "two"]}
    assert shown(Reading("a", "w", "short", (question,)))["questions"] == {
        "q": {"text": "Who?", "answers": ["Ann"], "options": ["Ann", "Bob"]}
    }
    assert shown(Document("a", "text")) == shown(Labelled("a", "text", 1)) == {"text": "text"}
    assert shown(Block("a", (Labelled("t", "words", 0),), ())) == {"questions": {"t": {"text": "words"}}}
    assert shown(object()) == {}


def test_cards_say_what_is_registered_and_run_no_foreign_file(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text("raise SystemExit('was run')")
    cards_by_name = {card["name"]: card for card in cards(["longmem", f"{own}:Mine", "gone"], ["pg22"])}
    assert cards_by_name["longmem"]["about"][0]
    assert "K" in {setting["name"] for setting in cards_by_name["longmem"]["settings"]}
    assert "S2" in cards_by_name["pg22"]["splits"]
    assert "file of its own" in cards_by_name[f"{own}:Mine"]["about"][0]
    assert "There is no method 'gone'" in cards_by_name["gone"]["about"][0]


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `contextlab bench`"):
        page([tmp_path])
