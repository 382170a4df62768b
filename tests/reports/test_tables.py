from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest
from stored_runs import NATS, changed, json_lines, line_of, nats_of, result, store, three

from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.harness.stored import QUALITY, Result
from contextlab.reports import tables
from contextlab.reports.layout import TableLayout
from contextlab.reports.stored import load_results

METRIC = {"value": 20.0, "low": None, "high": None, "n": 3}
COST = {"flops": 2_500_000_000_000, "peak_bytes": 3 * 2**20, "seconds": 1.5, "seconds_spread": 0.1, "tokens": 10}


def comparison(
    runs: Sequence[Result],
    rows: str = "method",
    columns: str = "task",
    baseline: str | Sequence[str] | None = None,
    metrics: Sequence[str] = ("all",),
    **more: Any,
) -> pandas.DataFrame:
    """The text of a table with all metrics and costs."""
    baselines = () if baseline is None else (baseline,) if isinstance(baseline, str) else tuple(baseline)
    layout = TableLayout((rows,), (columns,), tuple(metrics), ("all",), baselines, **more)
    return tables.comparison(runs, layout).to_frame()


def cell(frame: pandas.DataFrame, row: Any, column: str) -> str:
    return str(frame.loc[row, column] if isinstance(row, tuple) else frame.loc[(row,), column])


def test_cells_carry_value_interval_and_cost() -> None:
    frame = comparison(three())
    assert cell(frame, "window", "nats_per_token") == "3.200 [2.700, 3.700]"
    assert cell(frame, "window", "word_perplexity") == "20.000"
    assert "n = 3 examples" in frame.attrs["caption"]
    assert "n" not in frame
    assert cell(frame, "window", "TFLOPs query") == "2.5"
    assert [cell(frame, "full", name) for name in ("peak MiB", "state MiB", "seconds")] == ["3", "1", "1.5"]
    assert "TFLOPs train" not in frame


def test_a_baseline_is_compared_example_by_example() -> None:
    """The examples differ much, their differences little."""
    window, full = (
        result("window", parts=nats_of({"a": 1.0, "b": 5.0, "c": 9.0, "d": 3.0})),
        result("full", parts=nats_of({"a": 0.9, "b": 4.8, "c": 8.85})),
    )
    frame = comparison([window, full], baseline="window")
    assert cell(frame, "full", "nats_per_token - window") == "-0.150 [-0.274, -0.026]"
    assert cell(frame, "window", "nats_per_token - window") == "+0.000"


def test_examples_that_were_stored_without_parts_are_paired_in_their_qualities() -> None:
    runs = [
        result(method, parts={str(n): {QUALITY: [Part(q, 1.0, str(n))]} for n, q in enumerate(values)})
        for method, values in (("window", [1.0, 5.0, 9.0]), ("full", [0.9, 4.8, 8.85]))
    ]
    frame = comparison(runs, baseline="window")
    assert cell(frame, "full", "nats_per_token - window") == "-0.150 [-0.274, -0.026]"
    assert "share" not in frame


@pytest.mark.parametrize("values", [{}, {"x": 1.0, "y": 2.0}])
def test_without_common_examples_nothing_is_paired(values: dict[str, float]) -> None:
    window, full = result("window", parts=nats_of({"a": 1.0, "b": 5.0})), result("full", parts=nats_of(values))
    assert cell(comparison([window, full], baseline="window"), "full", "nats_per_token - window") == "+0.000"


def test_one_common_cluster_is_compared_without_an_interval() -> None:
    window, full = (result(name, parts=nats_of({"a": loss})) for name, loss in (("window", 1.0), ("full", 0.9)))
    frame = comparison([window, full], baseline="window")
    assert cell(frame, "full", "nats_per_token - window") == "-0.100"
    assert "share" not in frame


