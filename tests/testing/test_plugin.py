"""The pytest plugin in the tests of a third party."""

from __future__ import annotations

import subprocess
import sys

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
def test_{name}(law):
    law()
"""


def written(name: str, method: str, settings: str = "") -> str:
    return TEST.format(name=name, method=method, settings=settings)


def test_laws_pass_or_fail_with_one_sentence(pytester: pytest.Pytester) -> None:
    """Those of a method that keeps them, of one that breaks one, and of one whose setting does not exist."""
    pytester.makepyfile(mine=METHOD)
    mine, broken = (f"{pytester.path}/mine.py:{name}" for name in ("Mine", "Broken"))
    tests = (written("kept", mine, "N=24"), written("broken", broken, "N=24"), written("misspelt", mine, "n=24"))
    pytester.makepyfile(test_mine="".join(tests))
    result = pytester.runpytest_subprocess("-q", "-rA", "-k", "tiny-gpt2 and (normalised or lengths)", "-p", "no:xdist")
    result.assert_outcomes(passed=3, failed=3)
    lines = [line.partition(" - ")[0] for line in result.outlines if line.startswith(("PASSED", "FAILED"))]
    outcomes = sorted((line.split("::")[1].partition("[")[0], line.split(" ")[0]) for line in lines)
    assert outcomes == [
        ("test_broken", "FAILED"),
        ("test_broken", "PASSED"),
        *[("test_kept", "PASSED")] * 2,
        *[("test_misspelt", "FAILED")] * 2,
    ]
    result.stdout.fnmatch_lines(["*normalised (tiny-gpt2): probabilities after 0 tokens do not sum to one*"])
    result.stdout.fnmatch_lines(["*There is no setting 'n'*"])


def test_every_law_becomes_a_test(pytester: pytest.Pytester) -> None:
    from contextlab.testing import cases

    pytester.makepyfile(test_mine=written("laws", "window"))
    result = pytester.runpytest_subprocess("-q", "--collect-only", "-p", "no:xdist")
    assert sum("test_laws[" in line for line in result.outlines) == len(list(cases()))


def test_the_plugin_alone_brings_no_torch() -> None:
    program = "import sys, contextlab.testing.plugin; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
