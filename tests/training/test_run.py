"""Whole runs: from names to weights and a card, killed at any moment and resumed with the same losses."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from toy_corpus import folder, text

import contextlab
from contextlab import cards, naming, registry, seals, tensors, trained, verify
from contextlab.errors import UserError
from contextlab.files import sha256
from contextlab.training import checkpoint, options, records
from contextlab.training.loop import Trainer
from contextlab.training.options import TrainConfig
from contextlab.training.run import CURVE, RUN, _Run, _signals
from contextlab.training.validation import Validator

METHOD = "longmem(N=32,K=8)"
SETTINGS: dict[str, Any] = {
    "backbone": "tiny-llama",
    "device": "cpu",
    "tokens": 900,
    "segment": 32,
    "lr": 3e-3,
    "checkpoint_every": 0,
    "evaluate_every": 300,
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return folder(tmp_path / "texts")


def run(texts: Path, out: Path, /, **changed: Any) -> dict[str, Any]:
    options = {name: value for name, value in {**SETTINGS, **changed}.items() if value is not None}
    return contextlab.train(options.pop("method", METHOD), texts, out=out, **options)


def losses(out: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (out / "curve.jsonl").read_text().splitlines())
    return [(line["tokens"], line["loss"]) for line in lines if "loss" in line]


def validations(out: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (out / "curve.jsonl").read_text().splitlines())
    return [(line["tokens"], line["validation"]["loss"]) for line in lines if "validation" in line]


def test_a_run_leaves_weights_a_card_and_a_curve(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    seen: list[dict[str, Any]] = []
    card = run(texts, out, on_line=seen.append)
    assert card == seals.opened((out / "card.json").read_text())
    assert (card["method"], card["kind"], card["label"]) == ("longmem", "LongMem", "longmem(N=32,K=8)")
    assert card["cost"]["tokens"] >= 900 > card["cost"]["tokens"] - 64
    assert card["cost"]["flops"] > 0
    assert card["training"]["lr"] == 3e-3
    assert card["training"]["betas"] == [0.9, 0.98]
    assert card["corpus"]["documents"] == 9
    assert len(card["corpus"]["held_back"]) == 2
    assert seen == records.curve(out / "curve.jsonl")
    counts = [tokens for tokens, _ in validations(out)]
    assert counts[0] == 0
    assert counts[-1] == card["cost"]["tokens"]
    assert len(counts) >= 4
    assert [point["tokens"] for point in card["curve"]] == counts
    assert card["gains"]["loss"] == validations(out)[-1][1]
    assert losses(out)[-1][1] < losses(out)[0][1]


def test_what_was_trained_is_loaded_with_its_card(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    card = run(texts, out)
    for place in (out, out / "weights.safetensors"):
        method = naming.load(METHOD, backbone="tiny-llama", device="cpu", weights=place)
        assert not method.untrained
        assert method.card.cost.tokens == card["cost"]["tokens"]
    assert (out / "weights.safetensors").stat().st_size < checkpoint.stored(out)[0].joinpath(
        "learned.safetensors"
    ).stat().st_size


def test_weights_in_8_bits_are_smaller_and_those_that_the_card_measures(texts: Path, tmp_path: Path) -> None:
    sizes = []
    for storage in ("float16", "int8"):
        out = tmp_path / storage
        card = run(texts, out, storage=storage)
        method = naming.load(METHOD, backbone="tiny-llama", device="cpu", weights=out)
        assert card["weights"]["dtype"] == storage
        assert method.weights_digest == card["weights"]["digest"]
        assert card["gains"]["loss"] == validations(out)[-1][1]
        assert all(finding.wrong is None for finding in verify.below([out]))
        sizes.append(card["weights"]["bytes"])
    assert sizes[1] < 0.7 * sizes[0]
    assert validations(tmp_path / "int8")[-1][1] == pytest.approx(validations(tmp_path / "float16")[-1][1], abs=0.01)


def test_a_damaged_scale_is_noticed(texts: Path, tmp_path: Path) -> None:
    run(texts, tmp_path, storage="int8")
    path = tmp_path / cards.FILE
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    begin, end = next(about["data_offsets"] for name, about in header.items() if name.endswith(tensors.SCALE))
    path.write_bytes(whole[: start + begin] + bytes(end - begin) + whole[start + end :])
    assert [finding.kind for finding in verify.below([tmp_path]) if finding.wrong] == ["weights"]
    (tmp_path / cards.CARD).unlink()
    assert ["is damaged" in (finding.wrong or "") for finding in verify.below([path])] == [True]


def test_weights_appear_with_their_card(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that began with weights of which no card tells the cost would count its own alone."""
    out = tmp_path / "out"
    before: list[bool] = []
    validate = Validator.__call__

    def watched(validator: Validator, *args: Any) -> Any:
        before.append((out / "weights.safetensors").exists())
        return validate(validator, *args)

    monkeypatch.setattr(Validator, "__call__", watched)
    run(texts, out)
    assert before
    assert not any(before)
    assert sorted(path.name for path in out.glob("*weights*")) == ["weights.safetensors"]


