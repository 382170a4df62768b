"""Generated stories with questions and answers, as lines of a corpus for the objective `answers`.

In every story one thing is hidden for one person; the two questions, where and for whom, are worded as those of SQuAD.
What is learned from them must be tested on other data: samples of tasks are made from the same phrases.

    python benches/stories.py --count 1200 > DIR/stories.jsonl
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from contextlab.benchmarks.data import sample
from contextlab.benchmarks.prompts import prompt


def line(words: int, seed: int, index: int) -> dict[str, Any]:
    """A story of about so many words, with its questions."""
    story, _ = sample.planted(words, (words // 2,), seed, index)
    wording = "\n\n" + prompt("document-question")
    turns = [{"prompt": wording.format(text=fact.question), "answer": f" {fact.answer}\n"} for fact in story.facts]
    return {"context": "\n\n".join(story.chapters), "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--words", type=int, default=100, help="of a story")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for index in range(options.count):
        print(json.dumps(line(options.words, options.seed, index)))


if __name__ == "__main__":
    main()