def test_the_caption_names_intervals_and_directions() -> None:
    caption = comparison(three()).attrs["caption"]
    assert ". In brackets 95 % intervals over independent works, texts or conversations. " in caption
    assert "Better is" not in caption
    caption = comparison(three(), baseline="window").attrs["caption"]
    assert ". Differences to window are paired over the same examples, in brackets 95 % intervals over " in caption
    assert "Better is: nats_per_token lower." in caption


def test_examples_that_were_not_scored_are_not_in_n() -> None:
    whole, part = (
        changed(result(name), data={"examples": 5, "skipped": n}) for name, n in (("full", 0), ("window", 2))
    )
    caption = comparison([part]).attrs["caption"]
    assert ", n = 3 examples; " in caption
    assert ". Up to 2 of 5 examples could not be scored and are not in n. " in caption
    assert cell(comparison([whole, part]), "window", "n") == "3"


@pytest.mark.parametrize("runs", [three(), [result(parts={}, metrics={"word_perplexity": METRIC})]])
def test_a_caption_is_two_sentences_and_a_legend(runs: list[Result]) -> None:
    """All other sentences are notes."""
    noisy = [changed(run, cost={"query": {**COST, "seconds_spread": 0.3}}) for run in runs]
    for layout in (
        TableLayout(),
        TableLayout(costs=("all",), legacy=True, baselines=("window",)),
        TableLayout(mean_seeds=True),
    ):
        for results in (runs, noisy):
            compared = tables.comparison(results, layout)
            assert len(compared.sentences) <= 2
            assert not any(". " in sentence for sentence in compared.sentences)
            assert all(len(part) < 120 for part in compared.legend)


def test_more_than_two_data_sets_are_counted_by_their_kind_and_described_in_the_notes() -> None:
    notes = {"S1": "real: books", "S2": "re-laid: books", "S3": "generated stories", "S4": "a mixture"}
    runs = [result(split=split, data={"note": note}) for split, note in notes.items()]
    compared = tables.comparison(runs)
    counted = "4 tasks (data: 1 real, 1 re-laid, 1 generated, 1 other, described in the notes), n = 3 examples"
    assert compared.sentences[0].startswith(counted)
    assert "pg22/S1: real: books (local)" in compared.notes


def test_legacy_cost_is_the_papers_product_of_lengths() -> None:
    cost = {"query": {**COST, "tokens": 71}}
    adapter = result("adapter", cost=cost, state={"bytes": 1, "floats": 1, "tokens": 2352, "cached": 0})
    prompt = result("prompt", cost=cost, state={"bytes": 1, "floats": 1, "tokens": 2352, "cached": 2352})
    frame = comparison([adapter, prompt], legacy=True)
    assert [cell(frame, name, "legacy TMACs query") for name in ("adapter", "prompt")] == ["0.505", "2.06"]
    assert [cell(frame, name, "cached TMACs query") for name in ("adapter", "prompt")] == ["0.506", "0.549"]
    assert "as the GenerativeAdapter paper prints costs" in frame.attrs["caption"]
    assert "once too often" in frame.attrs["notes"]
    assert not [name for name in comparison([adapter]) if "legacy" in name]


def test_what_was_not_trained_is_marked() -> None:
    frame = comparison([result("window"), result("memory", untrained=True)])
    assert [key[0] for key in frame.index] == ["window", "memory (untrained)"]


def test_what_weights_cost_once_has_columns_of_its_own() -> None:
    training = {"flops": 3_000_000_000_000, "peak_bytes": None, "seconds": 4000.0, "tokens": 1_200_000}
    memory = result("memory", cost={"train": training})
    frame = comparison([result("window"), memory], baseline="window")
    assert {key[0] for key in frame.index} == {"window", "memory (trained 1.2M)"}
    columns = ("TFLOPs train", "seconds train", "tokens train", "TFLOPs query", "seconds", "peak MiB")
    assert [cell(frame, "memory (trained 1.2M)", name) for name in columns] == [
        "3", "4,000", "1,200,000", "2.5", "1.5", "3",
    ]  # fmt: skip
    assert cell(frame, "window", "tokens train") == ""