def test_the_same_command_again_trains_nothing(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = run(texts, tmp_path / "out")
    monkeypatch.setattr(Trainer, "step", lambda _: pytest.fail("trained again"))
    assert run(texts, tmp_path / "out") == card


def test_weights_that_changed_are_written_again_from_the_checkpoint(texts: Path, tmp_path: Path) -> None:
    card = run(texts, tmp_path)
    path = tmp_path / cards.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="is not the file that card"):
        cards.beside(path)
    again = run(texts, tmp_path)
    assert path.read_bytes() == whole
    assert again["weights"] == card["weights"]
    path.unlink()
    run(texts, tmp_path)
    assert path.read_bytes() == whole
    curve, lines = tmp_path / CURVE, records.curve(tmp_path / CURVE)
    for left in (curve.read_bytes()[:-40], b"".join(curve.read_bytes().splitlines(keepends=True)[:-1])):
        curve.write_bytes(left)
        assert [finding.wrong is None for finding in verify.below([tmp_path]) if finding.kind == "training"] == [False]
        run(texts, tmp_path)
        kept = records.curve(curve)
        assert [line["tokens"] for line in kept] == [line["tokens"] for line in lines]
        assert all(finding.wrong is None for finding in verify.below([tmp_path]))


@pytest.mark.parametrize("training", [0, None, [], "x"])
def test_a_run_that_says_nothing_of_its_training_is_one_sentence(training: Any, texts: Path, tmp_path: Path) -> None:
    run(texts, tmp_path, tokens=100)
    about = seals.opened((tmp_path / RUN).read_text())
    seals.write(tmp_path / RUN, {**about, "training": training})
    with pytest.raises(UserError, match=r"run\.json says nothing of the training: delete it"):
        run(texts, tmp_path, tokens=200)


