"""Many-shot instruction tuning (EVALM, section 3.2): examples of a task, each in words, one after the other.

A file whose name ends in `.instructions.jsonl` has an example on every line, as in FLAN: `inputs`, `targets`, and the
name of its task. All examples of a task are one document, in an order that their digests give. Training cuts documents
into texts of `sequence` tokens: 8,192 are the paper's MSIT, twice as many its MSIT+. Tasks are not mixed inside a text,
of which the paper says nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from contextlab.benchmarks.data.sources import parse_json
from contextlab.errors import UserError

ENDING = ".instructions.jsonl"
POOL = "templates.json"
"""An optional file beside them: for tasks by name, and for all others under `*`, the templates of an example."""
PLAIN = "{inputs}\n{targets}"
"""FLAN's own files hold inputs that are instructions already."""
BETWEEN = "\n\n"

Pool = Mapping[str, Sequence[str]]


def texts(path: Path, lines: Iterable[str], pool: Pool) -> Iterator[tuple[str, str]]:
    """Every task of a file with the text of its examples, in the order of their first lines.

    Args:
        path: of the file, for errors.
        lines: of the file.
        pool: of templates; each example takes the one that its digest says.

    Raises:
        UserError: when a line is no example.
    """
    examples: dict[str, list[tuple[str, str]]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            task, inputs, targets = _example(path, number, line)
            digest = hashlib.sha256(f"{inputs}\0{targets}".encode()).hexdigest()
            templates = pool.get(task) or pool.get("*") or (PLAIN,)
            template = templates[int(digest[:8], 16) % len(templates)]
            filled = template.replace("{targets}", "\0").replace("{inputs}", inputs).replace("\0", targets)
            examples.setdefault(task, []).append((digest, filled))
    for task, of_task in examples.items():
        yield task, BETWEEN.join(text for _, text in sorted(of_task))


def read_pool(path: Path) -> Pool:
    """The templates of a file; none where there is no such file.

    Raises:
        UserError: when it holds something else than lists of templates by task.
    """
    if not path.is_file():
        return {}
    try:
        pool = json.loads(path.read_text("utf-8"))
        whole = all(_is_template(template) for templates in pool.values() for template in templates)
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        whole = False
    if not whole:
        raise UserError(
            f'{path} holds no templates: write {{"TASK": ["... {{inputs}} ... {{targets}} ...", ...], "*": [...]}}.'
        )
    templates: Pool = pool
    return templates


def _is_template(template: object) -> bool:
    return isinstance(template, str) and template.count("{inputs}") == template.count("{targets}") == 1


def _example(path: Path, number: int, line: str) -> tuple[str, str, str]:
    """Task, inputs and targets of a line."""
    value = parse_json(line, path, number)
    try:
        parts = value.get("task", value.get("task_name", "")), value["inputs"], value["targets"]
        # Not every string of JSON is one of characters.
        whole = all(isinstance(part, str) and part.encode() is not None for part in parts)
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise UserError(
            f'Line {number} of {path} is no example: write {{"task": "...", "inputs": "...", "targets": "..."}} on '
            "every line."
        )
    task, inputs, targets = parts
    return task, inputs, targets
