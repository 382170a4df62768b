from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import contextlab
from contextlab.backbone import load
from contextlab.benchmarks.data.questions import estimated_tokens
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.protocols.answers import SQUAD_SCORES, AnswerProtocol
from contextlab.benchmarks.task import Control, Dataset
from contextlab.benchmarks.tasks.sized import SizedTask

TEXT = "Who said so, and when?"


class Counted(SizedTask):
    """The note of its data has the tokens of a text."""

    name: ClassVar[str] = "counted"
    splits: ClassVar[dict[str, str]] = {"all": "everything"}
    default_split: ClassVar[str] = "all"

    def load(self, split: str, data: Path | None) -> Dataset:
        reading = Reading("1", "1", TEXT, (Question("1/1", "Who?", ("Ann",)),))
        return Dataset((reading,), "sample", self.tokenizer or "none", f"{self.count(TEXT)} tokens")

    def protocol(self, split: str, context: Control = "own") -> AnswerProtocol:
        prompts = ("document-question", "question")
        return AnswerProtocol(prompts, self.options(context), SQUAD_SCORES, max_new_tokens=2)


def test_tokens_are_estimated_without_a_backbone_and_counted_with_one() -> None:
    backbone, task = load("tiny-llama", device="cpu"), Counted()
    on = task.on(backbone)
    assert task.count(TEXT) == round(estimated_tokens(TEXT))
    assert on.count(TEXT) == len(backbone.encode(TEXT)) != task.count(TEXT)
    assert (task.tokenizer, on.tokenizer) == ("", backbone.tokenizer_digest)


def test_bench_loads_it_with_the_tokens_of_its_backbone(tmp_path: Path) -> None:
    backbone = load("tiny-llama", device="cpu")
    results = contextlab.bench("sliding", f"{__file__}:Counted", backbone=backbone, out=tmp_path, progress=False)
    data = results.runs[0].data
    assert (data.note, data.sha256) == (f"{len(backbone.encode(TEXT))} tokens", backbone.tokenizer_digest)
