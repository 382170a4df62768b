"""Tasks whose texts have a length in tokens of the backbone that reads them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from contextlab.benchmarks.data.questions import estimated_tokens
from contextlab.benchmarks.task import Task

if TYPE_CHECKING:
    from contextlab.backbone import Backbone


class SizedTask(Task):
    """A task that counts tokens: those of a backbone after `on`, before it those of an estimate for English.

    Attributes:
        tokenizer: digest of the tokenizer that counts; "" for the estimate.
    """

    in_tokens: ClassVar[bool] = True
    tokenizer: str = ""
    _backbone: Backbone | None = None

    def on(self, backbone: Backbone) -> Self:
        """The task with lengths in tokens of a backbone."""
        task = copy.copy(self)
        task._backbone, task.tokenizer = backbone, backbone.tokenizer_digest
        return task

    def made_with(self, split: str, *names: str) -> dict[str, Any]:
        """What generated texts depend on: task, split, tokenizer, and the settings of these names."""
        settings = {name: getattr(self.config, name) for name in names}
        return {"task": self.name, "split": split, **settings, "tokenizer": self.tokenizer}

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return round(estimated_tokens(text)) if self._backbone is None else len(self._backbone.encode(text))
