from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

import lm_eval
from lm_eval.tasks import TaskManager

import contextlab
from contextlab import registry
from contextlab.backbone import toys
from contextlab.benchmarks.data.icl_sets import SETS
from contextlab.benchmarks.tasks import icl as icl_module
from contextlab.benchmarks.tasks.chapterbreak import ChapterBreak
from contextlab.errors import UserError
from contextlab.integrations.lm_eval import ContextLM
from contextlab.integrations.lm_eval_tasks import FOLDER, choices, compare, documents, icl, questions

WRITTEN = {"squad": "512", "streamingqa": "512-past", "msc": "self-instruct", "metaicl": "k2"}
RANKED = {"metaicl": "k1", "needle": "1k"}
ICL = f"{icl_module.__file__}:ICL"


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)


@pytest.fixture(scope="module")
def model() -> ContextLM:
    return ContextLM("full", "tiny-llama", device="cpu", keep_bos=False)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> ContextLM:
    """The same with positions for a whole text."""
    monkeypatch.setattr(toys, "TINY_POSITIONS", 2**14)
    return ContextLM("full", "tiny-llama", device="cpu", keep_bos=False)


def manager(**metadata: Any) -> TaskManager:
    return TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=metadata)


def harness(model: ContextLM, task: str, limit: int | None = None, **metadata: Any) -> tuple[list[Any], dict[str, Any]]:
    """The samples and the results of a task in the harness."""
    options: dict[str, Any] = {"task_manager": manager(**metadata), "bootstrap_iters": 0, "limit": limit}
    results = lm_eval.simple_evaluate(model=model, tasks=[task], **options)
    assert results is not None
    return results["samples"][task], results["results"][task]


