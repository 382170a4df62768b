"""MetaICL's own prompts (Min et al. 2022, the direct model), in place of GenerativeAdapter's.

Inputs and outputs are separated by a space, without other words. A demonstration has at most 256 tokens, of which two
stay unused; a longer one is cut at the end of its input. The same holds for an item with its longest option. The first
tokens before an option are dropped until both have at most 1,024 tokens, including one for the beginning and one for
the end of the text; the longest option decides for all. The end of the text is scored with every option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.protocols.answers import MetricsOf, RankProtocol, last
from contextlab.benchmarks.protocols.spans import check_fits, contextualize
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.method import Lengths, State

if TYPE_CHECKING:
    from contextlab.accounting.ledger import Meter
    from contextlab.backbone import Backbone

INPUT_TOKENS = 1024
ITEM_TOKENS = 256
FREE_TOKENS = 2


class UpstreamProtocol(RankProtocol):
    """Rank options after demonstrations that are cut separately for every item.

    Consecutive items with the same cut share one state; any other item reads its own context.
    """

    def __init__(self, options: Options, summary: MetricsOf) -> None:
        super().__init__(("metaicl-item", "metaicl-item"), options, summary=summary, over_works=True)
        self.prompt = f"MetaICL, {ITEM_TOKENS} tokens an item and {INPUT_TOKENS} in all"

    def evaluate(self, meter: Meter, example: Reading, other: Reading) -> dict[str, Any]:
        """Answer every item of one example.

        Raises:
            UserError: when demonstrations, item and option are longer than the method can read as one text.
        """
        own = last(demonstrations(meter.backbone, example.shown), self.options.tokens)
        wrong = last(demonstrations(meter.backbone, other.shown), len(own))
        chosen = {"own": own, "none": [], "wrong": wrong}[self.options.context]
        entries, lengths = [], []
        last_read: tuple[list[int], State] | None = None
        for question in example.questions:
            sequences = self.tokenise(meter.backbone, "", question.text, question)
            limit = INPUT_TOKENS - 1 - self.length(question, sequences)
            context = last(chosen, limit)
            if last_read is None or last_read[0] != context:
                ahead = Lengths(len(context), self.length(question, sequences))
                check_fits(meter, ahead.context + ahead.question, "choose a smaller k")
                last_read = context, contextualize(meter, context, ahead)
            (answer,) = self.answer(meter, last_read[1], [question], [sequences])
            entries.append({"id": question.id, **question.details, **answer})
            lengths.append((len(context), len(last(own, limit))))
        return {
            "id": example.id,
            "work": example.work,
            "context_tokens": max(read for read, _ in lengths),
            "own_context_tokens": max(owned for _, owned in lengths),
            "questions": entries,
        }

    def whole(self, example: Reading, question: Question) -> str:
        """Not available, since these texts are cut by tokens.

        Raises:
            UserError: always.
        """
        raise UserError("MetaICL's own texts are cut by tokens, for which a backbone is needed: leave upstream= out.")

    def tokenise(self, backbone: Backbone, before: str, text: str, question: Question) -> list[list[int]]:
        """The item, cut so that its longest option fits, then every option with the end of the text."""
        end = backbone.tokenizer.eos_token_id
        options = [backbone.encode(choice) for choice in self.choices(question)]
        opening = "" if self.options.context == "none" else " "
        item = backbone.encode(opening + text)[: max(ITEM_TOKENS - FREE_TOKENS - max(map(len, options)), 1)]
        return [item, *(option + ([] if end is None else [end]) for option in options)]


def demonstrations(backbone: Backbone, shown: Sequence[Question]) -> list[int]:
    """The tokens of demonstrations; inputs are cut so that input and output have at most 254 tokens."""
    tokens: list[int] = []
    for number, demonstration in enumerate(shown):
        output = backbone.encode(f" {demonstration.answers[0]}")
        text = backbone.encode(" " * (number > 0) + demonstration.text)
        tokens += text[: max(ITEM_TOKENS - FREE_TOKENS - len(output), 0)] + output
    return tokens
