"""`contextlab verify` finds whatever is planted, and nothing where nothing is; no command believes a damaged file.

`CONTEXTLAB_DAMAGES=300` damages that many files.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import workshop
from damage import cut, flip, mutated, repeat, value
from workshop import METHOD, bench, command, train

from contextlab import seals, tensors, verify
from contextlab.errors import UserError

DAMAGES = int(os.environ.get("CONTEXTLAB_DAMAGES", "14"))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workshop.built(tmp_path_factory.mktemp("workshop") / "root")


def test_nothing_is_damaged_where_nothing_was(intact: Path) -> None:
    with workshop.at(intact):
        for paths in ([intact], []):
            code, out, errors = command("verify", *paths)
            assert (code, errors) == (0, ""), out
            assert out.endswith("nothing damaged.\n")
        checked = json.loads(command("verify", intact, "--json")[1])
    assert checked["damaged"] == []
    assert checked["checked"] == {
        "corpus": 1,
        "backbone": 1,
        "teacher": 1,
        "tokenizer": 1,
        "data set": 2,
        "run": 2,
        "tensors": 2,
        "training": 1,
        "checkpoint": 1,
        "weights": 2,
    }


def test_runs_that_are_not_finished_are_counted(tmp_path: Path) -> None:
    stored = Path(__file__).parents[1] / "results/four-methods-pg22"
    for run in sorted(stored.iterdir())[:3]:
        shutil.copytree(run, tmp_path / run.name)
    for run in sorted(tmp_path.iterdir())[:2]:
        (run / "summary.json").unlink()
    assert command("verify", tmp_path) == (0, "Checked: run 3; nothing damaged, 2 unfinished.\n", "")
    assert json.loads(command("verify", tmp_path, "--json")[1]) == {"checked": {"run": 3}, "damaged": []}


def test_the_package_itself_is_whole() -> None:
    for checked in verify.below([verify.trained.SHIPPED]):
        assert checked.wrong is None, checked


def test_weights_are_checked_by_their_name() -> None:
    (checked,) = verify.below([Path("sliding-r8")])
    assert (checked.kind, checked.path.name, checked.wrong) == ("weights", "sliding-r8", None)


def test_folders_behind_symbolic_links_are_checked_once(intact: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "linked").symlink_to(intact)
    (tmp_path / "store" / "circle").symlink_to(tmp_path / "store")
    assert len(list(verify.below([tmp_path / "store"]))) == len(list(verify.below([intact])))


def test_a_path_that_says_nothing_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path):
        code, out, errors = command("verify", path)
        assert (code, out, errors.count("\n")) == (2, "", 1)
    with pytest.raises(UserError, match="holds nothing that can be verified"):
        list(verify.below([tmp_path]))


def test_a_single_file_can_be_named(intact: Path) -> None:
    card = intact / "weights" / "card.json"
    for path in (intact / "state.safetensors", card):
        assert command("verify", path)[0] == 0


def test_a_whole_result_of_another_run_is_seen(intact: Path, tmp_path: Path) -> None:
    """Its seal is intact, as that of a copy, which names no run."""
    shutil.copytree(intact / "runs", tmp_path / "runs")
    run, other = sorted((tmp_path / "runs").iterdir())
    seals.write(run / "summary.json", seals.opened((other / "summary.json").read_text(), salt=other.name))
    (sentence,) = [checked.wrong for checked in verify.below([tmp_path / "runs"]) if checked.wrong]
    assert f"{run / 'summary.json'} is that of another run" in sentence


def gains(root: Path, *more: str) -> Callable[[Path], str]:
    """What a training has gained, or its error."""

    def trained(place: Path) -> str:
        code, out, errors = train(place, place / root, *more)
        return json.dumps(json.loads(out)["gains"]["loss"]) if code == 0 else errors

    return trained


def table(root: Path) -> str:
    code, out, errors = command("table", root / "runs", "--format", "csv")
    return out if code == 0 else errors


def loaded(root: Path) -> str:
    method = workshop.method()
    try:
        held = method.load_state(root / "state.safetensors")
    except UserError as error:
        return f"contextlab: {error}\n"
    return str(method.score(held, [[1, 2, 3]]).tolist())


def checked_data(root: Path) -> str:
    code, out, errors = command("data", "check", "pg22", "--data", root / "data")
    return out if code == 0 else f"contextlab: {errors or out.splitlines()[1]}\n"


CONSUMERS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "weights": ("weights/*", lambda root: bench(root, root / "new", METHOD[:-1] + f",weights={root / 'weights'})")),
    "training": ("training/*.json*", gains(Path("training"), "--tokens", "300")),
    "checkpoint": ("training/checkpoint-*/*", gains(Path("training"), "--tokens", "300")),
    "run": ("runs/*/*", table),
    "corpus": ("cache/corpora-2/*/*", gains(Path("fresh"))),
    "teacher": ("cache/teachers/*/*", gains(Path("fresh"))),
    "backbone": ("cache/backbones/*/*", lambda root: bench(root, root / "new", "window", "smollm2-135m")),
    "state": ("state.safetensors", loaded),
    "data set": ("data/pg22/**/*", checked_data),
}
"""Where the files of a kind are, and what a command makes of them: its numbers, or its error."""


def damage(path: Path, others: list[Path], draw: random.Random) -> str:
    """Change a file, at least one byte of it; returns how."""
    whole = path.read_bytes()
    swaps = [other for other in others if other.suffix == path.suffix and other.read_bytes() != whole]
    while path.read_bytes() == whole:
        how = draw.choice(("bit", "bit", "cut", "flip", "value", "lines", "tensors", "swap"))
        if how == "bit":
            changed = bytearray(whole)
            changed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            path.write_bytes(changed)
        elif how == "tensors" and path.suffix == ".safetensors":
            try:
                held, about = tensors.read(path)
            except UserError:
                continue
            how = f"tensors: {mutated(held, about, path, draw)}"
        elif how == "swap" and swaps:
            path.write_bytes(draw.choice(swaps).read_bytes())
        elif how in ("cut", "flip", "value", "lines"):
            change = {"cut": cut, "flip": flip, "value": value, "lines": repeat}[how]
            path.write_bytes(change(whole, draw))
    return how


def test_no_damage_is_believed_or_overlooked(intact: Path, tmp_path: Path) -> None:
    expected: dict[str, str] = {}
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(DAMAGES):
        kind = list(CONSUMERS)[number % len(CONSUMERS)]
        pattern, consume = CONSUMERS[kind]
        draw, root = random.Random(f"{kind} {number}"), tmp_path / "root"
        with workshop.at(root):
            if kind not in expected:
                shutil.copytree(intact, root)
                expected[kind] = consume(root)
                assert not expected[kind].startswith("contextlab"), expected[kind]
                shutil.rmtree(root)
            shutil.copytree(intact, root)
            known = sorted(path for path in root.glob(pattern) if path.is_file())
            path = draw.choice(known)
            about = f"{number}: {path.relative_to(root)}, {damage(path, known, draw)}"
            code, out, _ = command("verify", root)
            assert code == 2, about
            assert out.count("\n") >= 2, about
            assert str(path) in out or (path.parent != root and str(path.parent) in out), (about, out)
            store = consume(root)
            outcomes["refused" if store.startswith("contextlab") else "made again"] += 1
            assert store == expected[kind] or (store.startswith("contextlab: ") and store.count("\n") == 1), (
                about,
                store,
            )
        shutil.rmtree(root)
    assert outcomes["refused"]
    print(f"{DAMAGES} damaged files: {dict(outcomes)}, none believed, none overlooked")