def trained(method: str, nats: float) -> Result:
    training = {"flops": None, "peak_bytes": None, "seconds": 4.0, "tokens": 200_000}
    return result(method, nats, cost={"train": training})


def with_controls(method: str, shift: float = 0.0) -> list[Result]:
    """A method with its own context, with none, and with that of another example."""
    own, more = {"a": 1.0 + shift, "b": 5.0 + shift, "c": 9.0 + shift}, {"none": 0.3, "wrong": 0.2}
    runs = [result(method, parts=nats_of(own))]
    for number, (context, gain) in enumerate(more.items()):
        nats = {name: value + gain + 0.01 * number * place for place, (name, value) in enumerate(own.items())}
        runs.append(changed(result(method, parts=nats_of(nats)), context=context))
    return runs


def test_controls_are_subtracted_from_the_own_context_in_its_row() -> None:
    runs = [*with_controls("full"), *with_controls("window", 0.5), result("hso", parts=nats_of({"a": 3.0, "b": 2.0}))]
    frame = comparison(runs, controls=True, baseline="window", metrics=["nats_per_token"])
    assert [label for (label,) in frame.index] == ["full", "window", "hso"]
    assert cell(frame, "full", "nats_per_token - none") == "-0.300 [-0.300, -0.300]"
    assert cell(frame, "full", "nats_per_token - wrong").startswith("-0.210 [")
    assert cell(frame, "full", "nats_per_token - window").startswith("-0.500 [")
    assert cell(frame, "hso", "nats_per_token - wrong") == ""
    names = [name for name in map(str, frame) if name.startswith("nats_per_token")]
    assert names == ["nats_per_token", *(f"nats_per_token - {name}" for name in ("window", "none", "wrong"))]
    assert "Differences to window and to the controls are paired" in frame.attrs["caption"]
    assert "- wrong: beyond another example's context" in frame.attrs["caption"]


def test_controls_that_nothing_was_run_with_are_refused() -> None:
    with pytest.raises(UserError, match="No method was run with a control"):
        comparison(three(), controls=True)


@pytest.mark.parametrize("name", ["memory", "memory(K=8)"])
def test_a_baseline_that_several_rows_have_is_refused_with_their_names(name: str) -> None:
    of_weights = {"method_config": {"K": 8}, "changed": ["K"]}
    runs = [
        result("memory", nats=nats, weights_name=weights, **of_weights) for weights, nats in (("a", 3.0), ("b", 3.1))
    ]
    with pytest.raises(UserError, match=rf"{re.escape(name)} stands for several methods here: name one of a, b"):
        comparison([result("window"), *runs], baseline=name)


@pytest.mark.parametrize("baseline", ["memory", "memory (trained 200k)"])
def test_a_trained_baseline_is_named_with_its_mark_or_without(baseline: str) -> None:
    frame = comparison([result("window", nats=3.2), trained("memory", 3.0)], baseline=baseline)
    assert cell(frame, "window", f"nats_per_token - {baseline}").startswith("+0.200 [")
    assert "TFLOPs train" not in frame


def test_rows_stand_in_the_order_of_the_runs() -> None:
    results = three()
    assert [key[0] for key in comparison(results[::-1]).index] == list(NATS)


def test_share_is_the_part_of_full_attentions_gain() -> None:
    frame = comparison(three())
    assert cell(frame, "sliding", "share").startswith("0.75 [")
    assert [cell(frame, method, "share") for method in ("window", "full")] == ["0.00 [0.00, 0.00]", "1.00 [1.00, 1.00]"]


