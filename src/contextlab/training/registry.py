"""Objectives by name."""

from __future__ import annotations

from contextlab import grammar
from contextlab.errors import unknown
from contextlab.method import AnyMethod
from contextlab.training.answers import Answers
from contextlab.training.attention_fit import AttentionFit
from contextlab.training.chunks import Completion, Reconstruction
from contextlab.training.contrast import Contrast, Harm
from contextlab.training.corpus import Corpus
from contextlab.training.objectives import LanguageModel, Objective
from contextlab.training.state_fit import StateFit
from contextlab.training.teacher import Teacher

OBJECTIVES: dict[str, type[Objective]] = {
    "lm": LanguageModel,
    "teacher": Teacher,
    "contrast": Contrast,
    "harm": Harm,
    "reconstruction": Reconstruction,
    "completion": Completion,
    "answers": Answers,
    "attention": AttentionFit,
    "states": StateFit,
}


def named_objective(text: str, method: AnyMethod, corpus: Corpus) -> Objective:
    """The objective that a text names, as `lm` or `teacher(k=64)`.

    Raises:
        UserError: when there is none of that name, or it has no such setting.
    """
    item = grammar.single(text, "objective")
    if item.name not in OBJECTIVES:
        raise unknown("objective", item.name, OBJECTIVES)
    kind = OBJECTIVES[item.name]
    return kind(method, corpus, kind.Config.parse(item.settings, item.name))
