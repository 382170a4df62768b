"""LongEval (Li et al. 2023): the number in one of many lines, and the first topic of a long chat."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pydantic

from contextlab.benchmarks.configs import ContextConfig
from contextlab.benchmarks.data import phrases
from contextlab.benchmarks.data.questions import sample_dataset
from contextlab.benchmarks.data.sample import story
from contextlab.benchmarks.data.sources import field
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.documents import Documents
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.benchmarks.protocols.answers import AnswerProtocol

LINES = (200, 300, 400, 500, 600)
"""Lines of the cases in the files."""
HEAD = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' and contains a "
    "'<REGISTER_CONTENT>' at the end of the line as a numerical value. For each line index, memorize its "
    "corresponding <REGISTER_CONTENT>. At the end of the record, I will ask you to retrieve the corresponding "
    "<REGISTER_CONTENT> of a certain line index. Now the record start:\n\n"
)
LINE = "line {name}: REGISTER_CONTENT is <{number}>\n"
RECORD_ENDS = "Now the record is over. "
QUESTION = RECORD_ENDS + "Tell me what is the <REGISTER_CONTENT> in line {name}? I need the number."
TOPIC_QUESTION = "What is the first topic we discussed? Only give me the topic name. Do not summarize yourself."
PROMPT = "{text}\nAnswer:"
LONGEST_ANSWER = 50
MOST_NUMBER = 50_000
NAMES = [
    "-".join(pair)
    for pair in itertools.product(
        sorted({name.split()[0] for name in (*phrases.THINGS, *phrases.PLACES)}),
        sorted({name.split()[-1] for name in (*phrases.THINGS, *phrases.PLACES)}),
    )
]
"""Names of generated lines: an adjective and a noun."""
SAMPLE_TOPICS, SAMPLE_WORDS, SAMPLE_SEED = 12, 150, 28


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LongEvalConfig(ContextConfig):
    """The length of cases that are not in a file.

    Attributes:
        lines: of a case, in the split `lines`.
        cases: number of cases, in the split `lines`.
        topics: number of dialogues of a case, in the split `topics`.
        seed: of the cases, in the split `lines`.
    """

    lines: pydantic.PositiveInt = 300
    cases: pydantic.PositiveInt = 50
    topics: pydantic.PositiveInt = 5
    seed: pydantic.NonNegativeInt = 0


class LongEval(Documents):
    """Which number is in a line, or what was the first topic?"""

    name: ClassVar[str] = "longeval"
    splits: ClassVar[dict[str, str]] = {
        "lines": "generated cases of any number of lines",
        **{f"lines-{count}": f"LongEval's cases of {count} lines" for count in LINES},
        "topics": "LongEval's dialogues, one after the other",
    }
    default_split: ClassVar[str] = "lines"
    Config = LongEvalConfig
    config: LongEvalConfig
    title: ClassVar[str] = "LongEval"
    noun: ClassVar[str] = "case"
    dataset: ClassVar[str] = "longeval"
    files: ClassVar[dict[str, str]] = {
        **{f"lines-{count}": f"lines/testcases/{count}_lines.jsonl" for count in LINES},
        "topics": "topics/conversations.jsonl",
    }
    complete: ClassVar[dict[str, int]] = {f"lines-{count}": 50 for count in LINES}

    def load(self, split: str, data: Path | None) -> Dataset:
        """The cases of a file, or generated ones.

        Raises:
            UserError: when the data folder lacks the file, it is broken, or there are not so many names or dialogues.
        """
        if self.check_split(split) == "lines":
            cases = tuple(_cases(self.config.lines, self.config.cases, self.config.seed))
            return Dataset(cases, "sample", sample_dataset(cases, "").sha256, "generated cases in LongEval's layout")
        dataset = super().load(split, data)
        if split != "topics":
            return dataset
        examples = _conversations(dataset.examples, self.config.topics)
        return Dataset(examples, dataset.source, dataset.sha256, dataset.note)

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        """Whether the last number of the answer, or the name of the topic in it, is right."""
        from contextlab.benchmarks.protocols.answers import AnswerProtocol

        score = topic_named if self.check_split(split) == "topics" else last_number
        prompts = (PROMPT, PROMPT)
        return AnswerProtocol(prompts, self.options(context), {"accuracy": score}, max_new_tokens=LONGEST_ANSWER)

    def reading(self, record: Any, where: str, identity: str) -> Reading:
        """A case of lines with its question, or one dialogue."""
        if identity.startswith("topics"):
            topic, text = (field(record, name, str, where).strip() for name in ("topic", "conversation"))
            return Reading(identity, identity, text, (Question(identity, TOPIC_QUESTION, (topic,)),))
        line, number = field(record, "correct_line", str, where), field(record, "expected_number", int, where)
        context, ending, question = field(record, "prompt", str, where).partition(RECORD_ENDS)
        if not ending or line not in context:
            raise UserError(f"{where} does not hold its line and question: replace the file with an intact copy.")
        return _lines_reading(identity, context, ending + question.strip(), number, line)

    def sample(self, split: str) -> Sequence[Reading]:
        """Generated cases, or stories as dialogues."""
        if split != "topics":
            return list(_cases(int(split.partition("-")[2]), 8, SAMPLE_SEED))
        return [_dialogue(n, phrases.THINGS[n]) for n in range(SAMPLE_TOPICS)]


def last_number(text: str, question: Question) -> float:
    """1 when the last number of the answer is the expected one."""
    numbers = re.findall(r"\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == int(question.answers[0]))


def topic_named(text: str, question: Question) -> float:
    """1 when the topic occurs in the answer."""
    return qa_metrics.contains(text, question.answers)


def _cases(lines: int, cases: int, seed: int) -> list[Reading]:
    if lines > len(NAMES):
        raise UserError(f"longeval has names for {len(NAMES):,} lines: lower lines={lines}.")
    readings = []
    for number in range(cases):
        draw = random.Random(f"{seed} {lines} {number}")
        values = {name: draw.randint(1, MOST_NUMBER) for name in draw.sample(NAMES, lines)}
        name = draw.choice(list(values))
        context = HEAD + "".join(LINE.format(name=name, number=value) for name, value in values.items())
        line = LINE.format(name=name, number=values[name])
        question = QUESTION.format(name=name)
        readings.append(_lines_reading(f"lines-{lines}/{number}", context, question, values[name], line))
    return readings


def _lines_reading(identity: str, context: str, text: str, number: int, line: str) -> Reading:
    question = Question(identity, text, (str(number),), place=context.index(line))
    return Reading(identity, identity, context, (question,))


def _conversations(dialogues: Sequence[Reading], topics: int) -> tuple[Reading, ...]:
    """A case for each dialogue, in which it is the first of several."""
    if topics > len(dialogues):
        raise UserError(f"longeval has {len(dialogues)} dialogues here: lower topics={topics}.")
    around = [*dialogues, *dialogues]
    return tuple(
        Reading(first.id, first.work, "\n".join(talk.context for talk in around[n : n + topics]), first.questions)
        for n, first in enumerate(dialogues)
    )


def _dialogue(number: int, topic: str) -> Reading:
    text = story(SAMPLE_WORDS, SAMPLE_SEED, number).text
    begin = f"USER: I would like to discuss the topic of the {topic}.\n ASSISTANT: {text}"
    end = f"USER: Great, this is the end of our discussion on the topic the {topic}."
    name = f"topics/{number}"
    return Reading(name, name, f"{begin}\n {end}", (Question(name, TOPIC_QUESTION, (topic,)),))
