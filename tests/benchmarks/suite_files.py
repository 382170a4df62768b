"""Small files in the layouts in which other suites publish their records."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
LONGBENCH_TASKS = {
    "narrativeqa": ["a lighthouse"],
    "hotpotqa": ["Rome", "the city of Rome"],
    "qasper": ["a parser"],
    "trec": ["Date"],
    "passage_retrieval_en": ["Paragraph 7"],
    "passage_count": ["7"],
    "gov_report": ["A report. It has two parts."],
    "lcc": ["    return 3"],
    "samsum": ["They meet."],
}
CLASSES = ["Date", "Date of birth", "Other location"]


def longbench(task: str, number: int) -> Record:
    return {
        "input": "" if task == "gov_report" else f"What is item {number}?",
        "context": f"Text {number // 2} of {task}.\nIt has {{braces}}.\n",
        "answers": LONGBENCH_TASKS[task],
        "length": 3_000 + 2_500 * number,
        "dataset": task,
        "language": "en",
        "all_classes": CLASSES if task == "trec" else None,
        "_id": f"{task}-{number}",
    }


def longbench_v2(number: int) -> Record:
    return {
        "_id": f"id{number}",
        "domain": "Single-Document QA",
        "sub_domain": "Financial",
        "difficulty": ("easy", "hard")[number % 2],
        "length": ("short", "medium", "long")[number % 3],
        "question": f"Which is right in {number}? ",
        **{f"choice_{letter}": f" option {letter} of {number}" for letter in "ABCD"},
        "answer": "ABCD"[number % 4],
        "context": f" A report {number}.\n",
    }


def infinitebench(task: str, number: int) -> Record:
    record: Record = {"id": number, "context": f"Long text of {task} {number // 2}.", "input": "What is it?"}
    options = [f"answer {number} {letter}" for letter in "abcd"]
    answers = {
        "passkey": "71432",
        "kv_retrieval": "cb59052b-9128-4979-9c0e-e1de4adcf73b",
        "longdialogue_qa_eng": ["JOHN", "JOHNNY"],
        "math_find": [38],
        "code_run": -7,
    }
    inputs = {
        "math_find": "You should answer with only one number, no other words. The largest number of the list is: ",
        "code_run": "Please give me the exact number of the return value of func_1(-2). Be concise.",
    }
    choice = {"options": options, "answer": [options[2]]} if "choice" in task or "debug" in task else {}
    return {
        "options": [],
        "answer": answers.get(task, "a word"),
        **record,
        "input": inputs.get(task, "What?"),
        **choice,
    }


def longmemeval(number: int) -> Record:
    sessions = [
        [
            {"role": "user", "content": f"I have a dog, session {n}.", "has_answer": True},
            {"role": "assistant", "content": " Good. "},
        ]
        for n in range(3)
    ]
    kinds = ("single-session-user", "multi-session", "temporal-reasoning", "knowledge-update")
    return {
        "question_id": f"q{number}" + "_abs" * (number == 3),
        "question_type": kinds[number % 4],
        "question": "How many dogs do I have?",
        "answer": 3 if number == 2 else "one dog",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ["s0", "s1", "s2"],
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/29 (Mon) 04:00", "2023/04/20 (Thu) 01:00"],
        "haystack_sessions": sessions,
        "answer_session_ids": ["s0"],
    }


def helmet(number: int, tag: str = "q") -> Record:
    return {
        "question": f"who {tag} {number // 2}",
        "answers": [f"Ann {number // 2}", "Bob"],
        "ctxs": [{"id": str(n), "title": f"T{n}", "text": f"text {n} {number}"} for n in range(3)],
    }


def helmet_json(number: int) -> Record:
    pairs = {f"k{n}": f"v{n}" for n in range(4)}
    demos = [["k1", "v1"], ["k2", "v2"], ["k3", "v3"]]
    return {"context": json.dumps(pairs), "question": "k0", "answer": f"v{number}", "demos": demos, "num_kvs": 4}


def loft_corpus() -> list[Record]:
    return [
        {"pid": f"doc{n}", "title_text": f"Title {n}" * (n > 0), "passage_text": f"Passage {n}. ", "metadata": {}}
        for n in range(4)
    ]


def loft_query(number: int, retrieval: bool) -> Record:
    pairs = [[f"doc{number % 4}", 1], ["doc3", 1]]
    answers = pairs if retrieval else ["Spain", "Taíno"]
    return {"qid": f"t{number}", "query_text": f"who owns {number} ", "metadata": {"qrels": pairs}, "answers": answers}


def write(root: Path) -> Path:
    """Writes all files below `root` and returns it."""
    for task in LONGBENCH_TASKS:
        for ending in ("", "_e"):
            _lines(root / f"longbench/data/{task}{ending}.jsonl", (longbench(task, n) for n in range(4)))
    _put(root / "longbench-v2/data.json", json.dumps([longbench_v2(n) for n in range(4)]))
    for task in ("passkey", "kv_retrieval", "longbook_choice_eng", "longbook_qa_eng", "longbook_qa_chn",
                 "longdialogue_qa_eng", "math_find", "code_run", "code_debug"):  # fmt: skip
        _lines(root / f"infinitebench/{task}.jsonl", (infinitebench(task, n) for n in range(4)))
    for file in ("longmemeval_s_cleaned.json", "longmemeval_oracle.json"):
        _put(root / "longmemeval" / file, json.dumps([longmemeval(n) for n in range(4)]))
    kilt = root / "helmet/data/kilt"
    _lines(kilt / "nq-dev-multikilt_1000_k50_dep6.jsonl", (helmet(n) for n in range(4)))
    _lines(kilt / "nq-train-multikilt_1000_k3_dep6.jsonl", (helmet(2 * n, "shown") for n in range(5)))
    _lines(root / "helmet/data/json_kv/test_k105_dep6.jsonl", (helmet_json(n) for n in range(4)))
    for kind in ("rag", "retrieval"):
        folder = root / f"loft/data/{kind}/nq/32k"
        _lines(folder / "corpus.jsonl", loft_corpus())
        _lines(folder / "dev_queries.jsonl", (loft_query(n, kind == "retrieval") for n in range(4)))
        _lines(folder / "few_shot_queries.jsonl", [loft_query(1, kind == "retrieval")])
    return root


def _lines(path: Path, records: Iterable[Record]) -> None:
    _put(path, "".join(json.dumps(record) + "\n" for record in records))


def _put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf-8")
