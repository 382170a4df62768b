"""Names for display: those that a user chooses in a TOML file, and short titles of metrics."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path

from contextlab.errors import UserError, unknown

KINDS = ("method", "task", "metric", "cost", "context", "backbone", "device", "dtype", "seed")
BOUNDARIES = frozenset("(/ =,")
"""What may follow a part of a label that is replaced."""


@dataclasses.dataclass(frozen=True)
class Names:
    """Display names by kind and label.

    Attributes:
        tables: for `method`, `task`, `metric` and so on, the display name of every label.
    """

    tables: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Names:
        """The names in a TOML file, as `method.longmem = "LongMem"`.

        Raises:
            UserError: when the file cannot be read, or holds something else.
        """
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): name a TOML file with --names.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f'{path} is not TOML ({error}): write lines as method.longmem = "LongMem".') from None
        for kind, table in content.items():
            if kind not in KINDS:
                raise unknown(f"kind of name in {path}", kind, KINDS)
            if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
                raise UserError(f'{path} names no text for {kind}: write lines as {kind}.label = "Name".')
        return cls(content)

    def of(self, kind: str, label: str) -> str:
        """The display name of a label.

        The longest label with which it begins is replaced, and the rest (settings, marks) stays: with a name for
        `longmem`, `longmem(K=32)` is `LongMem(K=32)`.
        """
        table = self.tables.get(kind, {})
        for start in sorted(table, key=len, reverse=True):
            if label == start or (label.startswith(start) and label[len(start)] in BOUNDARIES):
                return table[start] + label[len(start) :]
        return label

    def metric(self, name: str) -> str:
        """The short title of a metric."""
        chosen = self.of("metric", name)
        return chosen if chosen != name else name.replace("_per_", "/").replace("_", " ")


PLAIN = Names()
"""No display names: labels stand as they are."""