def test_share_has_an_interval_over_the_clusters() -> None:
    values = {
        "window": [3.2, 3.4, 3.1, 3.6],
        "sliding": [3.1, 3.2, 3.05, 3.35],
        "full": [3.0, 3.15, 2.92, 3.35],
    }
    runs = [result(name, parts=nats_of({str(n): loss for n, loss in enumerate(row)})) for name, row in values.items()]
    assert cell(comparison(runs), "sliding", "share") == "0.68 [0.03, 1.08]"


@pytest.mark.parametrize("mark", ["", " (trained 200k)"])
def test_a_share_is_taken_between_twins_that_learned_as_much(mark: str) -> None:
    """Training moves all methods; beside untrained ends it alone would count as a gain of memory."""
    twins = ("adapted-window", "adapted-full")
    learned = [trained(twins[0], 3.0), trained("memory", 2.95), trained(twins[1], 2.9)]
    runs = [*three(), *learned]
    frame = comparison(runs, twins=(twins[0] + mark, twins[1] + mark))
    rows = [f"{name} (trained 200k)" for name in (twins[0], "memory", twins[1])]
    assert [cell(frame, row, "share").split(" ")[0] for row in rows] == ["0.00", "0.50", "1.00"]
    assert [cell(frame, row, "share").split(" ")[0] for row in NATS] == ["0.00", "0.75", "1.00"]
    between = f"({twins[0]}{mark} - method) / ({twins[0]}{mark} - {twins[1]}{mark})"
    others = "(window - method) / (window - full)"
    assert f"share = {between} for methods that have learned, {others} for others." in frame.attrs["caption"]
    assert f"share = {between}." in comparison(learned, twins=(twins[0] + mark, twins[1] + mark)).attrs["caption"]
    beside_untrained = comparison(runs)
    assert [cell(beside_untrained, row, "share") for row in rows] == ["", "", ""]
    assert cell(beside_untrained, "sliding", "share").startswith("0.75 [")
    assert "what was learned of the domain would count as memory" in beside_untrained.attrs["notes"]


def test_between_named_methods_without_training_no_other_share_is_shown() -> None:
    elsewhere = [result(name, nats, split="S1") for name, nats in {"window": 3.2, "hso": 3.1, "full": 3.0}.items()]
    frame = comparison([*three(), *elsewhere], twins=("sliding", "full"))
    assert cell(frame, "window", "pg22/S2 share").startswith("-3.00 [")
    assert "pg22/S1 share" not in frame
    assert "share = (sliding - method) / (sliding - full)." in frame.attrs["caption"]


def test_weights_without_a_card_have_learned_too() -> None:
    """Their number says so, where the cost of training is unknown."""
    free = {"parameters": {"backbone": 9, "added": 5, "trained": 5}}
    runs = [*three(), result("memory", 2.95, **free), result("start", 3.1, untrained=True, **free)]
    frame = comparison(runs)
    assert cell(frame, "memory", "share") == ""
    assert cell(frame, "start (untrained)", "share").startswith("0.50 [")


def test_ends_that_nobody_named_are_never_trained_ones() -> None:
    assert "share" not in comparison([result("window"), trained("full", 3.0), result("sliding", 3.1)])
    assert "share" not in comparison([trained("window", 3.2), trained("full", 3.0), trained("memory", 3.1)])


def test_a_share_of_the_ends_alone_says_nothing_and_is_left_out() -> None:
    ends = [run for run in three() if run.method != "sliding"]
    assert "share" not in comparison([*ends, trained("memory", 2.9)])


def test_ends_of_which_only_one_has_learned_are_refused() -> None:
    with pytest.raises(UserError, match="Only one of the twins window and adapted has learned: name two that were tr"):
        comparison([*three(), trained("adapted", 2.9)], twins=("window", "adapted"))


def test_beside_its_paired_difference_a_value_has_no_interval() -> None:
    frame = comparison(three(), baseline="window")
    assert [cell(frame, name, "nats_per_token") for name in NATS] == ["3.200", "3.050", "3.000"]
    alone = comparison([*three(), result("hso", split="S1")], baseline="window")
    assert cell(alone, "hso", "pg22/S1 nats_per_token") == "3.200 [2.700, 3.700]"


