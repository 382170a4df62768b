from __future__ import annotations

import shlex

import pytest
from toy_paper import paper, result

from contextlab.reports.papers import plan, schema
from contextlab.reports.papers.schema import PaperRun

SHAPE = plan.Shape(parameters=10**9, layers=10, width=100, cached=4000)


def run(method: str = "window", tokens: int = 8192, **changes: object) -> PaperRun:
    return PaperRun.model_validate(
        {"methods": [method], "rows": ["a"], "task": "needle", "tokens": tokens, "read": {"x": "f1"}, **changes}
    )


def test_flops_are_those_of_weights_and_of_visible_pairs() -> None:
    assert SHAPE.flops(1, 0) == 2e9
    assert SHAPE.flops(10, 7) - SHAPE.flops(10, 0) == 10 * 7 * 4 * 10 * 100


def test_the_embedded_models_estimate_is_near_what_was_counted() -> None:
    # 8,192 tokens of a book: 2.49 TFLOPs in windows, 4.52 with full attention (results/pg22-s2).
    forms = {"window": 2.49e12, "full": 4.52e12, "hso": 5.84e12, "sliding": 3.0e12}
    forms |= {"longmem(form=paper)": 3.52e12, "longmem-difference": 4.89e12}
    for method, counted in forms.items():
        (step,) = plan.steps([run(method, limit=1)], plan.EMBEDDED, plan.SPEED)
        assert step.flops == pytest.approx(counted, rel=0.15), method


def test_a_step_grows_with_its_examples_and_methods() -> None:
    (step,) = plan.steps([run(limit=1)], SHAPE, 1e9)
    (three,) = plan.steps([run(limit=3)], SHAPE, 1e9)
    (two,) = plan.steps([run(limit=1, methods=["window", "window(N=8)"], rows=["a", "b"])], SHAPE, 1e9)
    assert three.flops == 3 * step.flops
    # The largest call of every run is made once more, to measure its memory.
    assert step.seconds < three.seconds < 3 * step.seconds
    assert (two.flops, two.seconds) == (2 * step.flops, 2 * step.seconds)
    assert step.memory == three.memory == two.memory


def test_a_faster_machine_needs_less_time_and_short_texts_more() -> None:
    slow, fast = (plan.steps([run(limit=1)], SHAPE, speed)[0] for speed in (1e9, 4e9))
    assert slow.seconds == 4 * fast.seconds
    (short,) = plan.steps([run(tokens=plan.SHORT, limit=1)], SHAPE, 1e9)
    assert short.seconds == pytest.approx(2 * (1 + plan.AGAIN) * short.flops / 1e9)


def test_few_tokens_in_a_window_and_a_second_step_take_longer() -> None:
    texts = ("hso", "hso(k=10)", "hso(k=10,steps=2)", "hso(k=10,states=inputs)")
    default, small, twice, inputs = (plan.steps([run(text, limit=2)], SHAPE, 1e9)[0] for text in texts)
    assert default.flops == small.flops == twice.flops / 2 < inputs.flops
    assert small.seconds / default.seconds == pytest.approx((10 + plan.HALF) / 10 * 25 / (25 + plan.HALF))
    assert twice.seconds == pytest.approx(2 * small.seconds)
    assert small.seconds < inputs.seconds < small.seconds * inputs.flops / small.flops


def test_hso_takes_as_long_as_a_quiet_machine_took() -> None:
    """1,024 tokens, alone on two cores (results/benches/hso.json), but for the call that is made once more."""
    (once,) = plan.steps([run("hso", tokens=1024, limit=1)], plan.EMBEDDED, plan.SPEED)
    assert once.seconds / (1 + plan.EFFORTS["hso"].again) == pytest.approx(8.367, rel=0.3)


def test_a_run_without_limit_reads_the_tokens_of_the_whole_evaluation() -> None:
    (step,) = plan.steps([run(tokens=1000)], SHAPE, 1e9, total=50_000)
    assert step.examples == 50
    (none,) = plan.steps([run(tokens=1000)], SHAPE, 1e9)
    assert none.examples == 1


def test_a_limit_of_the_command_replaces_that_of_the_recipe() -> None:
    (step,) = plan.steps([run(limit=9)], SHAPE, 1e9, limit=2, backbone="tiny-llama", data=None)
    assert step.examples == 2
    words = shlex.split(step.command)
    assert words[words.index("--limit") + 1] == "2"
    assert words[words.index("--backbone") + 1] == "tiny-llama"
    assert "--data" not in words


def test_memory_holds_weights_a_cache_and_logits() -> None:
    assert SHAPE.memory(0) == 4 * (10**9 + 1024 * SHAPE.vocabulary)
    assert SHAPE.memory(100) - SHAPE.memory(0) == 4 * 100 * 4000
    kept, plain = (plan.steps([run(method, limit=1)], SHAPE, 1e9)[0] for method in ("hso", "window"))
    assert kept.memory > plain.memory


def test_the_speed_of_stored_runs_is_that_of_plain_long_texts() -> None:
    phase = {"flops": 10**12, "seconds": 2.0, "tokens": plan.SHORT, "peak_bytes": None}
    cost = {"train": None, "contextualize": None, "query": phase}
    assert plan.speed_of([result(cost=cost)]) == pytest.approx(1e12)
    assert plan.speed_of([result(cost=cost, method="retrieval")]) == pytest.approx(2e12)
    # A method of the user's counts as a plain one.
    assert plan.speed_of([result(cost=cost, method="mine.py:Mine")]) == pytest.approx(1e12)


def test_runs_without_counts_have_no_speed() -> None:
    phase = {"flops": None, "seconds": 2.0, "tokens": 10, "peak_bytes": None}
    assert plan.speed_of([result(cost={"train": None, "contextualize": None, "query": phase})]) is None
    assert plan.speed_of([]) is None


def test_the_papers_whole_evaluation_has_the_papers_model() -> None:
    toy = paper()
    scale = toy.entry[0].paper
    assert scale is not None
    step = plan.whole(toy, scale, speed=1e12)
    assert step.flops == 1_000_000 * (2 * 10**9 + 4 * 10 * 100 * 500)
    assert step.seconds == step.flops / 1e12
    assert "1,000,000 tokens" in step.command


def test_every_recipe_has_a_command_of_its_own_and_a_time() -> None:
    for published in schema.papers().values():
        for entry in published.entry:
            for step in plan.steps(entry.embedded.runs if entry.embedded else [], plan.EMBEDDED, plan.SPEED):
                assert shlex.split(step.command)[:2] == ["contextlab", "bench"]
                assert plan.START < step.whole_seconds < 900
                assert 0.5e9 < step.memory < 4e9


def test_one_entry_of_every_paper_takes_fifteen_minutes_together() -> None:
    def seconds(name: str) -> float:
        ((_, entry),) = schema.find(name)
        assert entry.embedded is not None
        return sum(step.whole_seconds for step in plan.steps(entry.embedded.runs, plan.EMBEDDED, plan.SPEED))

    assert sum(map(seconds, ("longmem/table7", "evalm/table4", "hso/table2", "generative-adapter/table1"))) < 900
