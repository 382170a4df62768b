"""MetaICL (Min et al. 2022), setting hr_to_lr: new tasks learned from at most 16 demonstrations.

Demonstrations have GenerativeAdapter's prompt (its figure 7): `Input:` and `Output:`, with an empty line between two
demonstrations.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.configs import QuestionConfig
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.questions import in_turns, sample_dataset
from contextlab.benchmarks.data.sources import field, json_lines, locate_folder, plain_or_packed, texts
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import prompt
from contextlab.benchmarks.task import Control, Dataset, Metric, Part, Task
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import QuestionProtocol

CLASSIFICATION = (
    *("climate_fever", "ethos-national_origin", "ethos-race", "ethos-religion", "financial_phrasebank", "glue-mrpc"),
    *("glue-rte", "glue-wnli", "hate_speech18", "medical_questions_pairs", "poem_sentiment", "sick", "superglue-cb"),
    *("tweet_eval-hate", "tweet_eval-stance_atheism", "tweet_eval-stance_feminist"),
)
OTHERS = (
    *("ai2_arc", "codah", "commonsense_qa", "dream", "openbookqa", "qasc", "quarel", "quartz-no_knowledge"),
    *("quartz-with_knowledge", "superglue-copa"),
)
# Tasks whose verified files were made from raw data by the same recipe, and not by upstream's scripts.
CONVERTED = (
    *("ai2_arc", "climate_fever", "codah", "dream", "ethos-national_origin", "ethos-race", "ethos-religion"),
    *("financial_phrasebank", "hate_speech18", "medical_questions_pairs", "tweet_eval-stance_atheism"),
    "tweet_eval-stance_feminist",
)
SEEDS = (13, 21, 42, 87, 100)
SHOTS = (1, 2, 4, 8, 16)
TOGETHER = 16
LONGEST_ANSWER = 10


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class MetaICLConfig(QuestionConfig):
    """The prompt of items.

    Attributes:
        upstream: whether to use the prompt and the lengths of MetaICL's own code, see `metaicl_upstream`.
    """

    upstream: bool = False


class MetaICL(Task):
    """Answer an item of a task after demonstrations of the task, by choosing an option or by writing."""

    name: ClassVar[str] = "metaicl"
    splits: ClassVar[dict[str, str]] = {
        f"k{shots}{suffix}": f"{shots} demonstrations, {way}"
        for suffix, way in (("", "options ranked"), ("-written", "answers written"))
        for shots in SHOTS
    }
    default_split: ClassVar[str] = "k16"
    Config = MetaICLConfig
    config: MetaICLConfig

    def check_split(self, split: str | None) -> str:
        """The split to use: the default when None.

        Raises:
            UserError: when there is no such split, or the settings do not fit it or each other.
        """
        name = super().check_split(split)
        if self.config.upstream and (name.endswith("-written") or self.config.changed().keys() & {"prompt", "turns"}):
            raise UserError("MetaICL's own code ranks options in plain text: leave -written, prompt= and turns= out.")
        return name

    def load(self, split: str, data: Path | None) -> Dataset:
        """Every task with every available seed, 16 items of a test file to an example; tasks alternate.

        Raises:
            UserError: when the data folder lacks the set, or a file is missing or broken.
        """
        shots = _shots(self.check_split(split))
        location = locate_folder(self.name, "data", data)
        if location.path is None:
            return sample_dataset(_sample(shots), "MetaICL")
        tasks = [task for task in sorted([*CLASSIFICATION, *OTHERS]) if (location.path / task).is_dir()]
        if not tasks:
            raise UserError(f"{location.path} holds no task of hr_to_lr: name a data folder that does.")
        digest = hashlib.sha256()
        readings = in_turns([_task(location.path / task, shots, digest) for task in tasks])
        return Dataset(readings, location.source, digest.hexdigest(), _note(location.path, tasks, readings))

    def protocol(self, split: str, context: Control = "own") -> QuestionProtocol:
        """Ranks options by perplexity per token, or compares an answer of 10 tokens exactly, ignoring case."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol
        from contextlab.benchmarks.protocols.metaicl_upstream import UpstreamProtocol

        name, options, wording = self.check_split(split), self.options(context), self.config.prompt
        if not name.endswith("-written"):
            summary = functools.partial(summarise, measure="accuracy")
            if self.config.upstream:
                return UpstreamProtocol(options, summary=summary)
            items = ("metaicl-item", "metaicl-item")
            return RankProtocol(items, options, summary=summary, over_works=True, wording=wording, bare="metaicl-item")
        return AnswerProtocol(
            ("metaicl-instructed", "metaicl-item"),
            options,
            {"exact_match": _exact_match},
            max_new_tokens=LONGEST_ANSWER,
            summary=functools.partial(summarise, measure="exact_match"),
            over_works=True,
            wording=wording,
            bare="metaicl-item",
        )