def test_columns_are_value_difference_share_and_cost() -> None:
    shown = list(comparison(three(), baseline="window", metrics=[]))
    assert shown[:3] == ["nats_per_token", "nats_per_token - window", "share"]
    assert not any("share" in name or " - " in name for name in shown[3:])


def test_the_caption_says_where_a_model_has_a_window_of_its_own() -> None:
    """There `full` is not attention to all tokens."""
    banded = [result(name, 3.0, backbone="mistral", own_window=4096) for name in ("window", "full")]
    caption = comparison([*banded, *three()]).attrs["caption"]
    assert caption.count("attends in a sliding window of its own: with every method, full too, a query sees") == 1
    assert "at most 4,096 tokens there" in caption
    assert "sliding window" not in comparison(three()).attrs["caption"]


@pytest.mark.parametrize("twins", [("sinks", "full"), ("window", "sinks")])
def test_twins_that_are_not_there_are_refused(twins: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="There is no method in these results 'sinks'"):
        comparison(three(), twins=twins)


@pytest.mark.parametrize("full", [[3.2, 3.4, 3.1, 3.6], [3.9, 2.6, 3.7, 2.7], [3.4, 3.6, 3.3, 3.8]])
def test_share_is_left_out_where_full_attention_may_gain_nothing(full: list[float]) -> None:
    """Equal to the window, not significantly better, and worse."""
    runs = [("window", [3.2, 3.4, 3.1, 3.6]), ("full", full), ("sliding", [3.1, 3.2, 3.05, 3.35])]
    results = [result(name, parts=nats_of({str(n): loss for n, loss in enumerate(row)})) for name, row in runs]
    assert "share" not in comparison(results)


HEADED = {"metrics": ["share", "nats_per_token"]}
EQUAL = {"window": 3.2, "sliding": 3.05, "full": 3.2}


@pytest.mark.parametrize(
    ("results", "options", "reason"),
    [
        ([result(name, nats) for name, nats in EQUAL.items()], HEADED, "full has no certain gain over window here"),
        (three()[:2], HEADED, "window or full is missing, or was run on other examples"),
        (three()[:2], {"twins": ("window", "full")}, "window or full is missing, or was run on other examples"),
        (three()[:2], {"twins": ("sliding", "window")}, "window has no certain gain over sliding here"),
        (
            [result("window"), result("full", 3.0, split="S1")],
            HEADED,
            "window or full is missing, or was run on other examples",
        ),
        ([result("window"), result("full", 3.0)], HEADED, "only window and full have one"),
        (three(), {"twins": ("window", "full"), "metrics": ["word_perplexity"]}, "--metric does not name it"),
        (
            [trained("window", 3.2), trained("full", 3.0)],
            HEADED,
            "window or full has learned: name two that were trained alike with --twins",
        ),
        (
            [changed(run, metrics={"f1": METRIC}, parts={}) for run in three()],
            {"metrics": ["share"]},
            "these runs have no nats per token",
        ),
    ],
)
def test_the_caption_says_why_there_is_no_share(results: list[Result], options: dict[str, Any], reason: str) -> None:
    frame = comparison(results, **options)
    assert not any("share" in column for column in frame)
    assert f" No share: {reason}." in frame.attrs["caption"]


def test_the_caption_is_silent_on_a_share_that_nobody_named() -> None:
    assert "No share" not in comparison(three()[:2]).attrs["caption"]
    assert "No share" not in comparison(three(), **HEADED).attrs["caption"]


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6, 1e30])
def test_cells_stay_short(size: float) -> None:
    run = result(nats=size, cost={"query": {**COST, "flops": round(size)}})
    assert max(map(len, comparison([run]).iloc[0])) < 30


