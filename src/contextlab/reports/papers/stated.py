"""Settings, sizes of data and prompts, as this package has them, beside those that a paper prints.

What is read has the form `KIND NAME FIELD`:

* `setting longmem K`: a method's default;
* `training longmem lr`: the default of its training;
* `backbone smollm2-135m layers`: of a model: `parameters`, `layers`, `heads`, `head width`, `width`, `vocabulary`,
  `positions` or `type`;
* `data pg22/S1 documents`: of the data on this machine: `documents`; `tokens`, their mean number; `range` of it; or
  `works`, their names;
* `demonstration longmem/sst2 form`: of a template of demonstrations: `form` or `labels`;
* `prompt document-question text`: a prompt.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextlab import registry
from contextlab.backbone.embedded import EMBEDDED
from contextlab.benchmarks.prompts import prompt
from contextlab.benchmarks.task import Dataset
from contextlab.errors import UserError

if TYPE_CHECKING:
    from contextlab.backbone import Backbone

ABSENT = "not here"


def value(of: str, data: Path | None = None) -> str:
    """What is stated, as text.

    Args:
        of: what is read.
        data: folder of the data; see `Task.load`.

    Raises:
        UserError: for an unknown method, task or prompt.
    """
    kind, name, field = of.split(" ", 2)
    return _READ[kind](name, field, data)


def _setting(name: str, field: str, _: Path | None) -> str:
    return _shown(registry.method_class(name).Config().as_dict()[field])


def _training(name: str, field: str, _: Path | None) -> str:
    from contextlab.training.options import TrainConfig

    return _shown(TrainConfig.of(registry.method_class(name).Config, {"tokens": 1}).as_dict()[field])


def _of_backbone(name: str, field: str, _: Path | None) -> str:
    backbone = _backbone(name)
    settings = backbone.model.config
    fields: Mapping[str, Any] = {
        "parameters": f"{sum(weight.numel() for weight in backbone.model.parameters()) / 1e6:.0f}M",
        "layers": backbone.layers,
        "heads": settings.num_attention_heads,
        "head width": settings.hidden_size // settings.num_attention_heads,
        "width": settings.hidden_size,
        "vocabulary": backbone.vocab_size,
        "positions": backbone.max_positions,
        "type": str(backbone.model.dtype).removeprefix("torch."),
    }
    return _shown(fields[field])


def _of_data(name: str, field: str, data: Path | None) -> str:
    task, _, split = name.partition("/")
    try:
        dataset = registry.task(task).load(split, data)
    except UserError:  # the data has no document of this split
        return ABSENT
    if dataset.source == "sample":
        return ABSENT
    if field == "works":
        return ", ".join(dict.fromkeys(example.work for example in dataset.examples))
    if field == "documents":
        return _shown(len(dataset.examples))
    lengths = _lengths(dataset)
    if field == "tokens":
        return f"{statistics.fmean(lengths) / 1000:.1f}K"
    return f"{min(lengths) / 1000:.1f}K-{max(lengths) / 1000:.1f}K"


def _demonstration(name: str, field: str, _: Path | None) -> str:
    from contextlab.benchmarks.tasks.icl import ICLConfig, template

    source, task = name.split("/")
    chosen = template(task, ICLConfig.parse({"template": source}, "icl"))
    return chosen.form if field == "form" else ", ".join(words[0] for words in chosen.labels)


def _prompt(name: str, _field: str, _: Path | None) -> str:
    return " ".join(prompt(name).split())


_READ: Mapping[str, Callable[[str, str, Path | None], str]] = {
    "setting": _setting,
    "training": _training,
    "backbone": _of_backbone,
    "data": _of_data,
    "demonstration": _demonstration,
    "prompt": _prompt,
}


@cache
def _backbone(name: str) -> Backbone:
    from contextlab.backbone import load

    return load(name)


def _lengths(dataset: Dataset) -> list[int]:
    """Tokens of every document, in the tokens of the embedded model."""
    encode = _backbone(EMBEDDED).encode
    return [len(encode(document.text)) for document in dataset.examples]


def _shown(setting: Any) -> str:
    return "not set" if setting is None else f"{setting:g}" if isinstance(setting, float) else str(setting)