def summarise(records: list[dict[str, Any]], measure: str) -> dict[str, Metric]:
    """Means over tasks: over all, over those of each kind, and with each seed; and every single task.

    Where options are ranked, classification tasks also have macro F1 over the classes that are right answers, and
    `score` is MetaICL's number: the mean over tasks of macro F1 for classification and accuracy for the others. F1 is
    the mean over seeds. In means over tasks a cluster is a task; in those of one task it is an item with all its seeds.
    """
    from contextlab.benchmarks.metrics.estimates import proportion

    tasks: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        tasks.setdefault(record["work"], []).extend(record["questions"])
    parts = {task: [Part(entry[measure], 1.0, task, task) for entry in entries] for task, entries in tasks.items()}
    single = {task: proportion(_of_items(entries, measure)) for task, entries in tasks.items()}
    metrics = {measure: proportion(_joined(parts.values()))}
    for kind in (CLASSIFICATION, OTHERS):
        if chosen := [parts[task] for task in tasks if task in kind]:
            metrics[f"{measure}_{'other' if kind is OTHERS else 'classification'}"] = proportion(_joined(chosen))
    f1 = {task: _f1(entries) for task, entries in tasks.items() if "nats" in entries[0] and task not in OTHERS}
    if f1:
        metrics["macro_f1_classification"] = _over_tasks(f1)
        metrics["score"] = _over_tasks({**single, **f1})
    for seed in sorted({entry["seed"] for entries in tasks.values() for entry in entries}):
        chosen = [[p for p, e in zip(parts[task], tasks[task], strict=True) if e["seed"] == seed] for task in tasks]
        metrics[f"{measure}_seed_{seed}"] = proportion(_joined(chosen))
    metrics |= {f"{measure}_{task}": metric for task, metric in single.items()}
    return metrics | {f"macro_f1_{task}": metric for task, metric in f1.items()}


def _joined(lists: Iterable[list[Part]]) -> list[Part]:
    return [part for parts in lists for part in parts]


def _of_items(entries: Sequence[dict[str, Any]], measure: str) -> list[Part]:
    return [Part(entry[measure], 1.0, entry["item"]) for entry in entries]


def _over_tasks(single: Mapping[str, Metric]) -> Metric:
    """The mean over tasks; every task is one observation."""
    from contextlab.benchmarks.metrics.estimates import proportion

    return proportion([Part(metric.value * metric.n, metric.n, task, task) for task, metric in single.items()])


def _f1(entries: Sequence[dict[str, Any]]) -> Metric:
    """Macro F1 as the mean over seeds and right classes; an item is one observation for each seed."""
    from contextlab.benchmarks.metrics.estimates import f1_parts, proportion

    right = {f"{entry['seed']}/{entry['answer']}" for entry in entries}
    parts = _joined(f1_parts(e["answer"], e["prediction"], e["item"], f"{e['seed']}/") for e in entries)
    return proportion([part for part in parts if part.stratum in right], len(entries))


def _exact_match(text: str, question: Question) -> float:
    return float(text.removeprefix("Output:").strip().lower() == question.answers[0].strip().lower())


def _shots(split: str) -> int:
    return int(split.partition("-")[0][1:])


