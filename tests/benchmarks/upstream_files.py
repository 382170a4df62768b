"""A data folder in the upstream formats of the tasks with questions, small enough for every test."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import suite_files

OPTIONS = {"glue-rte": ["entailment", "not_entailment"], "codah": ["a cat", "a dog", "a bird"]}


def lines(records: Iterable[Any]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    return path


def squad(paragraphs: int = 6) -> dict[str, Any]:
    def paragraph(n: int) -> dict[str, Any]:
        text = f"The river {n} flows {'slowly ' * 40}to the sea {n}."
        questions = [
            {
                "id": f"{n}-{i}",
                "question": f" Where does river {n} flow?",
                "answers": [
                    {"text": answer, "answer_start": 1} for answer in (f"to the sea {n}", f"sea {n}", f"sea {n}")
                ],
            }
            for i in range(2)
        ]
        return {"context": text, "qas": questions}

    half = paragraphs // 2
    parts = [range(half), range(half, paragraphs)]
    articles = [{"title": "t", "paragraphs": [paragraph(n) for n in part]} for part in parts]
    return {"version": "1.1", "data": articles}


def article(n: int) -> bytes:
    return base64.b64encode(f"News {n}.\n\nIt rained on day {n}. Ça suffit.\n".encode())


def sorting_key(n: int) -> str:
    return f"{2018 + n % 3}0{1 + n % 9}01000000{n:06d}\0\1{hashlib.sha256(article(n)).hexdigest()}\0\1"


def streamingqa(count: int = 9) -> list[dict[str, Any]]:
    return [
        {
            "qa_id": f"eval-{n}",
            "question": f"When did it rain in news {n}?",
            "answers": [f"day {n}", f"on day {n}", f"day {n}"],
            "answers_additional": [f"day {n}"],
            "question_ts": 1577836800 + n,
            "evidence_ts": 1351555200,
            "evidence_id": sorting_key(n // 2),
            "recent_or_past": "recent" if n < 4 else "past",
        }
        for n in range(count)
    ]


def archives(folder: Path, count: int = 5) -> None:
    by_year: dict[str, list[bytes]] = {}
    for n in range(count):
        date = sorting_key(n)[:8]
        by_year.setdefault(date[:4], []).append(b"\t".join((date.encode(), b"c3BsaXQ=", article(n))))
    for year, rows in by_year.items():
        put(folder / f"news-docs.{year}.en.filtered.gz", b"\n".join(rows) + b"\n")


def situatedqa(count: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "question": "who leads",
            "id": -n,
            "edited_question": f"who leads as of {2000 + n}",
            "date": str(2000 + n),
            "date_type": ("start", "sampled_year")[n % 2],
            "answer": [f"leader {n}"],
            "any_answer": [f"leader {i}" for i in range(count)],
        }
        for n in range(count)
    ]


def msc(conversation: str, question: int | None = None) -> dict[str, Any]:
    def dialog(session: int) -> list[dict[str, str]]:
        return [{"text": f"{conversation} turn {turn} of {session}"} for turn in range(3)]

    last = [{**turn, "id": f"Speaker {2 - n % 2}"} for n, turn in enumerate(dialog(5))]
    question_fields = {"B": f"What was turn {question}?", "A": f"turn {question}"}
    self_instruct = {} if question is None else {"self_instruct": question_fields}
    earlier = [{"dialog": dialog(session), "time_num": 3, "time_unit": "days"} for session in range(1, 5)]
    metadata = {"initial_data_id": f"{conversation}_q{question}", "session_id": 4}
    return {"dialog": last, "previous_dialogs": earlier, "metadata": metadata, **self_instruct}


def locomo() -> list[dict[str, Any]]:
    def turn(session: int, number: int) -> dict[str, str]:
        return {"speaker": "Ann" if number % 2 else "Bob", "dia_id": f"D{session}:{number}", "text": f"said {number}"}

    conversation: dict[str, Any] = {"speaker_a": "Ann", "speaker_b": "Bob", "session_3_date_time": "unused"}
    for session in (1, 2, 10):
        conversation[f"session_{session}"] = [turn(session, number) for number in range(3)]
        conversation[f"session_{session}_date_time"] = f"{session} pm on 8 May, 2023"
    conversation["session_2"][1]["blip_caption"] = "a red boat"
    questions = [
        {"question": f"Question {n}?", "answer": f"answer {n}", "category": n, "evidence": []} for n in range(1, 5)
    ]
    questions += [{"question": "When?", "answer": 2022, "category": 2}]
    questions += [{"question": "Trick?", "adversarial_answer": "no", "category": 5}]
    return [{"sample_id": f"conv-{n}", "conversation": conversation, "qa": questions} for n in range(2)]


def metaicl(task: str, count: int, tag: str) -> list[dict[str, Any]]:
    options = OPTIONS[task]
    return [
        {"task": task, "input": f"{tag} {n} of {task}", "output": options[n % len(options)], "options": options}
        for n in range(count)
    ]


BABI = """1 Mary went to the kitchen.
2 John went to the garden.
3 Where is Mary? \tkitchen\t1
4 Mary went to the office.
5 Where is Mary? \toffice\t4
1 John went to the hallway.
2 Where is John? \thallway\t1
"""


def key_value(record: int, pairs: int = 75) -> dict[str, Any]:
    rows = [[f"key-{record}-{n}", f"value-{record}-{n}"] for n in range(pairs)]
    key, value = rows[record % pairs]
    return {"ordered_kv_records": rows, "key": key, "value": value}


def banking77(count: int, tag: str) -> bytes:
    rows = (f'"{tag} {n}, please",label {n % 3}' for n in range(count))
    return "\n".join(("text,category", *rows, "")).encode()


def clinc150() -> dict[str, Any]:
    sizes = {"train": 12, "val": 6, "oos_train": 2, "oos_val": 1}
    return {
        part: [[f"{part} {n}", "oos" if "oos" in part else f"label {n % 3}"] for n in range(count)]
        for part, count in sizes.items()
    }


def qmsum() -> dict[str, Any]:
    turns = [{"speaker": f"Person {n % 2}", "content": f"It is said {n}." if n else ""} for n in range(4)]
    queries = [{"query": f"What was said {n}?", "answer": f"It is {n}."} for n in range(2)]
    return {"meeting_transcripts": turns, "general_query_list": queries[:1], "specific_query_list": queries}


def squality(number: int) -> dict[str, Any]:
    responses = [{"response_text": f"It went {n}.\nAll ended."} for n in range(4)]
    questions = [{"question_text": f"What happened {n}?", "responses": responses} for n in range(3)]
    return {"metadata": {}, "document": f"Once {number} there was.\n\nThe end.", "questions": questions}


def leval(number: int, choice: bool) -> dict[str, Any]:
    options = "\n\n (A) It rained. \n (B) It snowed. \n (C) The sun\n shone. "
    questions = [f"What happened on day {n}?{options if choice else ''}" for n in range(3)]
    outputs = [f"({'ABC'[n]}) It was so." if choice else f"It rained {n} times." for n in range(3)]
    return {"input": f"Day {number}.", "instructions": questions, "outputs": outputs, "evaluation": "f1"}


def longeval_lines(number: int) -> dict[str, Any]:
    lines = [f"line red-hat{n}: REGISTER_CONTENT is <{7 * n + number}>\n" for n in range(6)]
    text = f"Remember.\n\n{''.join(lines)}\nNow the record is over. Tell me what is in line red-hat3? "
    return {"prompt": text, "correct_line": lines[3], "expected_number": 21 + number, "num_lines": 6}


def longeval_topic(number: int) -> dict[str, Any]:
    return {
        "topic_id": number,
        "topic": f"The art of {number}",
        "conversation": f"USER: Of {number}. \n ASSISTANT: Yes.",
    }


def nq_open(number: int) -> dict[str, Any]:
    passage = {"title": f"Number {number}", "text": f"It is {number}x.", "isgold": True}
    return {"question": f"what is number {number}", "answers": [f"The {number}x"], "ctxs": [passage]}


def suites(root: Path) -> None:
    """Writes the files of the suites for long contexts."""
    put(root / "banking77/train.csv", banking77(12, "train"))
    put(root / "banking77/test.csv", banking77(6, "test"))
    put(root / "clinc150/data_full.json.xz", json.dumps(clinc150()).encode())
    put(root / "qmsum/data/ALL/jsonl/test.jsonl", lines([qmsum()] * 4))
    put(root / "squality/data/v1-3/txt/test.jsonl", lines(map(squality, range(4))))
    for kind, name in (("Closed", "quality"), ("Open", "natural_question")):
        records = [leval(n, name == "quality") for n in range(4)]
        put(root / f"leval/LEval-data/{kind}-ended-tasks/{name}.jsonl", lines(records))
    put(root / "longeval/lines/testcases/200_lines.jsonl", lines(map(longeval_lines, range(4))))
    put(root / "longeval/topics/conversations.jsonl", lines(map(longeval_topic, range(7))))
    put(root / "lost_in_the_middle/qa_data/nq-open-oracle.jsonl.gz", lines(map(nq_open, range(100, 115))))


def write(root: Path) -> Path:
    """Writes all files below `root` and returns it."""
    put(root / "squad/dev-v1.1.json", json.dumps(squad()).encode())
    put(root / "streamingqa/streaminqa_eval.jsonl.gz", lines(streamingqa()))
    archives(root / "streamingqa/wmt")
    put(root / "streamingqa/situatedqa/temp.dev.jsonl", lines(situatedqa()))
    records = [msc(f"conv-{n % 2}", n) for n in range(6)] + [msc("train:7", 1)]
    put(root / "msc/msc_self_instruct.jsonl.gz", lines(records))
    put(root / "msc/msc_dialogue/session_5/test.txt", lines(msc(f"conv-{n % 2}") for n in range(4)))
    put(root / "babi/tasks_1-20_v1-2/en/qa1_single-supporting-fact_test.txt", BABI.encode())
    put(root / "lost_in_the_middle/kv_retrieval_data/kv-retrieval-75_keys.jsonl", lines(map(key_value, range(5))))
    put(root / "locomo/locomo10.json.gz", json.dumps(locomo()).encode())
    suites(root)
    for task in OPTIONS:
        for seed in (13, 100):
            for part, count in (("train", 16), ("test", 20)):
                path = root / f"metaicl/data/{task}/{task}_16_{seed}_{part}.jsonl"
                tag = part if part == "test" else f"{part} {seed}"
                put(path, lines(metaicl(task, count, tag)))
    return suite_files.write(root)
