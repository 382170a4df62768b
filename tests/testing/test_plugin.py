"""The pytest plugin in the tests of a third party."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

METHOD = """
from contextlab.methods.window import Window

class Mine(Window):
    pass

class Broken(Window):
    def score(self, state, candidates):
        return super().score(state, candidates) * 0.9
"""
TEST = """
import pytest

@pytest.mark.laws_of("{method}", {settings})
def test_laws(law):
    law()
"""


@pytest.fixture
def outcome(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    def run(method: str, settings: str = "N=24") -> pytest.RunResult:
        pytester.makepyfile(mine=METHOD)
        pytester.makepyfile(test_mine=TEST.format(method=f"{pytester.path}/mine.py:{method}", settings=settings))
        return pytester.runpytest_subprocess("-q", "-k", "tiny-gpt2 and (normalised or lengths)", "-p", "no:xdist")

    return run


def test_a_method_that_keeps_the_laws_passes(outcome: Callable[..., pytest.RunResult]) -> None:
    assert outcome("Mine").parseoutcomes()["passed"] == 2


def test_a_broken_law_fails_with_one_sentence(outcome: Callable[..., pytest.RunResult]) -> None:
    result = outcome("Broken")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*normalised (tiny-gpt2): probabilities after 0 tokens do not sum to one*"])


def test_a_setting_that_does_not_exist_fails_with_a_suggestion(outcome: Callable[..., pytest.RunResult]) -> None:
    result = outcome("Mine", "n=24")
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*There is no setting 'n'*"])


def test_every_law_becomes_a_test(pytester: pytest.Pytester) -> None:
    from contextlab.testing import cases

    pytester.makepyfile(test_mine=TEST.format(method="window", settings=""))
    result = pytester.runpytest_subprocess("-q", "--collect-only", "-p", "no:xdist")
    assert sum("test_laws[" in line for line in result.outlines) == len(list(cases()))


def test_the_plugin_alone_brings_no_torch() -> None:
    program = "import sys, contextlab.testing.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