@pytest.mark.parametrize(
    "other",
    [
        {"split": "S1"},
        {"tokens": 5},
        {"context": "none"},
        {"backbone": "tiny-gpt2"},
        {"data": {"examples": 2}},
    ],
)
def test_share_needs_the_same_examples_and_options(other: dict[str, Any]) -> None:
    results = [result("window"), result("full", 3.0, **other)]
    assert not any("share" in column for column in comparison(results))


def test_several_baselines_have_a_column_each() -> None:
    frame = comparison(three(), baseline=["window", "full"], metrics=["nats_per_token"])
    alone = {name: comparison(three(), baseline=name, metrics=["nats_per_token"]) for name in ("window", "full")}
    for name, table in alone.items():
        column = f"nats_per_token - {name}"
        assert list(frame[column]) == list(table[column])
    assert "Differences to window and to full are paired" in frame.attrs["caption"]


def test_a_pattern_and_a_name_have_a_column_each() -> None:
    frame = comparison(three(), baseline=["win*", "full"], metrics=["nats_per_token"])
    assert cell(frame, "full", "nats_per_token - win*: which") == "window"
    assert cell(frame, "full", "nats_per_token - full") == "+0.000"


def test_a_baseline_is_subtracted_from_every_metric() -> None:
    frame = comparison(three(), baseline="window")
    differences = [cell(frame, method, "nats_per_token - window") for method in NATS]
    assert [text.split(" ")[0] for text in differences] == ["+0.000", "-0.1500", "-0.200"]
    assert cell(frame, "full", "word_perplexity - window") == "+0.000"


def test_several_tasks_make_groups_of_columns() -> None:
    results = [*three(), result(task="chapterbreak", split="ctx-4k")]
    frame = comparison(results)
    columns = ("chapterbreak/ctx-4k word_perplexity", "pg22/S2 word_perplexity")
    assert [cell(frame, "window", name) for name in columns] == ["20.000", "20.000"]
    assert cell(frame, "full", columns[0]) == ""
    assert len(frame) == 3


@pytest.mark.parametrize(("name", "other"), [("context", "none"), ("backbone", "other")])
def test_what_differs_beside_rows_and_columns_joins_the_rows(name: str, other: str) -> None:
    frame = comparison([result(), result(**{name: other})])
    assert list(frame.index.names) == ["method", name]
    assert len(frame) == 2
    assert name not in comparison([result(), result()]).index.names


@pytest.mark.parametrize("other", [{"tokens": 9}, {"history": 9}, {"split": "S1"}, {"data": {"sha256": "b" * 64}}])
def test_different_data_never_share_a_cell(other: dict[str, Any]) -> None:
    frame = comparison([result(nats=1.0), result(nats=2.0, **other)])
    assert {value[:5] for value in frame.filter(like="nats_per_token").to_numpy().ravel()} == {"1.000", "2.000"}
    assert frame.shape[0] == 1


def test_configurations_of_one_method_are_named_by_what_differs() -> None:
    configs = [{"N": 8, "sinks": 4}, {"N": 16, "sinks": 4}]
    frame = comparison([*(result(method_config=config) for config in configs), result("full")])
    assert [key[0] for key in frame.index] == ["window(N=8)", "window(N=16)", "full"]


def test_a_method_with_its_defaults_has_its_name_alone_unless_the_defaults_differ() -> None:
    small, default, other = ({"N": n, "sinks": 4} for n in (8, 64, 32))
    both = [result(method_config=small, changed=["N"]), result(method_config=default, changed=[])]
    assert [key[0] for key in comparison([*both, result("full")]).index] == ["window(N=8)", "window", "full"]
    older = result(method_config=other, changed=[])
    frame = comparison([*both, older, result("full")])
    assert [key[0] for key in frame.index] == ["window(N=8)", "window(N=64)", "window(N=32)", "full"]


