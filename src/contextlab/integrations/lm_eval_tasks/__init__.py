"""Our tasks as tasks of lm-evaluation-harness: a folder for its option `--include_path`.

`python -m contextlab.integrations.lm_eval_tasks` prints the folder. The YAML files in it name the functions below,
which the harness calls with the values of `--metadata` and the arguments of the model.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]

from contextlab import grammar, registry
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.protocols.answers import AnswerProtocol, QuestionProtocol
from contextlab.benchmarks.tasks.icl import ICL, ICLConfig, template
from contextlab.benchmarks.tasks.labels import Labels, LabelsConfig
from contextlab.harness.runner import seeded_example

FOLDER = Path(__file__).parent

Docs = dict[str, Dataset]


def icl(split: str, settings: str = "", data: str | None = None, seed: int = 0, **_: Any) -> Docs:
    """The prompts of `icl` with their choices: the same as in `contextlab bench`, from the same seed.

    Args:
        split: name of the set.
        settings: as in brackets, `k=4,template=hso`. Greedy scoring is replaced by the scoring of labels.
        data: folder of data sets.
        seed: seed of the demonstrations.
    """
    config = ICLConfig.parse(grammar.settings(settings, f"icl/{split}"), "icl")
    if template(ICL().check_split(split), config).scoring == "greedy":
        config = dataclasses.replace(config, scoring="label")
    return _classified(ICL(config), split, data, seed)


def labels(split: str = "all", data: str | None = None, seed: int = 0, **_: Any) -> Docs:
    """The texts of a table after their demonstrations: the same as in `contextlab bench`, from the same seed.

    Args:
        split: with settings, as `all(path=FILE,k=4)`. Greedy scoring is replaced by the scoring of labels.
        data: folder of data sets.
        seed: seed of the demonstrations.
    """
    config = LabelsConfig.parse(grammar.split(split).settings, "labels")
    if config.scoring == "greedy":
        config = dataclasses.replace(config, scoring="label")
    return _classified(Labels(config), grammar.split(split).name, data, seed)


def _classified(task: ICL | Labels, split: str, data: str | None, seed: int) -> Docs:
    """Every text to classify after its demonstrations."""
    split = task.check_split(split)
    examples, protocol = task.load(split, Path(data) if data else None).examples, task.protocol(split)
    words = protocol.template.labels
    # Several label words of one class are several right choices.
    gold = [[n for n, c in enumerate(_classes(words)) if c == label] for label in range(len(words))]
    one_word = all(len(of_class) == 1 for of_class in words)
    docs = []
    for block in examples:
        with seeded_example(seed, block.id):
            draws = list(protocol.draw(block))
        for shown, items in draws:
            context = protocol.context(shown)
            docs += [
                {
                    "id": item.id,
                    "context": context + protocol.question(item),
                    "choices": protocol.choices(item),
                    "gold": gold[item.label][0] if one_word else gold[item.label],
                }
                for item in items
            ]
    return {"test": Dataset.from_list(docs)}


def questions(task: str, split: str | None = None, ending: str = "", data: str | None = None, **_: Any) -> Docs:
    """Every question after its context, with the prompts of `contextlab bench`.

    Args:
        task: name of a task with questions.
        split: split with settings, as `512(prompt=chat)`; the default when None.
        ending: text that is added to the split's name.
        data: folder of data sets.
    """
    benchmark, name = registry.task_and_split(task, split)
    name = benchmark.check_split(name + ending)
    # With the folders of files, which labels leave out.
    protocol = _protocol(task, split := grammar.spelled_split(name, benchmark.config.changed()))
    docs = [
        {
            "id": question.id,
            "context": protocol.whole(reading, question),
            "choices": protocol.choices(question),
            "gold": question.options.index(question.answers[0]) if question.options else None,
            "answers": list(question.answers),
            "task": task,
            "split": split,
        }
        for reading in benchmark.load(name, Path(data) if data else None).examples
        for question in reading.questions
    ]
    return {"test": Dataset.from_list(docs)}


def compare(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """The scores of a written answer, the same as in `contextlab bench`."""
    protocol = _protocol(doc["task"], doc["split"])
    assert isinstance(protocol, AnswerProtocol)
    metrics = protocol.compare(results[0], Question(doc["id"], "", tuple(doc["answers"])))
    return {name: metrics[name] for name in protocol.measures}


@functools.cache
def _protocol(task: str, split: str) -> QuestionProtocol:
    benchmark, name = registry.task_and_split(task, split)
    protocol = benchmark.protocol(name)
    assert isinstance(protocol, QuestionProtocol)
    return protocol


def choices(task: str, split: str, data: str | None = None, **_: Any) -> Docs:
    """The contexts of a task of choices with their candidates, in full length; the harness may cut them."""
    examples = registry.task(task).load(split, Path(data) if data else None).examples
    docs = [{"id": e.id, "context": e.context, "choices": list(e.candidates), "gold": e.answer} for e in examples]
    return {"test": Dataset.from_list(docs)}


def documents(task: str, split: str | None = None, data: str | None = None, **_: Any) -> Docs:
    """The texts of a perplexity task."""
    benchmark, name = registry.task_and_split(task, split)
    examples = benchmark.load(name, Path(data) if data else None).examples
    return {"test": Dataset.from_list([{"id": example.id, "text": example.text} for example in examples])}


def _classes(labels: tuple[tuple[str, ...], ...]) -> list[int]:
    return [number for number, words in enumerate(labels) for _ in words]
