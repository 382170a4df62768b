"""Compare methods that let a language model use more context than it was built for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contextlab.version import __version__

if TYPE_CHECKING:
    from contextlab.harness.compare import compare as compare
    from contextlab.harness.runner import bench as bench
    from contextlab.naming import load as load
    from contextlab.reports.frame import results as results
    from contextlab.training.run import train as train

__all__ = ["__version__", "bench", "compare", "load", "results", "train"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # All bring torch with them, and importing the package must stay cheap.
    if name == "bench":
        from contextlab.harness.runner import bench

        return bench
    if name == "compare":
        from contextlab.harness.compare import compare

        return compare
    if name == "load":
        from contextlab.naming import load

        return load
    if name == "results":
        from contextlab.reports.frame import results

        return results
    if name == "train":
        from contextlab.training.run import train

        return train
    raise AttributeError(f"module 'contextlab' has no attribute '{name}'")
