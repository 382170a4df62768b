"""Imports between packages: no circles, none upwards; and no module is too large."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench_modules import bench_module

from contextlab import cards, seals, trained

ROOT = Path(__file__).parents[1]
LARGEST = 350
"""Code lines of a module."""


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return bench_module("house")


@pytest.fixture(scope="module")
def drawn(house: ModuleType) -> dict[str, Any]:
    numbers: dict[str, Any] = house.drawn()
    return numbers


def test_no_module_imports_itself_by_way_of_others(drawn: dict[str, Any]) -> None:
    assert drawn["circles"] == []


def test_arrows_run_downwards(drawn: dict[str, Any]) -> None:
    assert drawn["upward"] == []


def test_every_room_has_a_floor(house: ModuleType) -> None:
    floors = {room for floor in house.FLOORS for room in floor}
    assert {house.room(name) for name in house.modules()} <= floors


def test_circles_and_upward_arrows_are_seen(house: ModuleType) -> None:
    graph = {"contextlab.method.a": {"contextlab.cli.b"}, "contextlab.cli.b": {"contextlab.method.a"}}
    assert house.circles(graph) == [["contextlab.cli.b", "contextlab.method.a"]]
    assert house.upward(graph) == ["contextlab.method.a -> contextlab.cli.b"]


def test_an_import_within_a_function_or_for_types_counts(house: ModuleType, tmp_path: Path) -> None:
    typed = "if TYPE_CHECKING:\n    from contextlab.a import X\n"
    source = typed + "def f():\n    import contextlab.b\n    from contextlab import c\n"
    (tmp_path / "m.py").write_text(source)
    known = dict.fromkeys(("contextlab", "contextlab.a", "contextlab.b", "contextlab.c"), tmp_path)
    names = house.imports("contextlab.m", tmp_path / "m.py", known)
    assert names == {"contextlab.a", "contextlab.b", "contextlab.c"}


def test_code_lines_leave_out_comments_and_docstrings(house: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        '"""Two\nlines."""\n\n# why\nx = [\n    1,\n]\n\n\ndef f():\n    """What."""\n    return x\n'
    )
    assert house.code_lines(tmp_path / "m.py") == 5


def test_a_public_class_has_a_name_of_its_own(drawn: dict[str, Any]) -> None:
    assert drawn["repeated_classes"] == {}


def test_names_with_several_owners_are_seen(house: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class Cost: ...\nclass _Own: ...\nclass Alone: ...\n")
    (tmp_path / "b.py").write_text("class Cost: ...\nclass _Own: ...\n\ndef f(one): return [one for one in one]\n")
    known = {name: tmp_path / f"{name}.py" for name in "ab"}
    assert house.repeated_classes(known) == {"Cost": ["a", "b"]}
    assert house.variables("one", known) == 4
    assert house.single_importers({"a": {"b"}, "b": set(), "c": {"d"}, "e": {"d"}}) == {"b": "a"}


def test_a_name_says_what_a_value_holds(house: ModuleType) -> None:
    """Not how it came to be there."""
    files = [path for folder in ("src", "tests", "benches") for path in (ROOT / folder).rglob("*.py")]
    vague = {"one", "found", "asked", "made", "gone", "begun", "meant", "said"}
    wrong = {str(path): vague.intersection(house.identifiers(path)) for path in files}
    assert {path: words for path, words in wrong.items() if words} == {}


def test_no_module_is_larger_than_the_limit(drawn: dict[str, Any]) -> None:
    assert {name: size for name, size in drawn["largest_modules"].items() if size > LARGEST} == {}


def test_tests_are_as_long_as_what_they_test(drawn: dict[str, Any]) -> None:
    assert drawn["tests_per_source"] >= 1


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Pytest imports them by their names alone, and refuses the second one of a name."""
    names = [path.name for path in sorted((ROOT / "tests").rglob("*.py")) if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


WRITERS = re.compile(
    r"""open\([^()]*["'][rb]*[wax+][bt+]*["']|\.write_text\(|\.write_bytes\(|\bsave_file\(|\bsavefig\((?!fresh\b)"""
    r"""|np\.save|torch\.save\(|json\.dump\(|mkstemp|NamedTemporaryFile|copyfile\("""
)
"""What writes a file, except into a place that `files.replacing` gave."""


def test_only_one_module_writes_files() -> None:
    """All others use `files`, whose files are whole; what `fcntl` did, `locks` does everywhere."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text("utf-8")
        assert path.name == "files.py" or not WRITERS.search(text), f"{path}: write it with contextlab.files"
        assert "fcntl" not in text, f"{path}: lock it with contextlab.locks"


@pytest.mark.parametrize(
    "line",
    ["open(path, 'w')", 'p.open("ab")', 'open(a, mode="x+b")', "p.write_text(x)", "save_file(a, b)", "f.savefig(path)"],
)
def test_a_writer_is_seen(line: str) -> None:
    assert WRITERS.search(line)
    assert not WRITERS.search("open(path, 'rb'), p.open(), packed.open(entry), f.savefig(fresh, format='pdf')")


def test_shipped_cards_are_sealed() -> None:
    """A card that is edited is sealed again by `seals.write(path, json.loads(path.read_text()))`."""
    shipped = [*trained.SHIPPED.glob(f"*/{cards.CARD}")]
    assert shipped
    assert {cards.read(path).schema_ for path in shipped} == {seals.SEALED}