@pytest.mark.parametrize("baseline", ["window", "window (untrained)"])
def test_one_of_two_forms_may_be_the_baseline_with_its_mark_or_without(baseline: str) -> None:
    small, default = ({"N": n, "sinks": 4} for n in (8, 64))
    run = result(method_config=small, changed=["N"], untrained=True, nats=2.0)
    two = result(method_config=default, changed=[], untrained=True, nats=1.0)
    frame = comparison([run, two], baseline=baseline)
    label = f"nats_per_token - {baseline}"
    assert cell(frame, "window(N=8) (untrained)", label).startswith("+1.000 [")
    assert cell(frame, "window (untrained)", label) == "+0.000"


def test_every_setting_that_is_not_the_default_is_named() -> None:
    config = {"N": 32, "weights": "/deep/side.safetensors", "sinks": 4}
    frame = comparison([result(method_config=config, changed=["N", "weights"]), result("full")])
    assert [key[0] for key in frame.index] == ["window(N=32,weights=/deep/side.safetensors)", "full"]


def test_a_baseline_that_is_named_without_its_settings_is_shown_with_them() -> None:
    row = result(method_config={"N": 32, "weights": "none", "sinks": 4}, changed=["N"], nats=2.0)
    frame = comparison([row, result("full", nats=1.0)], baseline="window", metrics=["nats_per_token"])
    assert "nats_per_token - window" not in frame.columns
    assert cell(frame, "full", "nats_per_token - window(N=32)").startswith("-1.000 [")
    assert "Differences to window(N=32) are paired" in frame.attrs["caption"]


@pytest.mark.parametrize("name", ["commit", "torch", "weights_sha256", "contextlab"])
def test_equal_runs_of_two_versions_have_different_names(name: str) -> None:
    versions = [("window", "1.0"), ("window", "2.0"), ("full", "1.0")]
    runs = [result(method, provenance={name: version}) for method, version in versions]
    frame = comparison(runs)
    assert [key[0] for key in frame.index] == [f"window ({name} 1.0)", f"window ({name} 2.0)", "full"]


def test_equal_runs_of_equal_versions_are_named_by_their_ids() -> None:
    runs = [result(run_id=f"window-pg22-{n}00000") for n in (1, 2)]
    assert [key[0] for key in comparison(runs).index] == ["window (run 100000)", "window (run 200000)"]


def test_seconds_that_were_disturbed_are_marked_and_those_under_counters_left_out() -> None:
    calm = result()
    busy = result("full", cost={"query": {**COST, "seconds_spread": 0.3}})
    before = result("sinks", cost={"query": {**COST, "timed_while_counting": True}})
    frame = comparison([calm, busy, before])
    assert [cell(frame, name, "seconds") for name in ("window", "full", "sinks")] == ["1.5", "1.5 ~", ""]
    assert "~: another program was running." in frame.attrs["caption"]
    assert "~ marks seconds per FLOP" in frame.attrs["notes"]
    assert "~" not in comparison([calm]).attrs["caption"] + comparison([calm]).attrs["notes"]


def test_what_was_not_counted_is_blank() -> None:
    blank = result(cost={"query": {**COST, "flops": None, "peak_bytes": None}})
    frame = comparison([blank, result("full")])
    assert [cell(frame, "window", name) for name in ("TFLOPs query", "peak MiB", "seconds")] == ["", "", "1.5"]


def test_a_table_takes_time_linear_in_its_results() -> None:
    """Counted in reads of methods, not in seconds."""
    looks = 0

    class Counting(Result):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looks
            looks += name in ("method", "data", "metrics")
            return super().__getattribute__(name)

    def looks_at(count: int) -> int:
        nonlocal looks
        runs = [Counting.model_validate(result(task=f"task-{n}").as_json()) for n in range(count)]
        looks = 0
        comparison(runs, rows="task")
        return looks

    few, many = looks_at(20), looks_at(200)
    assert many <= 10 * few