def _task(folder: Path, shots: int, digest: Any) -> list[Reading]:
    """The readings of a task: the first 16 items with every seed, then the next 16 with every seed, and so on."""
    name = folder.name
    seeds = _seeds(folder)
    if not seeds:
        raise UserError(f"{folder} holds no file {name}_16_<seed>_train.jsonl: replace it with an intact copy.")
    rows = []
    for seed in seeds:
        demonstrations, items = (_questions(folder, seed, part, digest) for part in ("train", "test"))
        if len(demonstrations) < shots:
            raise UserError(f"{folder} has {len(demonstrations)} demonstrations of seed {seed}: choose a smaller k.")
        rows.append(_readings(name, seed, shots, demonstrations, items))
    return list(in_turns(rows))


def _questions(folder: Path, seed: int, part: str, digest: Any) -> list[Question]:
    listed = folder / f"{folder.name}_16_{seed}_{part}.jsonl"
    records, sha256 = json_lines(plain_or_packed(listed) or listed)
    digest.update(f"{listed.name} {sha256}\n".encode())
    return [_question(record, where, f"{folder.name}/{n}", seed) for n, (where, record) in enumerate(records)]


def _question(record: Any, where: str, item: str, seed: int) -> Question:
    output, options = field(record, "output", str, where), texts(record, "options", where)
    if output not in options:
        raise UserError(f"{where} has an output that is none of its options: replace the file with an intact copy.")
    # Options are sorted, so that a class has the same index in all items.
    text = field(record, "input", str, where).strip()
    return Question(f"{item}/{seed}", text, (output,), tuple(sorted(options)), {"item": item, "seed": seed})


def _readings(
    task: str, seed: int, shots: int, demonstrations: Sequence[Question], items: Sequence[Question]
) -> list[Reading]:
    """The readings of one draw of demonstrations; those of a smaller k are also in those of a larger k."""
    draw = random.Random(f"{task}/{seed}").random
    shown = sorted(demonstrations, key=lambda _: draw())[:shots]
    context = "\n\n".join(
        f"{prompt('metaicl-item').format(text=demonstration.text)} {demonstration.answers[0].strip()}"
        for demonstration in shown
    )
    return [
        Reading(f"{task}/{seed}/{start}", task, context, tuple(items[start : start + TOGETHER]), tuple(shown))
        for start in range(0, len(items), TOGETHER)
    ]


def _note(folder: Path, tasks: Sequence[str], readings: Sequence[Reading]) -> str:
    shown = [task for task in tasks if proofs.verified("metaicl", _items(folder / task))]
    converted = [task for task in shown if task in CONVERTED]
    missing = sorted({*CLASSIFICATION, *OTHERS} - set(tasks))
    seeds = sorted({reading.questions[0].details["seed"] for reading in readings})
    kinds = {"real": len(shown) - len(converted), "converted": len(converted)}
    amounts = ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    whole = f"MetaICL hr_to_lr, {len(tasks)} of 26 tasks: {amounts}"
    part = f" of 26, of which {len(shown)} have known files"
    sentences = [
        whole if len(shown) == len(tasks) else proofs.unverified("MetaICL hr_to_lr", len(tasks), "task", part),
        f"seeds {', '.join(map(str, seeds))}",
        *([f"missing {', '.join(missing)}"] if missing else []),
    ]
    return "; ".join(sentences)


def _items(folder: Path) -> list[str]:
    """The digests of the files of a task."""
    names = (f"{folder.name}_16_{seed}_{part}.jsonl" for seed in _seeds(folder) for part in ("train", "test"))
    return [proofs.file_item(name, plain_or_packed(folder / name) or folder / name) for name in names]


def _seeds(folder: Path) -> list[int]:
    return [seed for seed in SEEDS if plain_or_packed(folder / f"{folder.name}_16_{seed}_train.jsonl")]


def _sample(shots: int) -> list[Reading]:
    from contextlab.benchmarks.data.labelled import Row, labelled

    def questions(rows: Sequence[Row], task: str, options: tuple[str, ...]) -> list[Question]:
        return [
            Question(f"{task}/{n}", text, (options[label],), tuple(sorted(options)), {"item": f"{n}", "seed": SEEDS[0]})
            for n, (label, text) in enumerate(rows)
        ]

    words = {"sst2": ("negative", "positive"), "agnews": ("world", "sports", "business", "technology")}
    parts = {task: [questions(rows, task, options) for rows in labelled(task)] for task, options in words.items()}
    return list(in_turns([_readings(task, SEEDS[0], shots, *both) for task, both in parts.items()]))
