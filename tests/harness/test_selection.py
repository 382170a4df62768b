from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import contextlab
from contextlab.errors import UserError
from contextlab.harness.comparison import Results
from contextlab.harness.selection import select
from contextlab.reports.stored import load_results
from contextlab.reports.tables import comparison

TOY = Path(__file__).with_name("toy_parts.py")
COUNTER, OTHER, LETTERS = (f"{TOY}:{name}" for name in ("Counter", "Other", "Letters"))


def methods(text: Any, **options: Any) -> list[str]:
    return [selected.label for selected in select(text, "needle,pg22", **options)[0]]


def tasks(text: Any, **options: Any) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (selected.name, selected.split, selected.task.config.changed())
        for selected in select("window", text, **options)[1]
    ]


def test_one_method_in_two_forms_is_two_and_the_same_twice_is_one() -> None:
    assert methods("longmem(K=32),longmem") == ["longmem(K=32)", "longmem"]
    assert methods("longmem, longmem(), longmem") == ["longmem"]
    assert methods("longmem(K=64), longmem(form=paper)") == ["longmem(form=paper)"]
    assert methods(["window(N=512),full", "window", "full"]) == ["window(N=512)", "full", "window"]


def test_one_task_in_two_forms_is_two_and_the_same_twice_is_one() -> None:
    assert tasks("pg22/S1(tokens=8192),pg22,pg22/S2,pg22/S1") == [
        ("pg22", "S1", {"tokens": 8192}),
        ("pg22", "S1", {}),
        ("pg22", "S2", {}),
    ]
    assert tasks(["icl/sst2(k=4,template=evalm)", "icl/sst2(template=evalm,k=4)"]) == [
        ("icl", "sst2", {"k": 4, "template": "evalm"})
    ]


def test_shorthands_reach_everything_that_has_them() -> None:
    assert methods("window,sliding,full,evalm", settings={"N": 64}) == [
        "window(N=64)",
        "sliding(N=64)",
        "full",
        "evalm",
    ]
    assert methods("sinks,evalm", settings={"sinks": "2"}) == ["sinks(sinks=2)", "evalm(sinks=2)"]
    lengths = tasks("pg22,squad,sst2", tokens=9, history=None)
    assert lengths == [("pg22", "S1", {"tokens": 9}), ("squad", "512", {"tokens": 9}), ("sst2", "n4", {})]
    assert tasks("pg22,wikitext/valid", settings={"tokens": 9})[1] == ("wikitext", "valid", {"tokens": 9})
    assert tasks("sst2,agnews", split="n2") == [("sst2", "n2", {}), ("agnews", "n2", {})]
    assert tasks("squad(tokens=5)", split="1k(prompt=chat)") == [("squad", "1k", {"tokens": 5, "prompt": "chat"})]


@pytest.mark.parametrize(
    ("named", "options", "message"),
    [
        (("hso,generative-adapter", "sst2"), {"settings": {"steps": 2}}, "steps means different things in hso and gen"),
        (("hso,dynamic-eval", "sst2"), {"settings": {"lr": 0.1}}, "write it at each instead of --set, as hso.lr=0.1."),
        (("hso", "icl/mr"), {"settings": {"k": 3}}, "k means different things in hso and icl"),
        (("window(N=3)", "sst2"), {"settings": {"N": 3}}, "window has N twice, after its name and in --set"),
        (("window", "pg22/S1"), {"split": "S1"}, "pg22 has a split after its name and another in --split"),
        (("window", "squad(prompt=chat)"), {"split": "512(prompt=chat)"}, "squad has prompt twice"),
        (("window", "pg22(tokens=9)"), {"tokens": 9}, "pg22 has tokens twice, after its name and in --tokens"),
        (("window", "pg22"), {"tokens": 9, "settings": {"tokens": 8}}, "tokens is set by --tokens and by --set"),
        (("window,full", "sst2"), {"tokens": 9}, "No setting of window, full, sst2 is called tokens: leave --tokens"),
        (("window", "squad,sst2"), {"history": 9}, "leave --history out"),
        (("window", "sst2"), {"settings": {"M": 9}}, "There is no setting of window, sst2 'M'"),
        (("longmem(k=9)", "sst2"), {}, "There is no setting of longmem 'k': did you mean 'K'"),
        (("window(N=x)", "sst2"), {}, "Setting N='x' of window is not valid"),
        (("window", "sst2/n3"), {}, "There is no split of sst2 'n3': did you mean"),
        (("window", "sst2(k=3)"), {}, "There are no settings of sst2: leave k out"),
        (("window", "icl/trec(template=longmem)"), {}, "longmem has no template for trec"),
        (("window", " "), {}, "No task is named"),
    ],
)
def test_what_is_not_one_choice_is_refused(named: tuple[str, str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        select(*named, **options)


def run(out: Path, *named: Any, **options: Any) -> Results:
    return contextlab.bench(*named, backbone="tiny-llama", device="cpu", out=out, limit=2, **options)


def test_a_name_alone_and_its_defaults_are_one_where_nothing_is_recommended(tmp_path: Path) -> None:
    results = run(tmp_path, "window,window(N=null),window(form=paper)", "needle")
    assert [result.method for result in results.runs] == ["window"]


def test_two_forms_of_a_method_on_two_forms_of_a_task_are_one_table(tmp_path: Path) -> None:
    forms = f"{COUNTER}(prior=0.5),{COUNTER}"
    results = run(tmp_path, forms, [f"{LETTERS}/short,{LETTERS}/long(tokens=3)", LETTERS])
    assert [(result.method_config, result.split, result.tokens) for result in results.runs] == [
        ({"prior": prior}, split, tokens) for split, tokens in (("short", None), ("long", 3)) for prior in (0.5, 1.0)
    ]
    assert {result.method for result in results.runs} == {COUNTER}
    frame = comparison(load_results(tmp_path)).to_frame()
    assert [key[0] for key in frame.index] == [f"{COUNTER}(prior=0.5)", COUNTER]
    groups = (f"{LETTERS}/short ", f"{LETTERS}/long(tokens=3) ")
    assert all(any(column.startswith(group) for group in groups) for column in frame.columns)
    assert {(difference.label, difference.task) for difference in results.differences} == {
        (f"{COUNTER} - {COUNTER}(prior=0.5)", group.strip()) for group in groups
    }
    again = run(tmp_path, [key[0] for key in frame.index], [group.strip() for group in groups])
    assert [result.run_id for result in again.runs] == [result.run_id for result in results.runs]


def test_a_method_is_loaded_with_its_settings() -> None:
    method = contextlab.load(f"{COUNTER}(prior=2)", "tiny-llama", device="cpu")
    assert method.config.as_dict() == {"prior": 2.0}
    with pytest.raises(UserError, match="is given prior twice"):
        contextlab.load(f"{COUNTER}(prior=2)", "tiny-llama", device="cpu", prior=3)
    with pytest.raises(UserError, match="names 2 methods"):
        contextlab.load("full,window", "tiny-llama", device="cpu")
