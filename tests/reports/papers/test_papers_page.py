from __future__ import annotations

import dataclasses
import json
from typing import Any

from toy_paper import RUN, paper, result

from contextlab.harness.stored import PhaseCost, Result
from contextlab.reports.papers import schema
from contextlab.reports.papers.measure import Measured
from contextlab.reports.papers.page import comparison, published
from contextlab.reports.papers.schema import PaperRun


def measured(row: str, method: str, stored: Result | None, **changes: Any) -> Measured:
    run = PaperRun.model_validate({**RUN, "methods": [method], "rows": [row], **changes})
    return Measured(run, row, method, "pg22/S1(tokens=48)", stored)


def rows_of(cells: list[Measured], **changes: Any) -> dict[str, tuple[str, ...]]:
    toy = paper(**changes)
    return {row[0]: row[1:] for row in comparison(toy, toy.entry[0], cells).rows}


def test_what_differs_stands_above_the_numbers() -> None:
    cells = [measured("plain", "window", result(18.0)), measured("new", "hso", result(9.0, "hso"))]
    page = comparison(paper(), paper().entry[0], cells)
    assert page.title == "toy/table1: Doe et al., Table 1 (section 3)"
    assert comparison(paper(section="appendix B"), paper(section="appendix B").entry[0], []).title.endswith(
        "(appendix B)"
    )
    assert page.rows == [
        ("", "paper", "here"),
        ("model", "Toy 1B", "tiny-llama"),
        ("data", "many books", "pg22/S1(tokens=48): generated"),
        ("size", "100 books", "pg22/S1(tokens=48): 3 examples"),
        ("training", "2B tokens", "window: nothing to learn; hso: nothing to learn"),
        ("machine", "", "cpu (toy)"),
        ("plain: books (perplexity)", "20.0", "window: 18 [17, 20]"),
        ("new: books (perplexity)", "15.0 (-25.0 %), corrected 16.0", "hso: 9 (-50.0 %)"),
    ]
    assert page.notes == [
        "Perplexity of books.",
        "Other books.",
        "The text says 14.0.",
        "new, books: printed 15.0, corrected 16.0: a sum was wrong.",
    ]


def test_a_page_names_what_its_results_do_not_have_in_common() -> None:
    states = [of_code(result(18.0), "a"), of_code(result(9.0, "hso"), "b")]
    cells = [measured("plain", "window", states[0]), measured("new", "hso", states[1])]
    sentence = "Runs come from 2 states of the code: aaaaaaa (window), bbbbbbb (hso)."
    assert comparison(paper(), paper().entry[0], cells).notes[-1] == sentence
    twin = dataclasses.replace(cells[0], twin=states[1])
    assert comparison(paper(), paper().entry[0], [twin]).notes[-1] == sentence
    assert not any("come from" in note for note in comparison(paper(), paper().entry[0], cells[:1]).notes)


def of_code(stored: Result, commit: str) -> Result:
    provenance = stored.provenance.model_copy(update={"commit": commit * 40, "code": {"contextlab.cache": commit}})
    return stored.model_copy(update={"provenance": provenance, "run_id": commit})


def test_training_is_named_for_every_method() -> None:
    training = {"flops": None, "seconds": 1.0, "tokens": 100_352}
    trained = result(1.0, "retrieval", cost={"train": training})
    cells = [measured("new", "retrieval", trained), measured("new", "longmem", result(1.0, "longmem", untrained=True))]
    assert rows_of(cells)["training"][1] == "retrieval: 100k tokens; longmem: untrained"


def test_several_methods_may_stand_for_one_row() -> None:
    toy = paper()
    cells = [
        measured("plain", "window", result(10.0)),
        measured("new", "a", result(8.0)),
        measured("new", "b", result(6.0)),
    ]
    here = [row[2] for row in comparison(toy, toy.entry[0], cells).rows if row[0].startswith("new")]
    assert here == ["a: 8 (-20.0 %)", "b: 6 (-40.0 %)"]


def test_other_examples_give_no_difference() -> None:
    for other in ({"examples": 4}, {"sha256": "1"}):
        new = result(9.0, "hso", data=other)
        cells = [measured("plain", "window", result(18.0)), measured("new", "hso", new)]
        assert rows_of(cells)["new: books (perplexity)"][1] == "hso: 9 [8, 11]"


def test_what_was_not_measured_says_so() -> None:
    toy = paper()
    page = comparison(toy, toy.entry[0], [measured("new", "window", None)])
    assert page.rows[1] == ("model", "Toy 1B", "-")
    assert not any(row[0].startswith("new") for row in page.rows)
    assert page.notes[-1] == "Not measured: pg22/S1(tokens=48)."


