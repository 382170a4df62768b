"""Tasks of drawn labels from CLINC150 and NLU Evaluation Data, as lines of a corpus for instruction tuning.

Every line is a task: some intents of one of the sets, numbered at random, and demonstrations of them in the words of
`many-label`. The numbers mean nothing outside of their line, so that they can only be learned from its demonstrations.
Many demonstrations a line are many-shot instruction tuning (MSIT, EVALM, section 3.2). One-shot (IT) is one
demonstration of every label, and a text that is asked after them. Texts are drawn from the training parts alone;
BANKING77 is left for tests.

    python benches/intents.py --data DIR --shots 400 --tasks 16 > MANY/intents.jsonl
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contextlab.benchmarks.data import label_sets
from contextlab.benchmarks.data.label_sets import Row
from contextlab.benchmarks.tasks.many_label import INSTRUCTION, ITEM, SEPARATOR, by_label, rounds

SETS = ("clinc150", "nlu")


def line(rows: Mapping[str, Sequence[Row]], labels: int, shots: int, draw: random.Random) -> dict[str, Any]:
    """A task of so many labels, the numbers of which are their places in a random order.

    Args:
        rows: of every label of the set.
        labels: of the task.
        shots: demonstrations in all; one of every label, and one more, when 0.
        draw: of labels, numbers and texts.
    """
    numbers = {label: str(number) for number, label in enumerate(draw.sample(sorted(rows), labels))}
    demonstrations = itertools.islice(rounds({label: rows[label] for label in numbers}, draw), shots or labels + 1)
    turns = [
        {"prompt": SEPARATOR * (number > 0) + ITEM.format(text=text), "answer": f" {numbers[label]}"}
        for number, (text, label) in enumerate(demonstrations)
    ]
    return {"context": INSTRUCTION, "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="as for contextlab bench")
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--shots", type=int, default=0, help="of a task in all; one-shot when not given")
    parser.add_argument("--labels", type=int, nargs=2, default=(2, 32), help="fewest and most labels of a task")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    sets = [by_label(label_sets.load(name, options.data).train) for name in SETS]
    for _ in range(options.tasks):
        rows = draw.choice(sets)
        labels = min(draw.randint(*options.labels), len(rows))
        print(json.dumps(line(rows, labels, options.shots, draw)))


if __name__ == "__main__":
    main()
