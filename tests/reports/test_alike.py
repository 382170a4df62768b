from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result, store, three
from toy_weights import method, moved, smaller, write

from contextlab import trained
from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.alike import check_alike, mixtures, of_weights
from contextlab.reports.filters import selection_of
from contextlab.reports.layout import TableLayout
from contextlab.reports.names import Names
from contextlab.reports.tables import comparison

LATER = {"started": "2027"}
OTHER_DATA = result("other", data={"sha256": "b" * 64}, provenance=LATER)


def with_provenance(**changes: Any) -> Result:
    return result("other", provenance=LATER | changes)


def of_code(method: str, commit: str | None = None, **code: str) -> Result:
    return result(method, provenance={"commit": commit, "code": code or None})


def test_results_of_the_same_data_prompts_code_and_counting_are_alike() -> None:
    assert mixtures([*three(), result("full", task="squad", data={"sha256": "b" * 64})]) == []
    assert mixtures([*three(), with_provenance(contextlab="0.2", torch="2.0.9+cu1", threads=4)]) == []
    assert mixtures([]) == []


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (OTHER_DATA, r"2 sets of data of pg22/S2 \(aaaaaaaa in .*; bbbbbbbb in other-.*--where 'data=aaaaaaaa\*'"),
        (with_provenance(prompt_sha256="c" * 64), "2 prompts of pg22/S2 with context own"),
        (with_provenance(weights_sha256="c" * 64), "2 sets of weights of tiny-llama in float32"),
        (with_provenance(torch="2.1.0"), r"2 versions of torch .*--where 'torch=2.0\|2.0.\*'.*--mixed"),
        (with_provenance(transformers="4.1"), "2 versions of transformers"),
        (with_provenance(dtype="bfloat16"), "2 dtypes"),
        (with_provenance(device="cuda (x)"), r"2 kinds of device .*--where 'device=cpu\*'"),
        (with_provenance(commit="c" * 40), r"2 states of the code \(an unknown commit in .*ccccccc in other-.*"),
        (with_provenance(source_sha256="c" * 64), "2 states of the code"),
        (with_provenance(code={"contextlab.method": "1"}), "2 states of the code"),
    ],
)
def test_what_differs_is_named_in_one_sentence(other: Result, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_alike([*three(), other])
    assert str(caught.value).count("\n") == 0


def test_texts_that_are_made_to_a_length_are_others_at_another() -> None:
    """RULER makes texts for each length; the books of pg22 are the same at all."""

    def at(task: str, tokens: int, letter: str) -> Result:
        return result("full", task=task, split="all", tokens=tokens, data={"sha256": letter * 64})

    assert mixtures([at("ruler", 1024, "a"), at("ruler", 4096, "b")]) == []
    (mixture,) = mixtures([at("ruler", 1024, "a"), at("ruler", 1024, "b")])
    assert mixture.what == "sets of data of ruler/all(tokens=1024)"
    for task in ("pg22", "mine.py:Mine", "not-installed"):
        (mixture,) = mixtures([at(task, 1024, "a"), at(task, 4096, "b")])
        assert mixture.what == f"sets of data of {task}/all"


def test_a_task_that_cannot_be_imported_any_more_has_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise UserError(f"{name} cannot be imported.")

    monkeypatch.setattr("contextlab.registry.tasks", lambda: {"gone": "a-package"})
    monkeypatch.setattr("contextlab.registry.task_class", broken)
    (mixture,) = mixtures([result("full", task="gone", data={"sha256": letter * 64}) for letter in "ab"])
    assert mixture.what == "sets of data of gone/S2"


def test_what_a_table_shows_may_differ() -> None:
    runs = [*three(), with_provenance(dtype="bfloat16"), with_provenance(device="cuda")]
    assert mixtures(runs, ("dtype", "device")) == []
    for shown, hidden in (("dtype", "kinds of device"), ("device", "dtypes")):
        assert [mixture.what for mixture in mixtures(runs, (shown,))] == [hidden]


def test_learned_weights_of_one_method_are_alike() -> None:
    first, other = (result("evalm", method_weights=letter * 64) for letter in "ab")
    check_alike([first, result("evalm", method_weights="b" * 64, changed=["c"], method_config={"c": 4})])
    with pytest.raises(UserError, match="2 sets of learned weights of evalm"):
        check_alike([first, other])


def test_runs_with_weights_in_more_bits_are_alike_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    before = write(tmp_path / "wide" / "mine", moved(method(N=32, weights="none"), 0.01))
    wide = method(N=32, weights=before).weights_digest
    smaller(tmp_path / "mine", before)
    small = method(N=32, weights="mine").weights_digest
    shutil.rmtree(tmp_path / "wide")
    runs = [
        result("longmem", provenance={"seed": n}, method_weights=digest, weights_name="mine")
        for n, digest in enumerate((wide, wide, small))
    ]
    check_alike(runs)
    sentence = (
        "2 runs were made with weights in float16 that are in int8 now (mine); the loss on held-back texts differs by "
        "at most 0.0002 nats per token"
    )
    assert of_weights(runs) == [sentence]
    assert of_weights(runs[2:]) == []
    assert sentence in comparison(runs, TableLayout(mean_seeds=True)).notes
    with pytest.raises(UserError, match="2 sets of learned weights of mine"):
        check_alike([*runs, result("longmem", method_weights="a" * 64, weights_name="mine")])


def test_versions_of_counting_are_compared_where_they_are_known() -> None:
    with pytest.raises(UserError, match=r"2 versions of counting .*--where 'counting=1'"):
        check_alike([with_provenance(counting=count, code={}) for count in (1, 2)])


def test_only_modules_that_two_runs_have_in_common_must_be_equal() -> None:
    alike = [of_code("full", "a" * 40, seam="1", full="1"), of_code("hso", "b" * 40, seam="1", hso="1")]
    check_alike(alike)
    (mixture,) = mixtures([*alike, of_code("trime", "c" * 40, seam="2", trime="1")])
    assert mixture.sentence == "Runs come from 2 states of the code: aaaaaaa (full, hso), ccccccc (trime)"
    assert (mixture.detail, mixture.conditions) == ("", ("commit=aaaaaaa*", "commit=ccccccc*"))


CODES = st.lists(st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), min_size=1), max_size=5)


