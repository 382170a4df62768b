from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import three

from contextlab.errors import UserError
from contextlab.reports.layout import Layout
from contextlab.reports.names import Names
from contextlab.reports.tables import comparison

FILE = """
method.longmem = "LongMem"
method."longmem(K=32)" = "LongMem, small"
method.full = "Full attention"
task.pg22 = "PG-22"
metric.nats_per_token = "NLL"
"""


@pytest.fixture
def names(tmp_path: Path) -> Names:
    path = tmp_path / "names.toml"
    path.write_text(FILE)
    return Names.read(path)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("longmem", "LongMem"),
        ("longmem(K=64) (untrained)", "LongMem(K=64) (untrained)"),
        ("longmem(K=32)", "LongMem, small"),
        ("longmem(K=32) (untrained)", "LongMem, small (untrained)"),
        ("longmemory", "longmemory"),
        ("longmem-difference", "longmem-difference"),
        ("window", "window"),
    ],
)
def test_the_longest_name_with_which_a_label_begins_is_replaced(names: Names, label: str, shown: str) -> None:
    assert names.of("method", label) == shown


def test_metrics_have_short_titles_without_names(names: Names) -> None:
    assert [Names().metric(one) for one in ("nats_per_token", "macro_f1")] == ["nats/token", "macro f1"]
    assert names.metric("nats_per_token") == "NLL"
    assert names.of("task", "pg22/S2") == "PG-22/S2"


def test_a_table_shows_the_names(names: Names) -> None:
    made = comparison(three(max_context=8), Layout(names=names, baseline="full"))
    assert made.rows == (("window",), ("sliding",), ("Full attention",))
    assert made.columns[0].title == "NLL"
    assert made.caption.startswith("PG-22/S2: real")
    assert any(note.startswith("Full attention starts anew") for note in made.notes)
    assert any("Full attention" in column.name for column in made.columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('metod.x = "y"', "did you mean 'method'"),
        ("method.x = 3", 'write lines as method.label = "Name"'),
        ("method = 3", 'write lines as method.label = "Name"'),
        ("method.x = ", "is not TOML"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "names.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        Names.read(path)
    with pytest.raises(UserError, match="cannot be read"):
        Names.read(tmp_path / "absent.toml")
