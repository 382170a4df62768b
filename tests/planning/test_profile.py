"""Needs at a length that were drawn as lines through two short runs, beside a run at that length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import METHODS, method, shapes

from contextlab.method import Lengths
from contextlab.planning.arithmetic import Arithmetic
from contextlab.planning.dry_run import AHEAD, NotedCall, dry_run
from contextlab.planning.needs import Needs
from contextlab.planning.profile import Lines, Profile, ShortTexts

LENGTH = 11264
FORMS = (*METHODS, "sliding(N=700)", "sinks(recent=500)", "longmem(local=sliding,softmax=joint,init=memory)")


@pytest.mark.parametrize("name", FORMS)
def test_a_longer_run_needs_what_the_short_ones_say(name: str) -> None:
    on_shapes = method(name, shapes())
    profile, run = Profile.of(on_shapes, 1), dry_run(on_shapes, LENGTH, 1)
    # Weights are left out, which would hide a difference.
    peak = max(*run.read.live, *run.decoded.live)
    assert profile.long.tokens < 0.6 * LENGTH
    assert profile.peak(run.state_bytes) == pytest.approx(peak, rel=0.05)
    # A segment that is cut off is a whole pass, where the line has part of one.
    assert profile.launches(run.tokens) == pytest.approx(run.read.launches, abs=1.1 * run.decoded.launches)
    assert profile.weight_bytes(run.tokens) == pytest.approx(run.read.weight_bytes, abs=1.1 * run.decoded.weight_bytes)
    assert profile.long.decoded.launches == run.decoded.launches
    assert profile.long.decoded.weight_bytes == run.decoded.weight_bytes


@pytest.mark.parametrize("name", ["retrieval(M=5120)", "longmem(M=5120)", "memtrm(M=5120)", "trime(M=5120)"])
def test_a_memory_that_is_full_needs_what_smaller_full_ones_say(name: str) -> None:
    on_shapes = method(name, shapes())
    formula = on_shapes.formula(Lengths(LENGTH))
    assert formula is not None
    text = Arithmetic(formula, LENGTH, 1)
    run = dry_run(on_shapes, LENGTH, 1)
    needs = Needs(on_shapes, Profile.of(on_shapes, 1), text, weights=0)
    assert needs.states[-1] == needs.states[-2]
    assert needs.peak == pytest.approx(max(*run.read.live, *run.decoded.live), rel=0.05)


def call(live: list[int]) -> NotedCall:
    return NotedCall(0, 0, live, [str(number) for number in range(len(live))])


numbers = st.integers(0, 10**9)


@given(st.lists(st.tuples(numbers, st.integers(0, 100)), min_size=1, max_size=8), numbers, numbers, numbers)
def test_lines_find_the_highest_of_straight_lines(lines: list[tuple[int, int]], a: int, b: int, c: int) -> None:
    def live(state: int) -> list[int]:
        return [begin + state + slope * state for begin, slope in lines]

    short, long = min(a, b), max(a, b) + 1
    state = long + c
    drawn = Lines(call(live(short)), call(live(long)), (short, long))
    assert drawn.peak(state) == pytest.approx(max(live(state)), rel=1e-6)


@given(numbers, numbers)
def test_without_growth_the_peak_is_the_highest_seen_and_never_less_than_the_state(state: int, peak: int) -> None:
    drawn = Lines(call([0, state + peak]), call([0, state + peak]), (state, state))
    assert drawn.peak(state) == pytest.approx(state + peak)
    assert drawn.peak(2 * (state + peak)) >= 2 * (state + peak)


@pytest.mark.parametrize(
    ("name", "short", "long"),
    [
        ("full", 3072, 4096),
        ("full(cache=int8)", 384, 512),
        ("sliding", 4096, 5120),
        ("sliding(N=2048)", 8192, 10240),
        ("sliding(N=700)", 4200, 5600),
        ("sinks", 3072, 4096),
    ],
)
def test_runs_are_whole_segments_apart_behind_full_windows(name: str, short: int, long: int) -> None:
    assert ShortTexts.of(method(name, shapes())) == ShortTexts(short, long)


def test_a_formula_without_segments_has_the_least_reach() -> None:
    on_shapes = method("longmem(bank_scope=shared)", shapes())
    assert on_shapes.formula() is None
    assert ShortTexts.of(on_shapes) == ShortTexts(4096, 5120)


def test_full_is_read_within_its_positions_however_few() -> None:
    assert ShortTexts.of(method("full", shapes(1, positions=8192))) == ShortTexts(3072, 4096)
    assert ShortTexts.of(method("full", shapes(1, positions=1024))) == ShortTexts(4096, 5120)


def test_what_is_moved_to_the_host_is_the_bank_alone() -> None:
    on_shapes = method("retrieval", shapes())
    profile = Profile.of(on_shapes, 1)
    formula = on_shapes.formula(Lengths(LENGTH))
    run = dry_run(on_shapes, LENGTH, 1)
    state = formula.state_bytes(LENGTH - AHEAD)
    assert profile.on_host(state) == pytest.approx(run.bank_bytes, abs=8)
    assert 0 < profile.in_use(state) <= profile.on_host(state)
    assert Profile.of(method("sliding", shapes()), 1).on_host(10**9) == 0