@pytest.mark.parametrize("after", [1, 7])
def test_an_interrupted_run_goes_on_with_the_same_losses(
    after: int, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(texts, tmp_path / "whole")
    step, count = Trainer.step, 0

    def interrupted(self: Trainer) -> Any:
        nonlocal count
        count += 1
        if count == after + 1:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(texts, tmp_path / "cut", checkpoint_every=1e6)
    assert len(losses(tmp_path / "cut")) == after + 1
    assert not (tmp_path / "cut" / "card.json").exists()
    card = run(texts, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert validations(tmp_path / "cut") == validations(tmp_path / "whole")
    assert card["weights"]["digest"] == whole["weights"]["digest"]


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_run_that_is_stopped_in_a_validation_goes_on_with_it(
    number: int, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step, between two steps, and after the last one."""
    whole = run(texts, tmp_path / "whole")
    assert len(validations(tmp_path / "whole")) == 4
    validate, count = Validator.__call__, 0

    def interrupted(self: Validator, stops: Callable[[], bool]) -> Any:
        nonlocal count
        count += 1
        if count == number:
            signal.raise_signal(signal.SIGINT)
        return validate(self, stops)

    with monkeypatch.context() as patch:
        patch.setattr(Validator, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(texts, tmp_path / "cut", checkpoint_every=1e6)
    assert len(validations(tmp_path / "cut")) == number - 1
    card = run(texts, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert validations(tmp_path / "cut") == validations(tmp_path / "whole")
    assert card["weights"]["digest"] == whole["weights"]["digest"]


def test_a_run_that_fails_between_two_checkpoints_loses_what_came_after_the_first(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(texts, tmp_path / "whole")
    step, count = Trainer.step, 0

    def failing(self: Trainer) -> Any:
        nonlocal count
        count += 1
        if count == 6:
            raise UserError("The loss is not finite.")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", failing)
        with pytest.raises(UserError, match="not finite"):
            run(texts, tmp_path / "cut")
    assert len(checkpoint.stored(tmp_path / "cut")) == 1
    run(texts, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_killed_run_goes_on_with_the_same_losses(texts: Path, tmp_path: Path) -> None:
    run(texts, tmp_path / "whole", tokens=4000)
    out = tmp_path / "cut"
    options = [
        f"--{name}={value}" for name, value in {**SETTINGS, "tokens": 4000}.items() if not name.endswith("every")
    ]
    options += ["--set", "checkpoint_every=0", "--set", "evaluate_every=300", "--corpus", str(texts), "--out", str(out)]
    code = "import sys, torch; torch.set_num_threads(1); from contextlab.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "train", METHOD, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            if (out / "curve.jsonl").exists() and len(losses_of_whole_lines(out)) >= 5:
                break
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL, process.communicate()
    assert not (out / "card.json").exists()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr) == (0, "")
    assert losses(out) == losses(tmp_path / "whole")
    assert validations(out) == validations(tmp_path / "whole")
    stored = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("whole", "cut")]
    assert stored[0]["weights"]["digest"] == stored[1]["weights"]["digest"]


def losses_of_whole_lines(out: Path) -> list[str]:
    return [line for line in (out / "curve.jsonl").read_text().split("\n")[:-1] if '"loss"' in line]


def test_a_longer_run_goes_on_where_the_rate_is_constant(texts: Path, tmp_path: Path) -> None:
    course = {"schedule": "constant", "warmup": 0.0, "evaluate_every": 10**6}
    run(texts, tmp_path / "whole", tokens=900, **course)
    run(texts, tmp_path / "cut", tokens=400, **course)
    card = run(texts, tmp_path / "cut", tokens=900, **course)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert card["cost"]["tokens"] >= 900


def test_a_longer_run_knows_the_weights_with_which_the_shorter_one_ended(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = iter((1.4, 1.2, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5))
    validate = Validator.__call__
    monkeypatch.setattr(
        Validator,
        "__call__",
        lambda *arguments: dataclasses.replace(validate(*arguments), loss=next(falling)),
    )
    course = {"schedule": "constant", "warmup": 0.0, "evaluate_every": 300}
    shorter = run(texts, tmp_path / "out", tokens=400, **course)
    assert shorter["best"] is None
    best = sha256(tmp_path / "out" / "best.safetensors")
    card = run(texts, tmp_path / "out", tokens=900, **course)
    assert card["best"]["loss"] == 1.0
    assert card["best"]["tokens"] == shorter["cost"]["tokens"]
    assert card["best"]["sha256"] == best == sha256(tmp_path / "out" / "best.safetensors")


def test_best_weights_are_those_of_the_checkpoint_that_a_killed_run_goes_on_from(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_in_turn = iter((1.4, 1.2, 1.3, 1.0, 1.1, 1.25))
    validate = Validator.__call__
    monkeypatch.setattr(
        Validator, "__call__", lambda *arguments: dataclasses.replace(validate(*arguments), loss=next(losses_in_turn))
    )
    course = {"schedule": "constant", "warmup": 0.0, "checkpoint_every": 10**6}
    out = tmp_path / "out"
    shorter = run(texts, out, tokens=400, evaluate_every=200, **course)
    assert shorter["best"]["loss"] == 1.2

    def killed(line: dict[str, Any]) -> None:
        if line.get("validation", {}).get("loss") == 1.1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(texts, out, tokens=1200, evaluate_every=200, on_line=killed, **course)
    card = run(texts, out, tokens=600, evaluate_every=10**6, **course)
    assert card["gains"]["loss"] == 1.25
    assert card["best"] == shorter["best"]
    assert sha256(out / "best.safetensors") == card["best"]["sha256"]


def test_only_the_first_process_gives_the_best_weights_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save", lambda *_: None)
    settled: list[bool] = []
    for first in (True, False):
        process = SimpleNamespace(
            out=tmp_path,
            about={},
            parts=[],
            validations=[],
            trainer=None,
            settings=SimpleNamespace(as_dict=dict),
            curve=SimpleNamespace(length=0, sha256=lambda: None),
            processes=SimpleNamespace(first=first),
            best=SimpleNamespace(record=None, settle=functools.partial(settled.append, first)),
        )
        _Run._save(cast(Any, process))
    assert settled == [True]


@pytest.mark.parametrize("change", ["missing", "other"])
def test_best_weights_that_are_lost_are_named_by_verify_and_by_no_card(
    change: str, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = {"lr": 0.3, "schedule": "constant", "tokens": 3000, "evaluate_every": 100, "patience": 2}
    assert run(texts, out, **options)["best"] is not None
    path = out / "best.safetensors"
    assert [checked.wrong for checked in verify.below([out]) if checked.wrong] == []
    path.unlink() if change == "missing" else shutil.copyfile(out / "weights.safetensors", path)
    (wrong,) = [checked.wrong for checked in verify.below([out]) if checked.wrong]
    assert wrong == f"{path} is not that of card.json: put the intact file back, or train again."
    assert run(texts, out, **options)["best"] is None
    assert [checked.wrong for checked in verify.below([out]) if checked.wrong] == []


def test_a_card_says_on_what_each_part_of_a_run_was_computed(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    course = {"schedule": "constant", "warmup": 0.0, "evaluate_every": 10**6}
    for tokens, device in ((300, "a GPU"), (600, "a GPU"), (900, "another GPU")):
        monkeypatch.setattr("contextlab.training.card.hardware", lambda _, name=device: name)
        about = run(texts, tmp_path / "out", tokens=tokens, **course)["provenance"]
    assert [part["device"] for part in about["parts"]] == ["a GPU", "another GPU"]
    assert about["parts"][0]["tokens"] == 0
    assert 600 <= about["parts"][1]["tokens"] < 700
    assert {part["products"] for part in about["parts"]} == {about["products"]} == {"float32"}


@pytest.mark.parametrize(
    ("course", "cause"),
    [
        ({}, "schedule=polynomial"),
        ({"schedule": "cosine"}, "schedule=cosine"),
        ({"schedule": "constant", "warmup": 0.1}, "warmup=0.1"),
    ],
)
def test_a_longer_run_is_refused_with_what_to_do_where_the_rate_depends_on_the_length(
    course: dict[str, Any], cause: str, texts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    card = run(texts, out, **course)
    with pytest.raises(UserError) as refused:
        run(texts, out, tokens=1800, **course)
    sentence = str(refused.value)
    assert f"depends on its length ({cause}): finish it with --tokens 900" in sentence
    assert f"weights={out};" in sentence
    assert run(texts, out, **course)["weights"] == card["weights"]
    later = run(texts, tmp_path / "more", method=f"longmem(N=32,K=8,weights={out})", **course)
    assert later["begun_with"]["sha256"] == card["weights"]["sha256"]


def test_a_run_of_shuffled_slots_goes_on_with_the_same_losses(texts: Path, tmp_path: Path) -> None:
    course = {
        "method": "generative-adapter(chunk=16,d_r=8,r=4)",
        "objective": "reconstruction(completion=1,targets=random,contrast=5,teacher=4)",
        "order": "shuffled",
        "validation": "reconstruction",
        "texts": 2,
        "schedule": "constant",
        "warmup": 0.0,
    }
    card = run(texts, tmp_path / "whole", tokens=640, **course)
    run(texts, tmp_path / "cut", tokens=320, **course)
    run(texts, tmp_path / "cut", tokens=640, **course)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert card["gains"]["content_gain"] != 0
    assert card["training"]["order"] == "shuffled"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "longmem(N=32,K=16)"}, "with another settings"),
        ({"method": "evalm(W=32,c=8)"}, "with another method"),
        ({"backbone": "tiny-gpt2"}, "with another backbone"),
        ({"lr": 1e-3}, "with lr=0.003"),
    ],
)
def test_a_folder_of_another_run_is_one_sentence(
    changed: dict[str, Any], message: str, texts: Path, tmp_path: Path
) -> None:
    run(texts, tmp_path / "out")
    with pytest.raises(UserError, match=f"out holds a run {message}: choose another --out"):
        run(texts, tmp_path / "out", **changed)


def test_a_folder_of_another_corpus_is_one_sentence(texts: Path, tmp_path: Path) -> None:
    run(texts, tmp_path / "out")
    with pytest.raises(UserError, match="with another corpus"):
        run(folder(tmp_path / "others", words=150), tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "full"}, "Full has nothing to learn"),
        ({"method": "lngmem"}, "There is no method 'lngmem'"),
        ({"method": "longmem(Q=3)"}, "There is no setting of longmem 'Q'"),
        ({"segment": 10**6}, "fewer than a segment of 1000000"),
        ({"rows": 8}, "fewer than 8 rows: use --rows 7"),
        ({"objective": "lmm"}, "There is no objective 'lmm'"),
        ({"objective": "completion"}, "use --segment 64 or more"),
        ({"objective": "answers", "segment": 64}, "has no answers"),
        ({"method": "retrieval(rank=2)", "objective": "reconstruction"}, "no segments that start cold"),
        ({"backbone": "tiny-lama"}, "did you mean 'tiny-llama'"),
        ({"device": "nowhere"}, "'nowhere' is not available"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence_and_leaves_nothing_behind(
    changed: dict[str, Any], message: str, texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run(texts, tmp_path / "out", **changed)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_one_sentence(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="out is a file: name a folder with --out"):
        run(texts, tmp_path / "out")


def test_weights_that_are_named_are_where_a_run_begins(texts: Path, tmp_path: Path) -> None:
    first = run(texts, tmp_path / "first")
    second = run(texts, tmp_path / "second", method=f"longmem(N=32,K=8,weights={tmp_path / 'first'})")
    assert second["curve"][0]["loss"] == pytest.approx(first["gains"]["loss"], abs=1e-6)
    assert first["curve"][0]["loss"] != pytest.approx(first["gains"]["loss"], abs=1e-6)


def test_weights_that_fit_by_themselves_are_not_where_a_run_begins(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(texts, tmp_path / "first")
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    second = run(texts, tmp_path / "second")
    assert second["curve"][0]["loss"] == first["curve"][0]["loss"]
    assert second["weights"]["digest"] == first["weights"]["digest"]


def test_a_second_wish_to_stop_ends_the_process_as_always() -> None:
    # A process that was started in the background may ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with _signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_a_second_stage_begins_with_the_first_and_tells_what_both_cost(texts: Path, tmp_path: Path) -> None:
    form = "W=16,c=4,sinks=2,remote_bias=-1"
    stage = {"tokens": 800, "rows": 1, "segment": 48, "lr": 3e-3, "history": 48, "scored": 16}
    first = run(texts, tmp_path / "one", method=f"evalm({form})", objective="attention", **stage)
    assert first["begun_with"] is None
    assert all(line["nats"] is None for line in map(json.loads, _steps(tmp_path / "one")))
    weights = tmp_path / "one"
    again = {**stage, "segment": 32, "sequence": 96}
    second = run(texts, tmp_path / "two", method=f"evalm({form},rank=2,weights={str(weights)!r})", **again)
    assert second["begun_with"]["sha256"] == first["weights"]["sha256"]
    assert second["curve"][0]["loss"] == pytest.approx(first["gains"]["loss"], abs=1e-6)
    for name in ("tokens", "flops", "seconds"):
        assert second["cost"][name] > first["cost"][name] == second["begun_with"]["cost"][name]
    own = [json.loads(line) for line in _steps(tmp_path / "two")]
    assert second["cost"]["seconds"] == pytest.approx(first["cost"]["seconds"] + sum(step["seconds"] for step in own))
    assert losses(tmp_path / "two")[-1][0] == second["cost"]["tokens"] - first["cost"]["tokens"] >= 800
    loaded = naming.load(f"evalm({form},rank=2)", backbone="tiny-llama", device="cpu", weights=tmp_path / "two")
    assert loaded.card.cost.tokens == second["cost"]["tokens"]
    assert run(texts, tmp_path / "two", method=f"evalm({form},rank=2,weights={str(weights)!r})", **again) == second


def _steps(out: Path) -> list[str]:
    return [line for line in (out / "curve.jsonl").read_text().splitlines() if '"loss"' in line and "rate" in line]


def test_validation_on_other_texts_leaves_all_documents_to_train_on(texts: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number in range(3):
        (other / f"{number}.txt").write_text(text(50 + number, 90))
    card = run(texts, tmp_path / "out", validation_corpus=other)
    assert card["corpus"]["held_back"] == []
    assert len(card["validation_corpus"]["held_back"]) == card["gains"]["documents"] == 3
    assert sum(document["tokens"] for document in card["corpus"]["read"]) == card["cost"]["tokens"]
    with pytest.raises(UserError, match="holds a run with another validation"):
        run(texts, tmp_path / "out")
    with pytest.raises(UserError, match="take them out of one of both"):
        run(texts, tmp_path / "again", validation_corpus=texts)


@pytest.mark.parametrize("count", [1, 3])
def test_one_file_or_three_documents_can_be_trained_on(count: int, tmp_path: Path) -> None:
    small = folder(tmp_path / "small", documents=count, words=200)
    card = run(small, tmp_path / "out", tokens=300, rows=min(count, 2))
    assert len(card["corpus"]["held_back"]) == count
    assert {document["document"] for document in card["corpus"]["read"]} <= {f"books.txt#{n}" for n in range(count)}


def trials_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((out / "grid").glob("*/card.json"))]


def test_what_the_search_has_validated_before_its_first_step_is_not_read_again(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, validate = [0], Validator.__call__

    def counted(self: Validator, stops: Callable[[], bool]) -> Any:
        count[0] += 1
        return validate(self, stops)

    monkeypatch.setattr(Validator, "__call__", counted)
    options = {"tokens": 300, "evaluate_every": 300, "grid": "1e-4|1e-3|1e-2", "grid_tokens": 300, "lr": None}
    run(texts, tmp_path / "out", **options)
    assert count[0] == 1 + len(trials_of(tmp_path / "out")) + 1


def test_the_rate_with_the_lowest_loss_on_held_back_texts_is_taken(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"grid": "1e-4|1e-2", "grid_tokens": 300, "lr": None}
    card = run(texts, out, **options)
    losses = {trial["lr"]: trial["loss"] for trial in card["grid"]}
    assert losses.keys() == {1e-4, 1e-2}
    assert card["training"]["lr"] == min(losses, key=lambda rate: losses[rate])
    for rate, loss in losses.items():
        alone = run(texts, tmp_path / f"{rate:g}", lr=rate, tokens=300, evaluate_every=300)
        assert alone["gains"]["loss"] == loss
    assert run(texts, out, **options) == card
    starts = [trained["curve"][0] for trained in (card, *trials_of(out))]
    assert all(start == starts[0] for start in starts)
    with pytest.raises(UserError, match="keep one of the two"):
        run(texts, tmp_path / "again", grid="1e-4")


@pytest.mark.parametrize("grid_tokens", [64, 300], ids=["after its last step", "before"])
def test_a_rate_with_which_the_loss_is_not_finite_is_not_taken(grid_tokens: int, texts: Path, tmp_path: Path) -> None:
    options = {"grid": "1e30|1e-3", "grid_tokens": grid_tokens, "lr": None, "warmup": 0.0}
    card = run(texts, tmp_path / "out", **options)
    assert card["training"]["lr"] == 1e-3
    assert [(trial["lr"], trial["loss"] is None) for trial in card["grid"]] == [(1e30, True), (1e-3, False)]
    assert run(texts, tmp_path / "out", **options) == card
    with pytest.raises(UserError, match="finite with any learning rate of grid=1e30: search among smaller ones"):
        run(texts, tmp_path / "none", **{**options, "grid": "1e30"})


def test_weights_with_which_the_loss_is_not_finite_are_not_written(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"held-back texts is not finite after 64 tokens: use a smaller --lr"):
        run(texts, tmp_path / "out", tokens=64, lr=1e30, warmup=0.0)
    names = [path.name for path in (tmp_path / "out").iterdir()]
    assert not [name for name in names if name.endswith(("weights.safetensors", "card.json"))]


def test_a_document_whose_end_is_held_back_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(text(0, 4000))
    sha256 = hashlib.sha256(text(0, 4000).encode()).hexdigest()
    (tmp_path / "texts" / "index.jsonl").write_text(json.dumps({"title": "T", "sha256": sha256}))
    card = run(tmp_path / "texts", tmp_path / "out", tokens=128)
    assert (card["corpus"]["documents"], len(card["corpus"]["works"])) == (1, 1)
    assert "(1 document;" in (tmp_path / "out" / "README.md").read_text()


def test_without_its_run_file_a_checkpoint_still_says_what_it_was_trained_with(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    constant = {"schedule": "constant", "warmup": 0}
    run(texts, out, tokens=300, **constant)
    (out / RUN).unlink()
    with pytest.raises(UserError, match=r"holds a run with lr=0\.003"):
        run(texts, out, tokens=900, lr=0.05, **constant)
    run(texts, out, tokens=900, **constant)
    assert json.loads((out / RUN).read_text())["training"]["lr"] == 0.003


def test_a_training_without_progress_ends_and_its_best_weights_stay(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"lr": 0.3, "schedule": "constant", "tokens": 3000, "evaluate_every": 100, "patience": 2}
    card = run(texts, out, **options)
    during = [(tokens, loss) for tokens, loss in validations(out) if tokens][:-1]
    assert card["stopped"] == during[-1][0] < 3000
    assert card["best"]["tokens"] == min(during, key=lambda line: line[1])[0] == during[-3][0]
    method = contextlab.load(METHOD, "tiny-llama", weights=out / card["best"]["file"])
    assert method.weights_digest != contextlab.load(str(out), "tiny-llama").weights_digest
    assert run(texts, out, **options) == card


def test_the_fair_protocol_is_the_same_for_all_methods(texts: Path, tmp_path: Path) -> None:
    kinds = [registry.method_class(name).Config for name in ("longmem", "evalm", "window")]
    first, *others = [TrainConfig.of(kind, {"tokens": 500_000, "protocol": "fair"}) for kind in kinds]
    assert all(other == first for other in others)
    assert TrainConfig.of(kinds[0], {"tokens": 10}) != TrainConfig.of(kinds[2], {"tokens": 10})
    with pytest.raises(UserError, match="protocol=fair sets order=shuffled for all methods: leave order out"):
        TrainConfig.of(kinds[0], {"tokens": 500_000, "protocol": "fair", "order": "documents"})
    with pytest.raises(UserError, match="protocol=fair sets patience=None for all methods: leave patience out"):
        TrainConfig.of(kinds[0], {"tokens": 500_000, "protocol": "fair", "patience": 2})
    with pytest.raises(UserError, match="protocol=fair needs 500,000 tokens or more: use --tokens 500000"):
        TrainConfig.of(kinds[0], {"tokens": 499_999, "protocol": "fair"})


def test_a_search_of_the_fair_protocol_has_all_that_it_sets(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"rows": 1, "segment": 32, "sequence": 64, "order": "shuffled", "documents": 2, "grid": "1e-4|1e-2"}
    monkeypatch.setattr(options, "FAIR", small)
    monkeypatch.setattr(options, "FAIR_TOKENS", 600)
    place = {"out": tmp_path / "out", "backbone": "tiny-llama", "device": "cpu"}
    card = contextlab.train(METHOD, texts, tokens=600, protocol="fair", grid_tokens=128, **place)
    assert [trial["tokens"] for trial in card["grid"]] == [128, 128]
    fixed = small.keys() - {"grid"}
    for rate in ("0.0001", "0.01"):
        trial = json.loads((tmp_path / "out" / "grid" / rate / "card.json").read_text())["training"]
        assert {name: trial[name] for name in fixed} == {name: small[name] for name in fixed}


@pytest.mark.parametrize("lengths", [(900,), (400, 900)])
def test_curves_are_shown_in_tensorboard(lengths: tuple[int, ...], texts: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "out"
    for tokens in lengths:
        card = run(texts, out, log="tensorboard", tokens=tokens, schedule="constant", warmup=0.0)
    assert [tokens for tokens, _ in validations(out)] == [point["tokens"] for point in card["curve"]]
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (tokens, pytest.approx(loss, rel=1e-6)) for tokens, loss in losses(out)
    ]
    assert {event.step for event in events.Scalars("validation/loss")} == {tokens for tokens, _ in validations(out)}


def test_the_folder_of_a_run_has_a_readme_of_the_hub(texts: Path, tmp_path: Path) -> None:
    card = run(texts, tmp_path / "out", licence="CC0")
    readme = (tmp_path / "out" / "README.md").read_text()
    _, head, body = readme.split("---\n")
    assert yaml.safe_load(head) == {
        "library_name": "contextlab",
        "base_model": "tiny-llama",
        "tags": ["contextlab", "longmem"],
    }
    assert f"{card['cost']['tokens']:,} tokens" in body
    assert "licences: CC0" in body
    assert len(card["provenance"]["code"]) == 64
