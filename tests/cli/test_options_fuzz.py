"""Any value of a setting or a split is accepted, or refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
import torch
from damage import ODD, rounds

from contextlab import backbone as backbones
from contextlab import harmless, registry
from contextlab.cli.bench import settings_of
from contextlab.config import Config
from contextlab.errors import UserError
from contextlab.harness import labels
from contextlab.harness.selection import SelectedTask, select
from contextlab.method import build

BACKBONE = backbones.load("tiny-llama", device="cpu")
NUMBERS = ["0", "-1", "1", "2", "3", "7", "16", "64", "128", "129", "1000", "1e3", "0.5", "-0.5", "nan", "inf", "-inf"]
LARGE = ["1e308", "1e400", "1e-400", "9" * 20, "-" + "9" * 20, str(2**31), str(2**47), str(2**62), "9" * 5000, "\u0663"]
NESTED = ["[", "[[]]", "[1,2]", "[[1,[2]]]", "{}", '{"a": 1}', "[" * 100_000, "***[", "*", "*.mlp.*", "|"]
WORDS = ["", " ", "true", "null", "None", "x", "adam", "sgd", "both", "=", "a=b", "\0", "\x1b[31m", "\ud800"]
VALUES = [*NUMBERS, *LARGE, *NESTED, *WORDS, ".", "/", "/dev/null", "/nowhere/x"]


def sentence(error: UserError) -> None:
    message = str(error)
    assert len(message) < 6000, message[:200]
    assert "\n" not in message, message
    assert message.endswith((".", "?")), message
    harmless.line(message).encode()


def assert_kept(config: Config) -> None:
    """What is accepted is stored as JSON, and means the same when it is read back."""
    stored = json.loads(json.dumps(config.as_dict(), default=str))
    again = type(config).parse(stored)
    assert json.loads(json.dumps(again.as_dict(), default=str)) == stored


@pytest.mark.parametrize("name", registry.methods())
def test_any_setting_is_accepted_or_refused(name: str) -> None:
    kind = registry.method_class(name)
    fields = [field.name for field in dataclasses.fields(kind.Config)] or ["N"]
    tried = refused = 0
    for draw in rounds(25, 0.1, name):
        drawn = draw.sample(fields, min(len(fields), draw.choice((1, 1, 2))))
        pairs = [f"{field}={draw.choice(VALUES)}" for field in drawn]
        tried += 1
        try:
            settings = settings_of(pairs)
            method = build(kind, BACKBONE, kind.Config.parse(settings))
            state, _ = method.read(method.start(), torch.arange(150)[None] % 257)
            method.score(state, [[1, 2], [3]])
            assert_kept(method.config)
        except UserError as error:
            refused += 1
            sentence(error)
    assert refused
    print(f"--set, {name}: {tried} tried, {refused} refused")


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", registry.methods())
def test_any_value_from_python_is_accepted_or_refused(name: str, value: Any) -> None:
    config = registry.method_class(name).Config
    for field in dataclasses.fields(config):
        try:
            assert_kept(config.parse({field.name: value}))
        except UserError as error:
            sentence(error)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("segment", 10**20), ("lr", float("inf")), ("lr", 1e300), ("N", -(10**30)), ("eps", 4e38), ("N", 2**60)],
)
def test_numbers_that_no_tensor_holds_are_refused_however_they_come(setting: str, value: Any) -> None:
    kind = registry.method_class("dynamic-eval")
    with pytest.raises(UserError, match=f"Setting {setting}=.* is not valid"):
        kind.Config.parse({setting: value})
    if value > 0:
        with pytest.raises(UserError, match=f"Setting {setting}="):
            kind(BACKBONE, kind.Config(**{setting: value}))


def test_settings_that_need_more_memory_than_there_is_are_refused() -> None:
    kind = registry.method_class("generative-adapter")
    with pytest.raises(UserError, match="does not fit into memory"):
        build(kind, BACKBONE, kind.Config.parse({"d_r": 2**40}))


@pytest.mark.parametrize("pairs", [["N=3", "N=4"], ["N=3", "N=3"]])
def test_a_setting_that_is_named_twice_is_refused(pairs: list[str]) -> None:
    with pytest.raises(UserError, match="--set names N twice"):
        settings_of(pairs)


def spoilt(split: str, draw: random.Random) -> str:
    """A text with an error in it."""
    position = draw.randrange(len(split) + 1)
    odd = draw.choice((*":,=/()'[\"\0\ud800 ", "", "(n=", ",n=-1", "(seed=x)", "9" * 400, "%s"))
    return draw.choice(
        (odd, split + odd, odd + split, split[:position], split[:position] + odd + split[position:], split.upper())
    )


@pytest.mark.parametrize("kind", ["method", "task"])
def test_any_list_of_methods_or_tasks_is_accepted_or_refused(kind: str) -> None:
    tried = refused = 0
    known = {"method": ["longmem(K=32,csz=4)", "evalm(remote_bias=null)", "window"], "task": TASK_FORMS}[kind]
    for draw in rounds(150, 0.05, kind):
        text = ",".join(
            spoilt(draw.choice(known), draw) if draw.random() < 0.5 else draw.choice(known) for _ in range(2)
        )
        named = {"methods": "window", "tasks": "needle", f"{kind}s": text}
        options: dict[str, Any] = {
            "split": draw.choice((None, None, None, "S1", "512(prompt=chat)")),
            "settings": draw.choice(({}, {}, {}, {"N": 7})),
            "tokens": draw.choice((None, None, 9)),
        }
        tried += 1
        try:
            methods, tasks = select(**named, **options)
            methods_again, tasks_again = select(
                [selected.label for selected in methods], [labelled(selected) for selected in tasks]
            )
            assert (methods_again, list(map(labelled, tasks_again))) == (methods, list(map(labelled, tasks)))
        except UserError as error:
            refused += 1
            sentence(error)
    assert refused
    assert refused < tried
    print(f"--{kind}: {tried} tried, {refused} refused")


TASK_FORMS = ["pg22/S1(tokens=8192)", "squad(prompt=chat)", "icl/sst2(k=4,template=evalm)", "needle"]


def labelled(selected: SelectedTask) -> str:
    options = selected.task.options("own")
    return labels.of_task(
        selected.name, selected.task.spelled(selected.split), {"history": options.history, "tokens": options.tokens}
    )


@pytest.mark.parametrize("name", registry.tasks())
def test_any_setting_of_a_task_is_accepted_or_refused(name: str) -> None:
    kind = registry.task_class(name)
    fields = [field.name for field in dataclasses.fields(kind.Config)] or ["tokens"]
    for draw in rounds(25, 0.1, name):
        drawn = draw.sample(fields, min(len(fields), draw.choice((1, 1, 2))))
        try:
            task = registry.task(name, settings_of([f"{field}={draw.choice(VALUES)}" for field in drawn]))
            task.protocol(task.check_split(None))
            assert_kept(task.config)
        except UserError as error:
            sentence(error)


@pytest.mark.parametrize("name", registry.tasks())
def test_any_split_is_accepted_or_refused(name: str) -> None:
    task = registry.task(name)
    tried = refused = 0
    for draw in rounds(40, 0.05, name):
        text = spoilt(draw.choice(sorted(task.splits)), draw)
        tried += 1
        try:
            task, split = registry.task_and_split(name, text)
            task.protocol(split)
            assert registry.task_and_split(name, task.spelled(split))[0].config == task.config
        except UserError as error:
            refused += 1
            sentence(error)
    assert refused
    print(f"--split, {name}: {tried} tried, {refused} refused")
