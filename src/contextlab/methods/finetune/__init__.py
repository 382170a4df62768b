"""Fine-tuning on the context: the weights learn it for some epochs, and nothing else of it stays."""

from __future__ import annotations

from contextlab.methods.finetune.config import FinetuneConfig
from contextlab.methods.finetune.method import Finetune
from contextlab.methods.finetune.state import FinetuneState

__all__ = ["Finetune", "FinetuneConfig", "FinetuneState"]
