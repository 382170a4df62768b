"""Tasks over files of a user's: what they read, what identifies a run, and that no bad file is read in part."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import importlib
import io
import json
import lzma
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

from contextlab import backbone as backbones
from contextlab import bench, registry
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.data import tables
from contextlab.benchmarks.examples import Reading
from contextlab.benchmarks.protocols.answers import AnswerProtocol, QuestionProtocol
from contextlab.benchmarks.task import Dataset, Task
from contextlab.cli.main import main
from contextlab.errors import UserError
from contextlab.harness.identity import code_of
from contextlab.harness.store import lines
from contextlab.methods.full import Full
from contextlab.reports.stored import summaries

TEXTS = ("Ada lives in Rome.", "Bo lives in Oslo.", "Cy lives in Lima.")
PLACES = ("Rome", "Oslo", "Lima")
Rows = Sequence[dict[str, Any]]


def ours(count: int = 6) -> list[dict[str, Any]]:
    return [
        {"context": TEXTS[n % 3], "question": f"Where is person {n}?", "answer": PLACES[n % 3]} for n in range(count)
    ]


def as_jsonl(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(rows: Rows, delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(
        {name: json.dumps(cell) if isinstance(cell, list) else cell for name, cell in row.items()} for row in rows
    )
    return text.getvalue().encode()


def as_parquet(rows: Rows) -> bytes:
    buffer = io.BytesIO()
    pandas.DataFrame(list(rows)).to_parquet(buffer)
    return buffer.getvalue()


FORMS: dict[str, Callable[[Rows], bytes]] = {
    "a.jsonl": as_jsonl,
    "a.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "a.json": lambda rows: json.dumps(list(rows)).encode(),
    "a.csv": as_csv,
    "a.csv.xz": lambda rows: lzma.compress(as_csv(rows)),
    "a.tsv": lambda rows: as_csv(rows, "\t"),
    "a.parquet": as_parquet,
}


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def task(name: str, path: Path | str = "", **settings: Any) -> Task:
    return registry.task(name, {**({"path": str(path)} if path else {}), **settings})


def load(name: str, path: Path | str = "", **settings: Any) -> Dataset:
    return task(name, path, **settings).load("all", None)


def questions(dataset: Dataset) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (reading.context, question.text, question.answers)
        for reading in dataset.examples
        for question in reading.questions
    ]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_holds_the_same_questions(name: str, tmp_path: Path) -> None:
    rows = [{**row, "answer": [row["answer"], "there"]} for row in ours()]
    dataset = load("questions", put(tmp_path, name, FORMS[name](rows)))
    assert len(dataset.examples) == 3, "rows with equal contexts are one reading"
    expected = [(row["context"], row["question"], tuple(row["answer"])) for row in rows]
    assert sorted(questions(dataset)) == sorted(expected)
    assert dataset.note.startswith(f"own data: {name}, 6 questions about 3 texts, sha256 {dataset.sha256[:12]}")
    assert dataset.source == "local"


KVPRESS = {"question": " Where?", "answer_prefix": " In", "answer": ["Rome"], "max_new_tokens": 3, "task": "t"}
LONGBENCH = {"input": "Where?", "answers": ["Rome", "there"], "all_classes": None, "length": 4, "_id": "x"}
TURNS = [{"input": "Where?", "answer": "Rome"}, {"input": "Who?", "answer": ["Ada", "she"]}]


@pytest.mark.parametrize(
    ("row", "layout", "expected"),
    [
        ({"question": "Where?", "answer": "Rome"}, "ours", [("Where?", ("Rome",), "", None)]),
        ({"question": "Where?", "answers": ["Rome", 7]}, "ours", [("Where?", ("Rome", "7"), "", None)]),
        (KVPRESS, "kvpress", [(" Where?", ("Rome",), " In", 3)]),
        (LONGBENCH, "longbench", [("Where?", ("Rome", "there"), "", None)]),
        (
            {"id": 1, "multi_turns": TURNS},
            "scbench",
            [("Where?", ("Rome",), "", None), ("Who?", ("Ada", "she"), "", None)],
        ),
    ],
)
def test_layouts_are_told_by_their_fields(
    row: dict[str, Any], layout: str, expected: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl([{"context": TEXTS[0], **row}]))
    for named in ("auto", layout):
        (reading,) = load("questions", path, layout=named).examples
        read = [(q.text, q.answers, q.prefix, q.max_new_tokens) for q in reading.questions]
        assert read == expected
    if layout == "kvpress":
        (reading,) = load("questions", path, max_new_tokens=9).examples
        assert reading.questions[0].max_new_tokens is None, "the setting goes before the file"


def test_contexts_may_be_files_beside_the_table(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        put(tmp_path, f"books/{number}.txt", text.encode())
    rows = [{"file": f"books/{n % 3}.txt", "question": f"{n}?", "answer": "x"} for n in range(6)]
    path = put(tmp_path, "a.csv", as_csv(rows))
    before = load("questions", path)
    assert [reading.context for reading in before.examples] == list(TEXTS)
    put(tmp_path, "books/0.txt", b"Ada lives in Bonn.")
    assert load("questions", path).sha256 != before.sha256


def test_columns_and_clusters_have_any_names(tmp_path: Path) -> None:
    rows = [{"passage": f"{text} {n}", "q": "Where?", "gold": "x", "book": text} for n in range(2) for text in TEXTS]
    path = put(tmp_path, "a.csv", as_csv(rows))
    names = {"context": "passage", "question": "q", "answer": "gold"}
    dataset = load("questions", path, columns=names, cluster="book")
    assert [reading.work for reading in dataset.examples] == [*TEXTS, *TEXTS]


@pytest.mark.parametrize("answer", ["Oslo", "B", 1, "1"])
def test_a_choice_is_named_by_text_letter_or_number(answer: object, tmp_path: Path) -> None:
    row = {"context": TEXTS[1], "question": "Where?", "answer": answer}
    listed = put(tmp_path, "a.jsonl", as_jsonl([{**row, "options": list(PLACES)}]))
    columns = put(tmp_path, "b.csv", as_csv([{**row, **dict(zip("XYZ", PLACES, strict=True))}]))
    for dataset in (load("choices", listed), load("choices", columns, columns={"options": ["X", "Y", "Z"]})):
        (question,) = dataset.examples[0].questions
        assert (question.answers, question.options) == (("Oslo",), PLACES)


@pytest.mark.parametrize(("answer", "right"), [(2, "6"), ("5", "5"), ("2", "6"), ("B", "5")])
def test_a_number_in_json_is_that_of_an_option_also_among_numbers(answer: object, right: str, tmp_path: Path) -> None:
    row = {"context": TEXTS[1], "question": "How many?", "options": [4, 5, 6], "answer": answer}
    (question,) = load("choices", put(tmp_path, "a.jsonl", as_jsonl([row]))).examples[0].questions
    assert question.answers == (right,)


def test_options_after_z_have_two_letters(tmp_path: Path) -> None:
    row = {**ours(1)[0], "options": [f"place {n}" for n in range(54)], "answer": "place 53"}
    path = put(tmp_path, "a.jsonl", as_jsonl([row]))
    answering = protocol("choices", path, prompt="{context}\n{question}\n{options}\n")
    (reading,) = load("choices", path).examples
    shown = answering.whole(reading, reading.questions[0]).splitlines()
    assert [shown[2], shown[27], shown[28], shown[53], shown[54], shown[55]] == [
        *("A. place 0", "Z. place 25", "AA. place 26", "AZ. place 51", "BA. place 52", "BB. place 53"),
    ]


def protocol(name: str, path: Path, **settings: Any) -> QuestionProtocol:
    protocol_of_task = task(name, path, **settings).protocol("all")
    assert isinstance(protocol_of_task, QuestionProtocol)
    return protocol_of_task


def test_a_prompt_is_divided_at_the_context(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl([{**ours(1)[0], "options": ["Rome", "Oslo"]}]))
    wording = 'Read {"this"}:\\n{context}\n\nQ: {question}\n{options}\nA: {}'
    prompt_file = put(tmp_path, "prompt.txt", wording.replace("\\n", "\n").encode())
    for prompt in (wording, str(prompt_file)):
        answering = protocol("questions", path, prompt=prompt)
        (reading,) = load("questions", path, prompt=prompt).examples
        whole = answering.whole(reading, reading.questions[0])
        assert whole == ('Read {"this"}:\nAda lives in Rome.\n\nQ: Where is person 0?\nA. Rome\nB. Oslo\nA: {}')
        assert answering.form.head == 'Read {"this"}:\n'


def test_prompts_of_other_suites_are_made_of_their_parts(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl([{"context": "Ada lives in Rome. \n", **KVPRESS}]))
    (reading,) = load("questions", path).examples
    assert protocol("questions", path).whole(reading, reading.questions[0]) == "Ada lives in Rome. \n Where? In"


def test_a_text_without_questions_is_continued(tmp_path: Path) -> None:
    path = put(
        tmp_path, "a.jsonl", as_jsonl([{"context": text, "options": list(PLACES), "answer": 0} for text in TEXTS])
    )
    answering = protocol("choices", path)
    (reading, *_) = load("choices", path).examples
    assert answering.whole(reading, reading.questions[0]) == TEXTS[0]
    results = bench("full", f"choices(path={path})", backbone="tiny-llama", context="own,none,wrong", out=tmp_path)
    assert [run.metrics["accuracy"].n for run in results.runs] == [3, 3, 3]


@pytest.fixture(scope="module")
def meter() -> Meter:
    backbone = backbones.load("tiny-llama", device="cpu")
    return Meter(Full(backbone), Ledger(backbone.device))


@pytest.mark.parametrize(
    ("cut", "kept"), [("left", slice(-10, None)), ("right", slice(10)), ("middle", None), ("none", None)]
)
def test_a_long_text_loses_the_side_that_is_named(cut: str, kept: slice | None, meter: Meter, tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl(ours(3)))
    own = task("questions", path, tokens=10, cut=cut, prompt="{context} {question}", max_new_tokens=2)
    first, second, _ = own.load("all", None).examples
    protocol_of_task = own.protocol("all")
    assert isinstance(protocol_of_task, AnswerProtocol)
    if cut == "none":
        with pytest.raises(UserError, match=r"more than tokens=10: raise it"):
            protocol_of_task.evaluate(meter, first, second)
        return
    tokens = meter.backbone.encode(TEXTS[0])
    expected = tokens[:5] + tokens[-5:] if kept is None else tokens[kept]
    assert protocol_of_task.form.kept(tokens, 10) == expected
    assert protocol_of_task.evaluate(meter, first, second)["context_tokens"] == 10


def test_answers_are_as_long_as_their_rows_say(meter: Meter, tmp_path: Path) -> None:
    rows = [{"context": TEXTS[0], **KVPRESS, "max_new_tokens": most} for most in (1, 6, 3)]
    own = task("questions", put(tmp_path, "a.jsonl", as_jsonl(rows)))
    (reading,) = own.load("all", None).examples
    together = own.protocol("all").evaluate(meter, reading, reading)["questions"]
    for question, answer in zip(reading.questions, together, strict=True):
        alone = Reading("x", "x", reading.context, (question,))
        assert own.protocol("all").evaluate(meter, alone, alone)["questions"] == [answer]


METRICS = {
    "f1": "f1",
    "exact": "exact_match",
    "contains": "contains",
    "contains-all": "contains_all",
    "rouge-l": "rouge_l",
}


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_have_their_own_measures(metric: str, tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl([{**ours(1)[0], "answer": ["Rome", "the city of Rome"]}]))
    answering = protocol("questions", path, metric=metric)
    assert isinstance(answering, AnswerProtocol)
    (question,) = load("questions", path).examples[0].questions
    assert answering.measures[0] == METRICS[metric]
    assert answering.compare("Rome", question)[METRICS[metric]] == {"contains-all": 0.5}.get(metric, 1.0)
    assert answering.compare("elsewhere", question)[METRICS[metric]] == 0.0


OWN_METRIC = "def letters(prediction, answers):\n    return len(prediction) / {}\n"


def test_a_metric_of_ones_own_is_guarded_and_part_of_the_identity(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl(ours(2)))
    (question,) = load("questions", path).examples[0].questions
    metric = put(tmp_path, "metric.py", OWN_METRIC.format(10).encode())
    own = task("questions", path, metric=f"{metric}:letters")
    protocol_of_task = own.protocol("all")
    assert isinstance(protocol_of_task, AnswerProtocol)
    assert protocol_of_task.compare("12345", question)["letters"] == 0.5
    with pytest.raises(
        UserError, match=r"fails on the answer to '1' \(ValueError: it gives 1\.1, which is not between"
    ):
        protocol_of_task.compare("12345678901", question)
    spelled = own.spelled("all")
    assert spelled == "all(path=a.jsonl,metric=metric.py:letters)"
    before = own.identified(spelled)
    metric.write_text(OWN_METRIC.format(20))
    assert own.identified(spelled) != before
    for name, message in (
        (f"{metric}:words", "There is no metric in .* 'words'"),
        ("no.py:f", "There is no file no.py"),
    ):
        with pytest.raises(UserError, match=message):
            task("questions", path, metric=name).protocol("all")


def test_a_misspelt_metric_is_told_the_functions_of_its_file(tmp_path: Path) -> None:
    code = "from pathlib import Path\nclass Kind:\n    def __call__(self, *_): return 1\nkind = Kind()\n"
    metric = put(tmp_path, "metric.py", f"{code}{OWN_METRIC.format(1)}".encode())
    with pytest.raises(UserError, match=r"choose one of kind, letters\.$"):
        task("questions", metric=f"{metric}:xyz").protocol("all")


def test_what_a_metric_imports_is_part_of_the_code_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl(ours(1)))
    metric = put(tmp_path, "metric.py", b"from share_of import most\n" + OWN_METRIC.format("most").encode())
    monkeypatch.syspath_prepend(tmp_path)
    own = task("questions", path, metric=f"{metric}:letters")
    method = Full(backbones.load("tiny-llama", device="cpu"))
    digests = []
    for most in (10, 20):
        put(tmp_path, "share_of.py", f"most = {most}\n".encode())
        monkeypatch.delitem(sys.modules, "share_of", raising=False)
        importlib.invalidate_caches()
        digests.append(code_of(method, own, own.protocol("all")))
    assert {"metric.py", "share_of.py"} <= set(digests[0])
    assert {name for name in digests[0] if digests[0][name] != digests[1][name]} == {"share_of.py"}


def test_a_run_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    rows = as_jsonl(ours(3))
    first, second = put(tmp_path, "one/a.jsonl", rows), put(tmp_path, "two/b.jsonl", rows)
    settings = "prompt='{context} {question}',max_new_tokens=2"
    runs = []
    for path, content in ((first, rows), (second, rows), (second, as_jsonl(ours(4)))):
        path.write_bytes(content)
        results = bench("full", f"questions(path={path},{settings})", backbone="tiny-llama", out=tmp_path / "runs")
        runs += results.runs
    assert runs[0].run_id == runs[1].run_id != runs[2].run_id
    assert "one/" not in runs[0].split


def test_a_table_of_texts_under_another_name_is_the_same_run(tmp_path: Path) -> None:
    rows = as_csv([{"text": " ".join(TEXTS)}, {"text": " ".join(TEXTS[::-1])}])
    counts = []
    for name in ("a.csv", "b.csv"):
        path = put(tmp_path, name, rows)
        (run,) = bench("full", f"texts(path={path})", backbone="tiny-llama", out=tmp_path / "runs").runs
        counts.append((run.run_id, len(lines(tmp_path / "runs" / run.run_id)), run.provenance.started))
    assert counts[0] == counts[1]
    assert counts[0][1] == 2


def test_the_same_questions_under_another_name_are_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, more = as_jsonl(ours(3)), ["--backbone", "tiny-llama", "--device", "cpu", "--out", str(tmp_path / "runs")]
    for name, methods in (("a.jsonl", "window(N=64)"), ("b.jsonl", "window(N=64),sliding(N=32)")):
        task_of_file = f"questions(path={put(tmp_path, name, rows)},max_new_tokens=2)"
        assert main(["bench", "--method", methods, "--task", task_of_file, "--context", "own,none", *more]) == 0
    out = capsys.readouterr().out
    assert out.count("window(N=64), own - none") == 2
    started = {run.provenance.started for run in summaries(tmp_path / "runs") if run.method == "window"}
    assert main(["table", str(tmp_path / "runs"), "--where", "context=own", "--baseline", "window(N=64)"]) == 0
    table = capsys.readouterr().out
    assert "f1 - window(N=64)" in table
    assert "a.jsonl" not in table
    assert len(started) == 2


def test_two_files_of_one_name_have_their_differences_between_contexts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [put(tmp_path, f"{n}/a.jsonl", as_jsonl(ours(3 + n))) for n in range(2)]
    tasks = ",".join(f"questions(path={path},max_new_tokens=2)" for path in files)
    options = ["--backbone", "tiny-llama", "--device", "cpu", "--out", str(tmp_path / "runs"), "--context", "own,none"]
    assert main(["bench", "--method", "window(N=64)", "--task", tasks, *options]) == 0
    assert capsys.readouterr().out.count("window(N=64), own - none") == 2


def test_controls_need_two_works(tmp_path: Path) -> None:
    path = put(tmp_path, "a.jsonl", as_jsonl([{**row, "book": "the same"} for row in ours(3)]))
    with pytest.raises(UserError, match="holds a single work: run it without --context wrong"):
        bench("full", f"questions(path={path},cluster=book)", backbone="tiny-llama", context="wrong", out=tmp_path)


LABELLED = [{"text": f"it is {n}", "label": ("even", "odd")[n % 2]} for n in range(30)]


def test_every_row_is_classified_after_others(tmp_path: Path) -> None:
    dataset = load("labels", put(tmp_path, "a.csv", as_csv(LABELLED)), k=4)
    tested = [item.text for block in dataset.examples for item in block.items]
    assert sorted(tested) == sorted(row["text"] for row in LABELLED)
    for block in dataset.examples:
        assert not {item.text for item in block.items} & {item.text for item in block.train}
    train = put(tmp_path, "train.jsonl", as_jsonl([{"text": "x", "label": "new"}] * 9))
    blocks = load("labels", tmp_path / "a.csv", k=4, train=str(train)).examples
    assert {item.text for item in blocks[0].train} == {"x"}
    results = bench(
        "full", f"labels(path={tmp_path / 'a.csv'},k=2,n=3)", backbone="tiny-llama", context="own,none,wrong",
        limit=2, out=tmp_path,
    )  # fmt: skip
    assert [run.metrics["accuracy"].n for run in results.runs] == [6, 6, 6]


def test_texts_are_files_or_rows(tmp_path: Path) -> None:
    for name in ("10.txt", "9.md", "deep/1.txt.gz"):
        text = f"text {name}"
        put(tmp_path, f"folder/{name}", gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    put(tmp_path, "folder/list.csv", b"a,b\n1,2\n")
    texts = load("texts", tmp_path / "folder").examples
    assert [text.text for text in texts] == ["text 9.md", "text 10.txt", "text deep/1.txt.gz"]
    rows = [{"words": f"row {n}", "book": f"b{n // 2}"} for n in range(4)]
    table = put(tmp_path, "a.csv", as_csv(rows))
    documents = load("texts", table, column="words", cluster="book").examples
    assert [(document.text, document.work) for document in documents] == [(row["words"], row["book"]) for row in rows]
    results = bench("full", f"texts(path={table},column=words,cluster=book)", backbone="tiny-llama", out=tmp_path)
    (run,) = results.runs
    assert run.parts is not None
    assert {part.cluster for parts in run.parts.values() for part in parts["nats_per_token"]} == {"b0", "b1"}


def test_the_note_names_what_is_left_out_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("a.txt", "b.md"):
        put(tmp_path, f"folder/{name}", name.encode())
    before = load("texts", folder)
    assert before.note == f"own data: folder, 2 texts, sha256 {before.sha256[:12]}"
    digests = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a.txt", "b.md"))
    assert before.sha256 == hashlib.sha256(digests.encode()).hexdigest()
    for name in ("c.pdf", "list.csv", "p.png", "q.png", ".hidden.pdf"):
        put(tmp_path, f"folder/{name}", as_csv([{"text": "a"}]))
    (folder / "away.txt").symlink_to("nowhere")
    after = load("texts", folder)
    assert after == dataclasses.replace(before, note=f"{before.note}; left out: away.txt, c.pdf, list.csv, 2 more")
    put(tmp_path, "folder/d.TXT", b"d")
    assert [text.text for text in load("texts", folder).examples] == ["a.txt", "b.md", "d"]


def test_files_that_a_table_names_are_not_left_out(tmp_path: Path) -> None:
    rows = [{"file": "deep/a.md", "question": "Where?", "answer": "Rome"}]
    put(tmp_path, "folder/A.CSV", as_csv(rows))
    for name in ("deep/a.md", "deep/b.md"):
        put(tmp_path, f"folder/{name}", TEXTS[0].encode())
    assert load("questions", tmp_path / "folder").note.endswith("; left out: deep/b.md")
    put(tmp_path, "labels/a.csv", as_csv(LABELLED))
    put(tmp_path, "labels/b.md", b"b")
    assert load("labels", tmp_path / "labels", k=4).note.endswith("; left out: b.md")


CONTEXT, ROW = {"context": TEXTS[0]}, ours(1)[0]
TURN = {"id": 1, **CONTEXT}
HEAD = b"context,question,answer\n"
GOOD = as_jsonl([ROW])

BAD: dict[str, tuple[str, str, bytes, dict[str, Any], str]] = {
    "empty": ("questions", "a.jsonl", b"", {}, r"a\.jsonl holds no questions"),
    "empty csv": ("questions", "a.csv", b"", {}, r"a\.csv holds no questions"),
    "header alone": ("questions", "a.csv", HEAD, {}, r"a\.csv holds no questions"),
    "no header": (
        "questions",
        "a.csv",
        b"Ada is here,Where?,Rome\nBo,Where?,Oslo\n",
        {},
        r"Line 2 .* no field 'context', its fields are Ada",
    ),
    "semicolons": (
        "questions",
        "a.csv",
        HEAD.replace(b",", b";") + b"a;b;c\n",
        {},
        r"a\.csv separates its columns by ';': separate them by commas\.$",
    ),
    "too few cells": ("questions", "a.csv", HEAD + b"a,b,c\na,b\n", {}, r"Line 3 of .* has 2 fields and the header 3"),
    "too many cells": ("questions", "a.csv", HEAD + b"a,b,c,d\n", {}, r"Line 2 of .* has 4 fields"),
    "ragged after a text of two lines": (
        "questions",
        "a.csv",
        HEAD + b'"a\nb",b,c\na\n',
        {},
        r"Line 4 of .* has 1 fields",
    ),
    "quotation without end": ("questions", "a.csv", HEAD + b'a,b,"c\nd,e,f\n', {}, r"Line 2 of .* is not valid csv"),
    "text after a quotation": ("questions", "a.csv", HEAD + b'"a"b,c,d\n', {}, r"Line 2 of .* is not valid csv"),
    "two columns of a name": (
        "questions",
        "a.csv",
        b"context,question,question\na,b,c\n",
        {},
        r"two columns 'question'",
    ),
    "semicolons, and commas in texts": (
        "questions",
        "a.csv",
        b"context;question;answer\nAda, in Rome;b;c\n",
        {},
        r"a\.csv separates its columns by ';': separate them by commas\.$",
    ),
    "tabs": (
        "questions",
        "a.csv",
        b"context\tquestion\tanswer\na\tb\tc\n",
        {},
        r"a\.csv separates its columns by tabs: separate them by commas, or let its name end with \.tsv\.$",
    ),
    "old line ends": (
        "questions",
        "a.csv",
        b"context,question,answer\ra,b,c\r",
        {},
        r"Line 1 of .*a\.csv ends with \\r alone: save the file with line ends \\n\.$",
    ),
    "a single old line end": (
        "questions",
        "a.csv",
        HEAD + b"a,b,c\ra,b,c\n",
        {},
        r"Line 2 of .* ends with \\r alone: sa",
    ),
    "latin-1": ("questions", "a.csv", HEAD + "é,b,c\n".encode("latin-1"), {}, r"Line 2 of .* is not UTF-8"),
    "utf-16": ("questions", "a.csv", (HEAD + b"a,b,c\n").decode().encode("utf-16"), {}, r"Line 1 of .* is not UTF-8"),
    "zero bytes": ("questions", "a.csv", HEAD + b"a\0,b,c\n", {}, r"Line 2 .*: field 'context' holds what is no text"),
    "half a character": (
        "questions",
        "a.jsonl",
        b'{"context":"\\ud800","question":"b","answer":"c"}',
        {},
        r"Line 1 .* no text",
    ),
    "no JSON": ("questions", "a.jsonl", GOOD + b'{"context": \n', {}, r"Line 2 of .* is not valid JSON"),
    "a list a line": ("questions", "a.jsonl", b'["a"]\n', {}, r"Line 1 of .* is no JSON object"),
    "object over lines": ("questions", "a.jsonl", b'{\n"context": "a"\n}\n', {}, r"Line 1 of .* is not valid JSON"),
    "one object": ("questions", "a.json", b'{"context": "a"}', {}, r"a\.json is no list"),
    "deeply nested": ("questions", "a.jsonl", b"[" * 100_000, {}, r"Line 1 of .* is not valid JSON"),
    "field twice": (
        "questions",
        "a.jsonl",
        b'{"context":"a","context":"b"}\n',
        {},
        r"Line 1 of .* field 'context' twice",
    ),
    "no answer column": (
        "questions",
        "a.jsonl",
        as_jsonl([{**CONTEXT, "question": "b"}]),
        {},
        r"Line 1 .* no field 'answer'",
    ),
    "later row without a field": (
        "questions",
        "a.jsonl",
        GOOD + as_jsonl([{**CONTEXT, "question": "b"}]),
        {},
        r"Line 2 .*: field 'answer' is missing",
    ),
    "empty cell": ("questions", "a.csv", HEAD + b"a,,c\n", {}, r"Line 2 .*: field 'question' is empty"),
    "white space": ("questions", "a.csv", HEAD + b" ,b,c\n", {}, r"Line 2 .*: field 'context' is empty"),
    "null": ("questions", "a.jsonl", as_jsonl([{**ROW, "answer": None}]), {}, r"field 'answer' is empty"),
    "not a number": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "answer": float("nan")}]),
        {},
        r"field 'answer' is empty",
    ),
    "no answers": ("questions", "a.jsonl", as_jsonl([{**ROW, "answer": []}]), {}, r"'answer' is an empty list"),
    "nested answers": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "answer": [["a"]]}]),
        {},
        r"'answer' holds a list where",
    ),
    "an object as a text": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "context": {"a": 1}}]),
        {},
        r"'context' holds an object",
    ),
    "a list of Python": (
        "questions",
        "a.csv",
        HEAD + b"a,b,['c']\n",
        {},
        r"Line 2 .*'answer' begins with \[ and is no list in JSON",
    ),
    "ids twice": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "id": 1}] * 2),
        {},
        r"Line 2 .*: field 'id' is '1' as in Line 1",
    ),
    "id missing": ("questions", "a.jsonl", as_jsonl([{**ROW, "id": 1}, ROW]), {}, r"Line 2 .*: field 'id' is missing"),
    "two clusters": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "b": n} for n in (1, 2)]),
        {"cluster": "b"},
        r"Line 2 .* one cluster",
    ),
    "no cluster column": ("questions", "a.jsonl", GOOD, {"cluster": "b"}, r"Line 1 .*: field 'b' is missing"),
    "unknown role": ("questions", "a.jsonl", GOOD, {"columns": {"questoin": "q"}}, r"did you mean 'question'"),
    "no such layout": ("questions", "a.jsonl", GOOD, {"layout": "scbench"}, r"Line 1 .* no field 'multi_turns'"),
    "no turns": (
        "questions",
        "a.jsonl",
        as_jsonl([{**TURN, "multi_turns": []}]),
        {},
        r"'multi_turns' holds no list of objects",
    ),
    "turn without answer": (
        "questions",
        "a.jsonl",
        as_jsonl([{**TURN, "multi_turns": [{"input": "b"}]}]),
        {},
        r"Item 1 in 'multi_turns' of line 1 .*'answer' is missing",
    ),
    "no length": (
        "questions",
        "a.jsonl",
        as_jsonl([{**ROW, "answer_prefix": "", "max_new_tokens": "many"}]),
        {},
        r"'max_new_tokens' holds 'many'",
    ),
    "file above": (
        "questions",
        "a.csv",
        b"file,question,answer\n../b.txt,b,c\n",
        {},
        r"Line 2 .* names \.\./b\.txt: name a file below",
    ),
    "no file": (
        "questions",
        "a.csv",
        b"file,question,answer\nb.txt,b,c\n",
        {},
        r"Line 2 .* names b\.txt, which is no file",
    ),
    "no parquet": ("questions", "a.parquet", b"PAR1", {}, r"a\.parquet is no parquet file"),
    "no pack": ("questions", "a.jsonl.gz", GOOD, {}, r"a\.jsonl\.gz cannot be read"),
    "half a pack": ("questions", "a.jsonl.gz", gzip.compress(GOOD * 9)[:-9], {}, r"a\.jsonl\.gz cannot be read"),
    "unknown ending": ("questions", "a.xlsx", b"PK", {}, r"a\.xlsx has no known ending: save it as \.jsonl, "),
    "long line": ("questions", "a.jsonl", b'{"context": "' + b"a" * 300 + b'"}', {}, r"Line 1 of .* has more than"),
    "prompt without context": (
        "questions",
        "a.jsonl",
        GOOD,
        {"prompt": "{question}"},
        r"A prompt has \{context\} once",
    ),
    "question before context": (
        "questions",
        "a.jsonl",
        GOOD,
        {"prompt": "{question}{context}"},
        r"A prompt has \{context\} once",
    ),
    "unknown placeholder": (
        "questions",
        "a.jsonl",
        GOOD,
        {"prompt": "{context}{input}"},
        r"no placeholder of a prompt 'input'",
    ),
    "no prompt file": (
        "questions",
        "a.jsonl",
        GOOD,
        {"prompt": "nowhere.txt"},
        r"There is no file nowhere\.txt for prompt",
    ),
    "one option": ("choices", "a.jsonl", as_jsonl([{**ROW, "options": ["Rome"]}]), {}, r"'options' needs two options"),
    "options twice": (
        "choices",
        "a.jsonl",
        as_jsonl([{**ROW, "options": ["Rome", "Rome"]}]),
        {},
        r"'options' needs two options or more, all diff",
    ),
    "no options": ("choices", "a.jsonl", GOOD, {}, r"field 'options' is missing"),
    "answer that is no option": (
        "choices",
        "a.jsonl",
        as_jsonl([{**ROW, "options": ["x", "y"]}]),
        {},
        r"is 'Rome', which is no option",
    ),
    "number among numbers": (
        "choices",
        "a.jsonl",
        as_jsonl([{**ROW, "answer": 5, "options": [4, 5, 6]}]),
        {},
        r"is '5', which is no option: .*\(a text in quotes, as it is a number itself\)",
    ),
    "question after none": (
        "choices",
        "a.jsonl",
        as_jsonl([{"context": "a", "options": ["x", "y"], "answer": 0}, {**ROW, "answer": 0, "options": ["x", "y"]}]),
        {},
        r"'question' is not in the first row: give every row a question, or none",
    ),
    "bytes": ("texts", "a.parquet", as_parquet([{"text": b"a"}]), {}, r"'text' holds bytes where a text is needed"),
    "number behind the last": (
        "choices",
        "a.jsonl",
        as_jsonl([{**ROW, "answer": 2, "options": ["x", "y"]}]),
        {},
        r"is '2', which is no option",
    ),
    "one label": (
        "labels",
        "a.csv",
        as_csv([{"text": "a", "label": "x"}] * 30),
        {},
        r"holds 1 label: classes need two",
    ),
    "no label column": (
        "labels",
        "a.csv",
        as_csv([{"text": "a", "class": "x"}]),
        {},
        r"no field 'label', .*label=NAME",
    ),
    "too few demonstrations": (
        "labels",
        "a.csv",
        as_csv(LABELLED[:9]),
        {},
        r"8 texts are left as demonstrations .*lower k=20",
    ),
    "prompt without label": (
        "labels",
        "a.csv",
        as_csv(LABELLED),
        {"prompt": "{text}", "k": 1},
        r"has \{text\} and \{label\}",
    ),
    "empty text": ("texts", "a.txt", b" \n", {}, r"a\.txt is empty"),
    "no text": ("texts", "a.txt", b"a\0b", {}, r"a\.txt is no text"),
    "long text": ("texts", "a.txt", b"a" * 300, {}, r"a\.txt has more than"),
    "no text column": ("texts", "a.csv", b"a,b\n1,2\n", {}, r"no field 'text', its fields are a, b: .*column=NAME"),
    "empty table": ("texts", "a.csv", b"text\n", {}, r"a\.csv holds no texts"),
}


def read(own: Task) -> None:
    own.load("all", None)
    own.protocol("all")


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_sentence(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, file, content, settings, message = BAD[kind]
    if "long" in kind:
        monkeypatch.setattr(tables, "MOST", 256)
    own = task(name, put(tmp_path, file, content), **settings)
    with pytest.raises(UserError, match=message) as error:
        read(own)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 700
    assert sentence[-1] in ".?"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^There is no file .*nowhere\.csv: name a folder or file, or hub:NAME\.$"):
        load("questions", tmp_path / "nowhere.csv")


def test_a_bad_file_ends_the_command_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path, "a.csv", HEAD + b"a,b\n")
    arguments = ["bench", "--method", "full", "--backbone", "tiny-llama", "--out", str(tmp_path / "runs")]
    assert main([*arguments, "--task", f"questions(path={path})"]) == 2
    assert capsys.readouterr().err.startswith(f"contextlab: Line 2 of {path} has 2 fields")
    assert not (tmp_path / "runs").exists()
