"""Names that a shell completes, found without importing torch, because a shell waits for them."""

from __future__ import annotations

from collections.abc import Iterable


def method_names(incomplete: str) -> list[str]:
    """Methods and trained weights that complete the last item of a list."""
    from contextlab import registry, trained

    return _completed(incomplete, [*registry.methods(), *trained.names()])


def task_names(incomplete: str) -> list[str]:
    """Tasks that complete the last item of a list."""
    from contextlab import registry

    return _completed(incomplete, registry.tasks())


def backbone_names(incomplete: str) -> list[str]:
    """Backbones with a name of their own; after a `+` trained weights, which may be added to one."""
    from contextlab import static, trained

    if "+" in incomplete:
        return _completed(incomplete, trained.names(), "+")
    small = (name for part in ("TINY", "PAPER_SHAPES") for name in static.constant(f"contextlab.backbone.toys:{part}"))
    return _completed(incomplete, [static.constant("contextlab.backbone.embedded:EMBEDDED"), *small])


def _completed(incomplete: str, names: Iterable[str], separator: str = ",") -> list[str]:
    """The list with its last item completed in every way; none within the brackets of settings."""
    before, between, item = incomplete.rpartition(separator)
    if incomplete.count("(") > incomplete.count(")"):
        return []
    return [f"{before}{between}{name}" for name in dict.fromkeys(names) if name.startswith(item)]
