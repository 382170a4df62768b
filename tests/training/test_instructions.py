"""Instructions: every example once, in words of its task's templates, and one document for every task."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from toy_corpus import tiny

from contextlab.errors import UserError
from contextlab.training import instructions
from contextlab.training.corpus import prepare
from contextlab.training.sources import open_source
from contextlab.training.streams import Streams

words = strategies.text(strategies.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
examples = strategies.lists(strategies.tuples(strategies.sampled_from("abc"), words, words), max_size=12)


def lines(triples: list[tuple[str, str, str]]) -> list[str]:
    return [json.dumps({"task": t, "inputs": i, "targets": o}) for t, i, o in triples]


def line(inputs: str, **others: Any) -> str:
    return json.dumps({"inputs": inputs, "targets": "yes", **others})


@hypothesis.given(examples)
def test_every_example_is_in_the_text_of_its_task_once(triples: list[tuple[str, str, str]]) -> None:
    marked = [(task, f"<{n}|{inputs}", f"{targets}|{n}>") for n, (task, inputs, targets) in enumerate(triples)]
    texts = dict(instructions.texts(Path("x"), lines(marked), {}))
    assert texts.keys() == {task for task, _, _ in triples}
    for task, inputs, targets in marked:
        assert texts[task].count(f"{inputs}\n{targets}") == 1
    parts = [f"{inputs}\n{targets}" for _, inputs, targets in marked]
    between = len(instructions.BETWEEN) * (len(parts) - len(texts))
    assert sum(map(len, texts.values())) == sum(map(len, parts)) + between


@hypothesis.given(examples, strategies.randoms())
def test_the_order_of_the_lines_says_nothing(triples: list[tuple[str, str, str]], random: Any) -> None:
    pool = {"a": ("{inputs}: {targets}", "{targets} <- {inputs}"), "*": ("Q {inputs} A {targets}",)}
    mixed = random.sample(triples, len(triples))
    first, other = (dict(instructions.texts(Path("x"), lines(each), pool)) for each in (triples, mixed))
    assert first == other


def test_templates_are_those_of_the_task_and_all_are_taken() -> None:
    pool = {"a": tuple(f"{n} {{inputs}} {{targets}}" for n in range(3)), "*": ("any {inputs} {targets}",)}
    triples = [("a", f"i{n}", "o") for n in range(60)] + [("b", "{targets}", "{inputs}")]
    texts = dict(instructions.texts(Path("x"), lines(triples), pool))
    begins = [text[0] for text in texts["a"].split(instructions.BETWEEN)]
    assert set(begins) == {"0", "1", "2"}
    # What an example holds is no template itself.
    assert texts["b"] == "any {targets} {inputs}"


def test_flans_own_name_of_a_task_is_read_too() -> None:
    both = [line("x", task_name="squad"), "", line("y", task_name="squad"), line("z")]
    assert [task for task, _ in instructions.texts(Path("x"), both, {})] == ["squad", ""]


@pytest.mark.parametrize("bad", ["[]", "3", '{"inputs": "x"}', '{"inputs": "x", "targets": 3}', r'"\ud800"'])
def test_a_line_that_is_no_example_is_one_sentence(bad: str) -> None:
    with pytest.raises(UserError, match="Line 2 of x is no example"):
        list(instructions.texts(Path("x"), [line("a"), bad], {}))
    with pytest.raises(UserError, match="Line 2 of x is not valid JSON"):
        list(instructions.texts(Path("x"), [line("a"), "{"], {}))


@pytest.mark.parametrize("bad", ["{", "[]", '{"a": 3}', '{"a": ["{inputs}"]}', '{"a": ["{targets}{targets}{inputs}"]}'])
def test_a_pool_of_another_form_is_one_sentence(tmp_path: Path, bad: str) -> None:
    (tmp_path / "templates.json").write_text(bad)
    with pytest.raises(UserError, match="holds no templates"):
        instructions.read_pool(tmp_path / "templates.json")


def test_a_corpus_of_instructions_is_cut_into_texts_of_the_papers_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "flan"
    folder.mkdir()
    tasks = {name: [line(f"{name} {n}", task=name) for n in range(40)] for name in ("one", "two", "three", "four")}
    (folder / "x.instructions.jsonl").write_text("\n".join(itertools.chain(*tasks.values())))
    (folder / "plain.jsonl").write_text('{"text": "as it stands"}\n')
    plain = open_source(folder).digests
    (folder / "templates.json").write_text(json.dumps({"*": ["Q: {inputs}\nA: {targets}"]}))
    assert open_source(folder).digests != plain
    backbone = tiny()
    built = prepare(folder, backbone)
    assert {entry.name for entry in built.documents} >= {f"x.instructions.jsonl#{task}" for task in tasks}
    assert len(built.held_back) == 2
    long = [n for n in built.training if built.documents[n].tokens > 500]
    whole = backbone.decode(built.piece(long[0]).tolist())
    assert whole.count("Q: ") == whole.count("\nA: yes") == 40
    batch = Streams(built, long[:1], 1, 64, sequence=128)
    fresh = [bool(batch.next().fresh_B) for _ in range(4)]
    assert fresh == [True, False, True, False]