@given(codes=CODES)
def test_runs_are_of_one_state_where_no_two_differ_in_a_module_that_both_have(codes: list[dict[str, str]]) -> None:
    """Whatever lies between two runs: a third one that has none of their modules in common makes them no more alike."""
    differ = any(
        first[name] != other[name]
        for first, other in itertools.combinations(codes, 2)
        for name in first.keys() & other.keys()
    )
    runs = [of_code(f"m{number}", "abcde"[number] * 40, **code) for number, code in enumerate(codes)]
    assert [mixture.what for mixture in mixtures(runs)] == (["states of the code"] if differ else [])


def test_a_caption_names_methods_as_the_table_shows_them() -> None:
    names = Names({"method": {"full": "Full attention"}, "task": {"pg22": "PG-22"}})
    runs = [of_code("full", "a" * 40, cache="1"), of_code("hso", "b" * 40, cache="2")]
    table = comparison(runs, TableLayout(names=names))
    assert "Runs come from 2 states of the code: aaaaaaa (Full attention), bbbbbbb (hso)" in table.legend
    (mixture,) = mixtures([with_provenance(prompt_sha256=letter * 64) for letter in "ab"], names=names)
    assert mixture.what.startswith("prompts of PG-22/")


def test_states_of_one_commit_are_named_by_a_module_that_differs() -> None:
    (mixture,) = mixtures([of_code(name, "a" * 40, cache=digest) for name, digest in (("full", "1"), ("hso", "2"))])
    assert [name for name, _ in mixture.values] == ["aaaaaaa with cache 1", "aaaaaaa with cache 2"]
    assert mixture.conditions[1] == f"run={mixture.values[1][1][0].run_id}"


def test_early_runs_are_of_one_state_where_all_code_was_equal() -> None:
    runs = [with_provenance(commit=commit * 40, source_sha256="s" * 64) for commit in "ab"]
    check_alike(runs)
    assert len(mixtures([*runs, with_provenance(commit="a" * 40, source_sha256="t" * 64)])) == 1


def test_a_caption_names_mixtures_and_says_only_how_many_there_are_of_many() -> None:
    many = [of_code(f"m{n}", "abcde"[n] * 40, cache=str(n)) for n in (0, 0, 1, 2, 3)]
    table = comparison(many)
    assert "Runs come from 4 states of the code, 2 of 5 from aaaaaaa" in table.legend
    assert "The states of the code: aaaaaaa (m0), bbbbbbb (m1), ccccccc (m2), ddddddd (m3)" in table.notes
    assert not any("come from" in sentence for sentence in comparison(three()).legend)


def test_controls_may_have_other_prompts() -> None:
    own, none = ({"prompt_sha256": letter * 64} for letter in "cd")
    runs = [result("other", provenance=own), result("other", provenance=none, context="none")]
    assert mixtures(runs) == []


@pytest.mark.parametrize(
    "other",
    [
        OTHER_DATA,
        with_provenance(weights_sha256="c" * 64),
        with_provenance(torch="2.1.0"),
        with_provenance(commit="c" * 40),
        with_provenance(dtype="bfloat16"),
        with_provenance(device="cuda (x)"),
    ],
)
def test_the_condition_that_it_proposes_works(other: Result, tmp_path: Path) -> None:
    mixed = [*three(), other]
    with pytest.raises(UserError) as caught:
        check_alike(mixed)
    condition = str(caught.value).split("--where '")[1].split("'")[0]
    for number, run in enumerate(mixed):
        store(tmp_path / str(number), run)
    left = selection_of([tmp_path], [condition]).results
    check_alike(left)
    assert len(left) in (1, 3)
