"""Which stored runs a table, picture or page does not show, and why: its caption says so."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Stored runs that are not shown.

    Attributes:
        stored: all runs below the folders, those that are shown and those that are not.
        reasons: how many runs every filter left out, with the words that say so.
    """

    stored: int
    reasons: tuple[tuple[int, str], ...] = ()

    def also(self, runs: int, reason: str) -> LeftOut:
        """These and further runs, for a reason as `by method!=closed-book`; the same where there are none.

        Args:
            runs: how many more runs the reason leaves out of those that were left.
            reason: words that can follow a number of runs.
        """
        return dataclasses.replace(self, reasons=(*self.reasons, (runs, reason))) if runs else self

    @property
    def sentence(self) -> str:
        """For a caption, without its full stop; empty where every stored run is shown."""
        if not self.reasons:
            return ""
        (first, reason), *rest = self.reasons
        noun = "run" if self.stored == 1 else "runs"
        return ", ".join([f"Left out: {first} of {self.stored} {noun} {reason}", *(f"{n} {why}" for n, why in rest)])
