"""The README of trained weights, in the form of model cards on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

README = "README.md"


def readme(card: Mapping[str, Any]) -> str:
    """The text of a folder of weights that `huggingface_hub` can upload as it is.

    Args:
        card: of the weights.
    """
    corpus, gains, cost = card["corpus"], card["gains"], card["cost"]
    tags = ["contextlab", card["method"].partition(":")[0]]
    head = {"library_name": "contextlab", "base_model": card["backbone"]["name"], "tags": tags}
    lines = [f"{name}: {json.dumps(value)}" for name, value in head.items()]
    licences = ", ".join(corpus["licences"]) or "not named by the corpus"
    documents = "1 document" if corpus["documents"] == 1 else f"{corpus['documents']} documents"
    error = gains["content_error"]
    spread = "" if error is None else f" (standard error {error:.4f} over {gains['documents']} documents)"
    return "\n".join(
        [
            "---",
            *lines,
            "---",
            "",
            f"# {card['label']}",
            "",
            f"Weights of the method `{card['method']}` of contextlab for `{card['backbone']['name']}`, which stays as "
            "it is. `card.json` says how they were made, with digests.",
            "",
            f"* Trained on {cost['tokens']:,} tokens of {corpus['name']} ({documents}; licences: {licences}).",
            f"* Loss on held-back texts: {gains['loss']:.4f} nats per token; after another document's history "
            f"{gains['wrong']:.4f}: content gain {gains['content_gain']:+.4f}{spread}.",
            "",
            "Use: `contextlab bench --method FOLDER --backbone "
            f"{card['backbone']['name']} --task TASK`, where FOLDER holds these files.",
            "",
        ]
    )
