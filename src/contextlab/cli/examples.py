"""Commands for a first look, which run on this machine as they are shown."""

from __future__ import annotations

from collections.abc import Iterator

from contextlab.errors import UserError

ANYWHERE = "needle/1k"
"""A task that needs no data."""
EXAMPLES = (
    ("which methods find facts in a long text:", "window,sliding,retrieval", "needle/1k", "--limit 2"),
    ("how well they predict whole texts:", "window,sliding,retrieval,longmem", "pg22/S1(tokens=2048)", "--limit 2"),
    (
        "whether a method uses this context, or any would do:",
        "sliding,closed-book",
        "squad/512",
        "--limit 2 --context own,wrong",
    ),
)
"""What a command shows, its methods, task and further options."""


def print_examples() -> None:
    """Print three commands that would run here, each with what it shows."""
    from contextlab import static
    from contextlab.paths import has_backbone

    default = static.constant("contextlab.backbone.embedded:EMBEDDED")
    print("bench needs --method and --task. Three commands that run here:")
    for about, command in examples(has_backbone(default)):
        print(f"\n{about}\n    {command}")
    if not has_backbone(default):
        print(f"\n`--backbone tiny-llama` is a random model: without it {default} is downloaded first (100 MB).")
    print("\nEvery option: contextlab bench --help. Names: contextlab ls methods, contextlab ls tasks.")


def examples(has_default: bool) -> Iterator[tuple[str, str]]:
    """What each command shows, and the command.

    Args:
        has_default: whether the default backbone is here already.
    """
    backbone = "" if has_default else " --backbone tiny-llama"
    for about, methods, task, more in EXAMPLES:
        named = task if _loads(task) else ANYWHERE
        yield about, f"contextlab bench --method {methods} --task '{named}' {more}{backbone}"


def _loads(task: str) -> bool:
    """Whether the data of a task is here: a folder that CONTEXTLAB_DATA names may lack it."""
    from contextlab import grammar, registry

    item = grammar.single(task, "task")
    try:
        registry.task(item.name, item.settings).load(str(item.split), None)
    except UserError:
        return False
    return True
