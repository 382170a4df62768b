"""The scores of kvpress's own program beside this package's `press`, on the same samples of RULER: do they agree?

The protocol is that of kvpress's published tables: context and question are one turn of the user, of which the context
alone is compressed; the beginning of the answer is given, and answers are greedy. kvpress needs an environment with its
own requirements, so that there are three steps: the model and the samples are written to a folder, kvpress answers in
its environment, where this package need not be, and this package answers and compares.

    python benches/presses.py rows FOLDER [--task TASK] [--data DIR]
    python benches/presses.py theirs FOLDER                                   after pip install kvpress==0.5.5
    python benches/presses.py ours FOLDER > results/benches/presses.json
"""

from __future__ import annotations

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlab.harness.case import TaskCase

ROWS, ANSWERS, MODEL = "rows.json", "answers.json", "model"
TASK = "ruler(tokens=4096,samples=1,prompt=chat)"
WHOLE, FULL = "none", "full"
"""The name of a run without a press, and the method here that it is compared with."""
PRESSES = f"{WHOLE},SnapKV,KeyDiff"


def case_of(task: str, backbone: Any, data: Path | None) -> TaskCase:
    """The samples of a task."""
    from contextlab.harness.case import cases
    from contextlab.harness.selection import select

    _, (named,) = select([FULL], [task])
    (case,) = cases([named.loaded(data, backbone)], ["own"], None)
    return case


def write_rows(folder: Path, task: str, backbone: str, data: Path | None) -> dict[str, Any]:
    """The samples as kvpress names their fields, and the model, in a folder."""
    from contextlab import backbone as backbones

    model = backbones.resolve(backbone)
    model.model.save_pretrained(folder / MODEL)
    model.tokenizer.save_pretrained(folder / MODEL)
    readings: list[Any] = list(case_of(task, model, data).selected)
    # White space at the end of a context is read with the question here, and a press counts the tokens of its context.
    rows = [
        {
            "id": question.id,
            "context": reading.context.rstrip(),
            "question": reading.context[len(reading.context.rstrip()) :] + question.text,
            "answer_prefix": question.prefix,
            "max_new_tokens": question.max_new_tokens,
        }
        for reading in readings
        for question in reading.questions
    ]
    about = {"task": task, "backbone": backbone, "data": None if data is None else str(data)}
    (folder / ROWS).write_text(json.dumps({**about, "rows": rows}))
    return {"rows": len(rows)}


def write_answers(folder: Path, presses: list[str], ratio: float) -> dict[str, Any]:
    """What kvpress's pipeline answers with every press."""
    import kvpress
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder / MODEL, dtype=torch.float32).eval()
    pipeline = kvpress.KVPressTextGenerationPipeline(
        model=model, tokenizer=AutoTokenizer.from_pretrained(folder / MODEL)
    )
    rows = json.loads((folder / ROWS).read_text())["rows"]
    answers: dict[str, dict[str, str]] = {}
    for name in presses:
        press = None if name == WHOLE else getattr(kvpress, f"{name}Press")(compression_ratio=ratio)
        answers[name] = {
            row["id"]: pipeline(
                row["context"],
                question=row["question"],
                answer_prefix=row["answer_prefix"],
                press=press,
                max_new_tokens=row["max_new_tokens"],
            )["answer"]
            for row in rows
        }
    versions = {package: version(package) for package in ("kvpress", "transformers", "torch")}
    (folder / ANSWERS).write_text(json.dumps({"versions": versions, "ratio": ratio, "answers": answers}))
    return {"presses": presses, **versions}


def compared(folder: Path) -> dict[str, Any]:
    """The score of both programs for every press, and the samples whose answers differ."""
    from contextlab import backbone as backbones
    from contextlab import naming
    from contextlab.accounting.ledger import Ledger, Meter
    from contextlab.benchmarks.protocols.ruler import string_match
    from contextlab.harness.identity import hardware

    about, theirs = (json.loads((folder / name).read_text()) for name in (ROWS, ANSWERS))
    backbone = backbones.resolve(about["backbone"])
    case = case_of(about["task"], backbone, about["data"] and Path(about["data"]))
    readings: list[Any] = list(case.selected)
    questions = {question.id: question for reading in readings for question in reading.questions}
    rows = []
    for name, answers in theirs["answers"].items():
        label = FULL if name == WHOLE else f"press(name={name},ratio={theirs['ratio']})"
        method = Meter(naming.single(label).build(backbone), Ledger(backbone.device, counting=False))
        entries = [
            entry for reading in readings for entry in case.protocol.evaluate(method, reading, reading)["questions"]
        ]
        ours = {entry["id"]: entry["prediction"] for entry in entries}
        scores = [[string_match(text[key], questions[key]) for key in questions] for text in (answers, ours)]
        rows.append(
            {
                "press": name,
                "kvpress": sum(scores[0]) / len(questions),
                "contextlab": sum(scores[1]) / len(questions),
                "samples": len(questions),
                "other_score": sum(a != b for a, b in zip(*scores, strict=True)),
                "other_answer": sum(answers[key].strip() != ours[key].strip() for key in questions),
            }
        )
    return {
        "bench": "presses",
        "task": about["task"],
        "data": case.dataset.note,
        "backbone": about["backbone"],
        "ratio": theirs["ratio"],
        "kvpress": theirs["versions"],
        "device": hardware(backbone.device),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("step", choices=("rows", "theirs", "ours"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", default=TASK)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--presses", default=PRESSES)
    parser.add_argument("--ratio", type=float, default=0.5)
    parser.add_argument("--data", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.step == "rows":
        report = write_rows(args.folder, args.task, args.backbone, args.data)
    elif args.step == "theirs":
        report = write_answers(args.folder, args.presses.split(","), args.ratio)
    else:
        report = compared(args.folder)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
