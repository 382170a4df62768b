"""Engines with real workers: small jobs, and whole sweeps in which a worker dies."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_sweep import read_only
from toy_jobs import die, double, fail, refuse, sleep
from toy_sweeps import assert_once, serial, stored, suite

from contextlab.errors import UserError
from contextlab.reports.layout import TableLayout
from contextlab.reports.stored import load_results
from contextlab.reports.tables import comparison
from contextlab.sweeps import engines, sweep
from contextlab.sweeps.engines import Answer, Engine, Job, Lost, Running

MORTAL = f"{Path(__file__).with_name('toy_mortal.py')}:Mortal"
SLURM = pytest.param(
    "slurm(cluster=local)",
    marks=pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed"),
)
NAMES = [
    "local",
    pytest.param(
        "ray", marks=pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
    ),
    SLURM,
]


def ended(running: Running) -> Answer:
    while not running.done():
        time.sleep(0.05)
    return running.answer()


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are no children of this process import jobs of tests, too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    built = engines.engine(request.param, 2, tmp_path / "jobs")
    yield built
    built.close()


@pytest.mark.parametrize("engine", NAMES, indirect=True)
def test_a_job_answers_refuses_or_is_lost(engine: Engine) -> None:
    (running,) = engine.start([Job(double, (4,))])
    assert ended(running) == Answer(8)
    (running,) = engine.start([Job(refuse, ())])
    assert ended(running) == Answer(refusal="Choose another one.")
    (running,) = engine.start([Job(die, ())])
    with pytest.raises(Lost):
        ended(running)
    (running,) = engine.start([Job(fail, ())])
    with pytest.raises(Lost, match="ValueError: some reason"):
        ended(running)
    # Whoever comes next is not affected.
    (running,) = engine.start([Job(double, (5,))])
    assert ended(running) == Answer(10)


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_a_process_that_died_between_two_jobs_is_replaced(engine: Engine) -> None:
    (running,) = engine.start([Job(os.getpid, ())])
    process = psutil.Process(ended(running).value)
    process.kill()
    process.wait(200)
    (running,) = engine.start([Job(double, (4,))])
    with contextlib.suppress(Lost):
        assert ended(running) == Answer(8)
    (running,) = engine.start([Job(double, (5,))])
    assert ended(running) == Answer(10)


@pytest.mark.parametrize("engine", NAMES, indirect=True)
def test_closing_ends_a_job_under_way(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    (running,) = engine.start([Job(sleep, (path,))])
    while not (path.exists() and path.read_text()):
        assert not running.done()
        time.sleep(0.05)
    process = psutil.Process(int(path.read_text()))
    engine.close()
    process.wait(200)


@pytest.mark.parametrize("engine", [SLURM], indirect=True)
def test_a_local_job_ends_where_interrupts_are_ignored(
    engine: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    test_closing_ends_a_job_under_way(engine, tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("locl", "did you mean 'local'"),
        ("local(N=2)", "The engine local has no settings"),
        ("ray(nothing=1)", r"Ray does not start .*correct the settings of --engine"),
        ("slurm(cluster=nothing)", r"Slurm cannot be used .*correct the settings of --engine"),
        ("local,ray", "name one of them"),
        ("ray(num_cpus=-1)", "Ray does not start"),
    ],
)
def test_a_wrong_engine_is_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    for name in ("ray", "submitit"):
        if name[:3] in text[:3] and importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    with pytest.raises(UserError, match=message) as caught:
        engines.engine(text, None, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_24_runs_of_which_a_worker_dies_and_a_folder_is_read_only(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TOY_DEATH", str(tmp_path / "death"))
    grid = {"method": f"{MORTAL}(N=16),sliding(N=32),hso", "task": "sst2/n2", "backbone": "tiny-llama,tiny-gpt2"}
    of = suite(tmp_path / "swept", **grid, seed="0,1", context="own,none", limit=4)
    factory = functools.partial(engines.engine, name, 2)
    with sweep.opened(of, factory, 2) as running:
        plan = running.plan()
        (tmp_path / "death").touch()
        closed = tmp_path / "swept" / plan.runs[5].run_id
        closed.mkdir()
        with read_only(closed), pytest.raises(UserError, match=rf"1 of 24 runs .*{closed.name} cannot be written"):
            running.run(plan)
    assert not (tmp_path / "death").exists()
    assert sum(running._deaths.values()) == 1
    assert len(stored(tmp_path / "swept")) == 23
    with sweep.opened(of, factory, 2) as running:
        running.run(running.plan())
    serial(of, tmp_path / "serial")
    assert len(stored(tmp_path / "swept")) == 24
    assert stored(tmp_path / "swept") == stored(tmp_path / "serial")
    assert_once(tmp_path / "swept")
    tables = [comparison(load_results(tmp_path / part), TableLayout()).to_frame() for part in ("swept", "serial")]
    assert tables[0].sort_index().equals(tables[1].sort_index())
