"""Methods on their backbone are named by their weights where these have a name, and else by their settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_weights import BACKBONE, method, moved, write

import contextlab
from contextlab import grammar, naming, trained
from contextlab.harness import labels
from contextlab.harness.comparison import Results
from contextlab.harness.labels import with_name
from contextlab.harness.selection import BuiltMethod, built
from contextlab.reports.stored import load_results
from contextlab.reports.tables import comparison

FORM = {"N": 32, "reduction": 1}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    trained_method = moved(method(**FORM, weights="none"), 0.01)
    write(tmp_path / "one", trained_method, free=["K", "M"], use={"M": 512}, recommended=True)
    return tmp_path


def of(*texts: str) -> list[BuiltMethod]:
    return built([naming.single(text).on(BACKBONE) for text in texts], BACKBONE)


@pytest.mark.parametrize(
    ("text", "label", "trained_with"),
    [
        ("longmem", "one", {"M": 65536}),
        ("one(K=8)", "one(K=8)", {"M": 65536, "K": 64}),
        ("longmem(N=32,reduction=1,M=512)", "one", {"M": 65536}),
        ("longmem(N=32,reduction=1)", "one(M=65536)", {}),
        ("longmem(N=32,reduction=1,weights=one,csz=2)", "longmem(N=32,csz=2,reduction=1,weights=one)", None),
        ("longmem(N=32,reduction=1,weights=none)", "longmem(N=32,reduction=1,weights=none)", None),
        ("longmem(form=paper)", "longmem(form=paper)", None),
        ("longmem(K=64)", "longmem(form=paper)", None),
        ("longmem(K=8)", "longmem(K=8)", None),
        ("window", "window", None),
    ],
)
def test_a_label_is_the_name_of_the_weights_and_selects_the_same(
    folder: Path, text: str, label: str, trained_with: dict[str, Any] | None
) -> None:
    (selected,) = of(text)
    assert folder
    assert selected.label == label
    assert (None if selected.weights is None else dict(selected.weights.trained_with)) == trained_with
    (again,) = of(label)
    assert again.label == label
    assert again.method.weights_digest == selected.method.weights_digest


def test_the_same_method_in_several_words_is_one(folder: Path) -> None:
    assert folder
    assert [selected.label for selected in of("longmem", "window", "one", "longmem(N=32,reduction=1,M=512)")] == [
        "one",
        "window",
    ]
    assert [selected.label for selected in of("longmem(K=64)", "longmem(form=paper)")] == ["longmem(form=paper)"]


def test_weights_that_were_found_say_in_what_they_were_trained_otherwise(folder: Path) -> None:
    assert folder
    (recommended,) = of("longmem(N=32,reduction=1,K=8,M=512)")
    assert recommended.note == "one(K=8) has weights that were trained with K=64: write weights=none to leave them out."
    assert [selected.note for selected in of("one", "one(K=8)", "longmem(form=paper)", "window")] == ["", "", "", ""]


def run(folder: Path, text: str, **options: Any) -> Results:
    fixed = {"backbone": "tiny-gpt2", "device": "cpu", "limit": 2, "counting": False}
    return contextlab.bench(text, "needle", out=folder / "runs", **{**fixed, **options})


def test_bench_takes_what_is_recommended_and_stores_its_name(folder: Path) -> None:
    heard: list[str] = []
    results = run(folder, "window,longmem,longmem(form=paper),longmem(N=32,reduction=1,M=64)", on_note=heard.append)
    names = [(result.method, result.weights_name, result.weights_changed) for result in results.runs]
    assert names == [("window", None, []), ("longmem", "one", []), ("longmem", None, []), ("longmem", "one", ["M"])]
    assert results.runs[3].trained_with == {"M": 65536}
    assert results.notes == [
        "longmem stands for one, trained on 5 tokens: write longmem(form=paper) for the paper's form."
    ]
    assert [note.partition(" has weights")[0] for note in heard] == ["one(M=64)"]
    assert [difference.label for difference in results.differences] == [f"{name} - window" for name in LABELS[1:]]
    table = comparison(load_results(folder / "runs"))
    assert sorted(row[0] for row in table.rows) == sorted(LABELS_OF_TABLE)
    again = run(folder, ",".join(row[0] for row in table.rows))
    assert {result.run_id for result in again.runs} == {result.run_id for result in results.runs}


LABELS = ("window", "one", "longmem(form=paper)", "one(M=64)")
LABELS_OF_TABLE = ("window", "one", "longmem(form=paper) (untrained)", "one(M=64)")


def test_a_legend_says_what_a_name_stands_for(folder: Path) -> None:
    _, _, mine = run(folder, "window,longmem(form=paper),one(K=8)").runs
    label = labels.whole(mine)
    assert label == "one(K=8)"
    expected = "one(K=8): longmem(N=32,M=512,K=8,reduction=1), trained with M=65536, K=64 on 5 tokens"
    assert labels.legend(label, mine) == expected
    assert labels.by_settings(mine) == "longmem(N=32,M=512,K=8,reduction=1)"
    rest = run(folder, "window,longmem(form=paper)").runs
    assert [labels.legend(labels.whole(result), result) for result in rest] == ["", ""]
    assert any(line == expected for line in comparison([mine, *rest]).legend)


def test_results_of_early_versions_are_named_by_what_was_learned(folder: Path) -> None:
    (mine, plain) = run(folder, "longmem,longmem(form=paper)").runs
    listed = trained.by_digest()
    early = [result.model_copy(update=UNNAMED) for result in (mine, plain)]
    assert [labels.whole(with_name(result, listed)) for result in early] == ["one", "longmem(form=paper) (untrained)"]
    named = with_name(early[0], listed)
    assert (named.weights_changed, named.trained_with) == ([], {"M": 65536})
    assert with_name(mine, {}) == mine


UNNAMED: dict[str, Any] = {"weights_name": None, "weights_changed": [], "trained_with": {}}


def test_a_form_that_the_card_does_not_declare_free_keeps_its_settings(folder: Path) -> None:
    (mine,) = run(folder, "one").runs
    listed, early = trained.by_digest(), mine.model_copy(update=UNNAMED)

    def name(**changes: Any) -> str | None:
        return with_name(early.model_copy(update=changes), listed).weights_name

    assert name() == "one"
    assert name(method_config={**mine.method_config, "csz": 2}, changed=[*mine.changed, "csz"]) is None
    assert name(method="retrieval") is None
    assert name(method_config={**mine.method_config, "later": 3}) == "one"


def test_labels_are_arguments(folder: Path) -> None:
    assert folder
    for selected in of("longmem", "one(K=8)", "longmem(form=paper)", "longmem(K=8)"):
        item = grammar.single(selected.label, "method")
        assert naming.meaning(item.name).with_settings(item.settings).name == "longmem"