def test_of_a_task_that_was_measured_every_method_has_a_line() -> None:
    cells = [measured("plain", "window", result()), measured("new", "window", None)]
    assert rows_of(cells)["new: books (perplexity)"][1] == "not measured"
    lacking = measured("new", "window", result(), read={"books": "f1"})
    assert rows_of([lacking])["new: books (perplexity)"][1] == "not measured"


def test_percentages_differ_in_points() -> None:
    cells = [
        measured("plain", "window", result(), read={"questions": "accuracy"}),
        measured("new", "hso", result(), read={"questions": "accuracy"}),
    ]
    assert rows_of(cells)["new: questions (accuracy %)"] == ("62.5 (1.5) (+12.5)", "hso: 50.0 (+0.0)")


def test_a_figure_without_values_shows_what_the_paper_says() -> None:
    recipe = {"embedded": {"runs": [{**RUN, "read": {"length, MB": "state MB"}}], "differs": []}, "not_here": None}
    toy = paper(rows=[], columns=[], keys=[], baselines=[], corrections=[], says=["It grows."], **recipe)
    page = comparison(toy, toy.entry[0], [measured("plain", "window", result(), read={"length, MB": "state MB"})])
    assert page.rows[-1] == ("plain: length, MB", "not printed", "window: 1")
    assert "The paper: It grows." in page.notes


def test_the_published_table_holds_every_cell_and_its_correction() -> None:
    toy = paper()
    page = published(toy, toy.entry[0])
    assert page.rows == [
        ("model", "books (perplexity)", "questions (accuracy %)"),
        ("plain", "20.0", "50.0"),
        ("new", "15.0, corrected 16.0", "62.5 (1.5)"),
    ]
    assert published(toy, toy.entry[1]).rows == [("values",), ("not printed",)]


def test_every_published_table_is_a_page() -> None:
    for numbers in schema.papers().values():
        for entry in numbers.entry:
            page = published(numbers, entry)
            assert {len(row) for row in page.rows} == {len(page.rows[0])}
            assert json.loads(json.dumps(page.as_dict()))["title"].startswith(f"{numbers.name}/{entry.name}")


def test_markdown_shows_foreign_text_literally() -> None:
    toy = paper()
    text = published(toy, toy.entry[1]).markdown()
    assert r"\*plain\*" in text
    data = comparison(toy, toy.entry[1], []).markdown()
    assert r"books \| papers" in data
    assert all(line.count(" | ") == 2 for line in data.splitlines() if line.startswith("| "))


def test_json_names_the_columns() -> None:
    toy = paper()
    page = comparison(toy, toy.entry[0], [])
    assert page.as_dict()["rows"][0] == {"what": "model", "paper": "Toy 1B", "here": "-"}
    assert dataclasses.replace(page, notes=[]).as_dict()["notes"] == []


def with_tokens(earlier: Result, tokens: int) -> Result:
    cost = earlier.cost.model_copy(update={"train": PhaseCost(flops=None, seconds=1.0, tokens=tokens)})
    return earlier.model_copy(update={"cost": cost})


def test_a_method_that_has_learned_stands_beside_its_twin_too() -> None:
    toy = paper()
    new = measured("new", "longmem", with_tokens(result(9.0, "longmem"), 61_440))
    new = dataclasses.replace(new, twin=with_tokens(result(10.0, "sliding"), 61_440))
    page = comparison(toy, toy.entry[0], [measured("plain", "window", result(18.0)), new])
    here = {row[0]: row[2] for row in page.rows}["new: books (perplexity)"]
    assert here == "longmem: 9 (-50.0 %; -10.0 % on its twin)"
    (note,) = [note for note in page.notes if "twin" in note]
    assert note.endswith("longmem (61.4k tokens) has the twin sliding (61.4k tokens).")


def test_a_page_says_from_the_results_what_has_learned_nothing() -> None:
    toy = paper()
    cells = [
        measured("plain", "window", result(18.0)),
        measured("new", "memtrm", result(9.0, "memtrm", untrained=True)),
    ]
    assert "memtrm: measured without any training." in comparison(toy, toy.entry[0], cells).notes
    learned = [cells[0], measured("new", "memtrm", with_tokens(result(9.0, "memtrm"), 40_960))]
    assert not any("without any training" in note for note in comparison(toy, toy.entry[0], learned).notes)
