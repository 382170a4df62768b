"""Retrieval of text by BM25: In-Context RALM (Ram et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

import pydantic

from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.bm25.search import Search
from contextlab.methods.parts.text_retrieval import TextConfig, TextFormula, TextMethod, TextState


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class BM25Config(TextConfig):
    """What is retrieved, and how often."""


class BM25(TextMethod[BM25Config, TextState]):
    """Keeps the text; the k chunks with the highest scores of BM25 are read in front of its recent tokens.

    Reading computes nothing: the model reads when something is predicted.
    """

    Config = BM25Config

    def __init__(self, backbone: Backbone, config: BM25Config | None = None) -> None:
        super().__init__(backbone, config)
        self.search = Search(backbone)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """That of full attention to what is in view."""
        model, full = Model.of(self.backbone), self.full.formula()
        return None if model is None or full is None else TextFormula(model, full, self.view, ahead)

    def best(self, state: TextState, row: int, chunks: Sequence[Sequence[int]], query: Sequence[int]) -> list[int]:
        """The chunks with the highest scores; of equal ones the newest."""
        return self.search.best(chunks, query, self.view.k)