def bench(folder: Path, task: str, split: str, **options: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records and the metrics of a task in `contextlab bench`."""
    options = {"split": split, "backbone": "tiny-llama", "device": "cpu", "out": folder, **options}
    (run,) = contextlab.bench("full", task, **options).runs
    (file,) = folder.rglob("*.jsonl")
    metrics = {name: dataclasses.asdict(metric) for name, metric in run.metrics.items()}
    return [json.loads(line)["record"] for line in file.open()], metrics


def test_every_file_is_found_and_every_set_has_one() -> None:
    icl_tasks = {f"contextlab_icl_{name}" for name in SETS}
    answer_tasks = {f"contextlab_{name}" for name in (*WRITTEN, *RANKED, "metaicl_written")}
    others = {"contextlab_chapterbreak", "contextlab_pg22", "contextlab_wikitext"}
    own = {f"contextlab_{name}" for name in ("questions", "choices", "labels", "texts")}
    assert set(manager().all_subtasks) == icl_tasks | answer_tasks | others | own
    assert manager().all_tags == ["contextlab_icl"]


def test_the_folder_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    importlib.import_module("contextlab.integrations.lm_eval_tasks.__main__")
    assert capsys.readouterr().out == f"{FOLDER}\n"


@pytest.mark.parametrize("settings", ["k=1,n=5,scoring=label", "k=1,n=8,template=evalm", "k=0,n=24,template=hso"])
def test_both_harnesses_score_the_same_items_alike(tmp_path: Path, model: ContextLM, settings: str) -> None:
    samples, results = harness(model, "contextlab_icl_sst2", settings=settings, seed=3)
    records, metrics = bench(tmp_path, ICL, f"sst2({settings})", seed=3)
    answers = {answer["id"]: answer for record in records for answer in record["answers"]}
    assert len(samples) == len(answers) == 24
    for sample in samples:
        negative, positive = (logprob for ((logprob, _),) in sample["resps"])
        nats = answers[sample["doc"]["id"]]["nats"]
        assert nats[0] - nats[1] == pytest.approx(positive - negative, abs=2e-4)
        assert sample["acc"] == answers[sample["doc"]["id"]]["correct"]
    assert results["acc,none"] == pytest.approx(metrics["accuracy"]["value"])


def test_both_harnesses_read_the_same_documents_alike(tmp_path: Path, model: ContextLM) -> None:
    samples, _ = harness(model, "contextlab_wikitext", limit=1)
    records, _ = bench(tmp_path, "wikitext", "test", limit=1)
    for sample, record in zip(samples, records, strict=True):
        ((total,),) = sample["resps"]
        assert -total == pytest.approx(record["nats"], abs=1e-4 * record["tokens"])


@pytest.mark.parametrize("task", WRITTEN)
def test_both_harnesses_write_the_same_answers(tmp_path: Path, far: ContextLM, task: str) -> None:
    ending = "-written" if task == "metaicl" else ""
    ((record,), metrics) = bench(tmp_path, task, WRITTEN[task] + ending, limit=1)
    answers = record["questions"][:2]
    samples, results = harness(far, f"contextlab_{task}{ending}".replace("-", "_"), len(answers), split=WRITTEN[task])
    assert any(answer["prediction"] for answer in answers)
    measures = [name for name in metrics if name in answers[0]]
    assert {f"{name},none" for name in measures} <= results.keys()
    for sample, answer in zip(samples, answers, strict=True):
        assert (sample["doc"]["id"], sample["filtered_resps"][0].strip()) == (answer["id"], answer["prediction"])
        assert {name: sample[name] for name in measures} == {name: answer[name] for name in measures}


@pytest.mark.parametrize("task", RANKED)
def test_both_harnesses_score_the_same_options_alike(tmp_path: Path, far: ContextLM, task: str) -> None:
    ((record,), _) = bench(tmp_path, task, RANKED[task], limit=1)
    answers = record["questions"][:2]
    samples, _ = harness(far, f"contextlab_{task}", len(answers), split=RANKED[task])
    for sample, answer in zip(samples, answers, strict=True):
        lengths = [len(choice.encode()) for choice in sample["doc"]["choices"]]
        for ((logprob, _),), nats, length in zip(sample["resps"], answer["nats"], lengths, strict=True):
            assert -logprob == pytest.approx(nats * length, abs=1e-4 * length)
        assert (sample["doc"]["id"], sample["doc"]["gold"]) == (answer["id"], answer["answer"])
        # A byte is a token here.
        assert sample["acc_bytes"] == answer["accuracy"]


@pytest.mark.slow
def test_an_item_has_the_same_tokens_in_both(shared: Path) -> None:
    model = ContextLM("full", "smollm2-135m", device="cpu")
    for task, split in {**WRITTEN, **RANKED}.items():
        readings = registry.task(task).load(split, shared / "data").examples
        docs = iter(questions(task, split, data=str(shared / "data"))["test"])
        protocol: Any = registry.task(task).protocol(split)
        meter: Any = SimpleNamespace(backbone=model.backbone, capabilities=model.method.capabilities)
        for reading in readings[:20]:
            context = model.backbone.encode(reading.context.rstrip())
            for question in reading.questions:
                doc = next(docs)
                assert doc["id"] == question.id
                question_tokens, *options = protocol._sequences(meter, reading, question, True)
                assert model.tok_encode(doc["context"]) == context + question_tokens
                pairs = (model._encode_pair(doc["context"], choice) for choice in doc["choices"])
                assert options in ([], [continuation for _, continuation in pairs])


def test_a_written_answer_has_the_scores_of_the_task() -> None:
    doc = questions("squad")["test"][0]
    scores = compare(doc, [f" {doc['answers'][0]}."])
    assert scores == dict.fromkeys(("f1", "exact_match", "f1_shortest", "exact_match_shortest"), 1.0)
    assert set(compare(doc, ["nothing of the kind"]).values()) == {0.0}
    item = questions("metaicl", ending="-written")["test"][0]
    assert compare(item, [f" {item['choices'][item['gold']].upper()}"]) == {"exact_match": 1.0}


def test_splits_are_those_of_the_task() -> None:
    first, second = (questions("metaicl", split)["test"][0]["context"] for split in ("k1", "k2"))
    assert (first.count("Input:"), second.count("Input:")) == (2, 3)
    written = questions("metaicl", "k1", "-written", method="full", version=1)["test"][0]
    assert written["context"].startswith(first.rpartition("Input:")[0])
    assert written["context"] != first
    assert questions("needle")["test"][0]["split"] == "2k"
    with pytest.raises(UserError, match="no split of squad 'k1'"):
        questions("squad", "k1")


def test_a_paper_that_writes_its_labels_is_scored_by_them() -> None:
    doc = icl("sst2")["test"][0]
    assert doc["choices"] == ["negative", "positive"]
    assert doc["context"].endswith(" Sentiment: ")
    assert doc["context"].count("Sentiment") == 21


def test_every_word_of_a_class_is_right() -> None:
    docs = icl("agnews", settings="template=hso,k=1")["test"]
    assert docs[0]["choices"] == ["World", "Sports", "Business", "Technology", "Science"]
    assert {tuple(doc["gold"]) for doc in docs} == {(0,), (1,), (2,), (3, 4)}


def test_seeds_and_settings_are_those_of_the_task() -> None:
    first, same, other = (icl("sst2", settings="k=3", seed=seed)["test"]["context"] for seed in (0, 0, 1))
    assert list(first) == list(same) != list(other)
    with pytest.raises(UserError, match="no setting of icl 'shots'"):
        icl("sst2", settings="shots=3")


def test_choices_and_documents_are_whole() -> None:
    example = ChapterBreak().load("ctx-512", None).examples[0]
    doc = choices("chapterbreak", "ctx-512", method="full")["test"][0]
    assert (doc["context"], doc["choices"][doc["gold"]]) == (example.context, example.candidates[example.answer])
    assert set(documents("wikitext", "valid")["test"].features) == {"id", "text"}


def own_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


OPTIONS = ["Rome", "Oslo"]
ASKED = [
    {"context": f"It is in {place}.", "question": f"Where {n}?", "answer": place, "options": OPTIONS}
    for n, place in enumerate(OPTIONS * 2)
]


def test_questions_of_ones_own_are_the_same_in_both(tmp_path: Path, model: ContextLM) -> None:
    path = own_file(tmp_path, ASKED)
    settings = "prompt='{context} {question}'"
    split = f"all(path={path},{settings},metric=contains)"
    samples, results = harness(model, "contextlab_questions", split=split)
    records, metrics = bench(tmp_path / "written", "questions", split)
    predictions = {entry["id"]: entry["prediction"] for record in records for entry in record["questions"]}
    assert {sample["doc"]["id"]: sample["resps"][0][0].partition("\n")[0].strip() for sample in samples} == predictions
    assert all(results[f"{name},none"] == pytest.approx(metrics[name]["value"]) for name in ("contains", "f1"))
    split = f"all(path={path},{settings})"
    samples, _ = harness(model, "contextlab_choices", split=split)
    records, _ = bench(tmp_path / "ranked", "choices", split)
    nats = {entry["id"]: entry["nats"] for record in records for entry in record["questions"]}
    assert nats.keys() == {sample["doc"]["id"] for sample in samples}
    assert [sample["doc"]["gold"] for sample in samples] == [
        OPTIONS.index(sample["doc"]["answers"][0]) for sample in samples
    ]


def test_labels_and_texts_of_ones_own_are_all_there(tmp_path: Path, model: ContextLM) -> None:
    rows = [{"text": f"it is {n}", "label": ("even", "odd")[n % 2]} for n in range(10)]
    path = own_file(tmp_path, rows)
    split = f"all(path={path},k=2,n=3)"
    samples, results = harness(model, "contextlab_labels", split=split)
    assert sorted(sample["doc"]["id"] for sample in samples) == sorted(f"line/{n}" for n in range(1, 11))
    _, metrics = bench(tmp_path / "labels", "labels", split)
    assert results["acc,none"] == pytest.approx(metrics["accuracy"]["value"])
    texts = documents("texts", f"all(path={path})")["test"]
    assert texts["text"] == [row["text"] for row in rows]