def test_of_one_run_that_is_stored_twice_the_latest_is_shown() -> None:
    older, newer = result(nats=1.0, run_id="same"), result(nats=2.0, run_id="same")
    for results in ([older, newer], [newer, older]):
        assert cell(comparison(results), "window", "nats_per_token").startswith("2.000")


def test_rows_and_columns_can_be_exchanged() -> None:
    frame = comparison(three(), rows="task", columns="method")
    assert cell(frame, "pg22/S2", "full nats_per_token").startswith("3.000")
    assert cell(comparison(three(), rows="method", columns="method"), "full", "word_perplexity") == "20.000"


def test_only_the_wanted_metrics_are_shown() -> None:
    frame = comparison(three(), metrics=["word_perplexity"])
    assert "word_perplexity" in frame
    assert "nats_per_token" not in frame
    assert "share" not in frame
    assert "share" in comparison(three(), metrics=["word_perplexity", "share"])
    assert list(comparison(three(), metrics=[]))[:2] == ["nats_per_token", "share"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "methd"}, "did you mean 'method'"),
        ({"columns": "tsk"}, "did you mean 'task'"),
        ({"baseline": "windw"}, "did you mean 'window'"),
        ({"baseline": ["full", "windw"]}, "did you mean 'window'"),
        ({"baseline": ["full*", "win*"]}, r"full\* and win\* are patterns of baselines: give one of them"),
        ({"metrics": ["nats_per_tokn"]}, "did you mean 'nats_per_token'"),
    ],
)
def test_unknown_names_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        comparison(three(), **options)


def test_the_caption_names_data_model_and_hardware() -> None:
    compared = tables.comparison([*three(), result("full", 3.0, split="S1", max_context=8192)])
    assert compared.sentences[0] == (
        "pg22/S2, pg22/S1: real: 50 % of the books & more (local), n = 3 examples; context own, backbone tiny-llama, "
        "dtype float32"
    )
    notes = " ".join(compared.notes)
    for part in ("device cpu (x), seed 0", "full starts again every 8,192 tokens", "2 FLOPs"):
        assert part in notes


def test_the_caption_says_once_what_the_data_of_several_tasks_is() -> None:
    other = result("window", 3.0, split="S3", data={"note": "real: 3 books"})
    caption = comparison([*three(), result("full", 3.0, split="S1"), other]).attrs["caption"]
    note = result().data.note
    assert f"pg22/S3: real: 3 books (local); pg22/S2, pg22/S1: {note} (local), n = 3" in caption
    assert caption.count(note) == 1


def test_the_caption_names_the_twin_of_a_trained_method_once() -> None:
    trained = [result("longmem", 3.0, split=split, twin="window(rank=16)") for split in ("S1", "S2")]
    notes = comparison([*three(), *trained]).attrs["notes"]
    assert notes.count("The twin of longmem, without memory, is window(rank=16).") == 1
    assert "twin" not in comparison(three()).attrs["notes"]


def test_a_run_summarised_again_over_fewer_examples_is_compared_on_those(tmp_path: Path) -> None:
    for method, nats in (("window", [1.0, 2.0, 9.0]), ("full", [0.9, 1.8, 0.0])):
        lines = json_lines(*(line_of(str(n), loss, index=n) for n, loss in enumerate(nats)))
        store(tmp_path / method, result(method, data={"examples": 2}), lines)
    frame = comparison(load_results(tmp_path), baseline="window")
    assert cell(frame, "full", "nats_per_token - window").startswith("-0.150")


def test_with_tasks_as_rows_every_method_has_a_row_under_its_task() -> None:
    runs = [result(method, task=task) for method in NATS for task in ("pg22", "wikitext")]
    rows = comparison(runs, rows="task").index.tolist()
    assert rows == [(f"{task}/S2", method) for task in ("pg22", "wikitext") for method in NATS]
