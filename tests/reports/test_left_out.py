from __future__ import annotations

from contextlab.reports.left_out import LeftOut


def test_nothing_is_said_where_every_run_is_shown() -> None:
    assert LeftOut(31).sentence == ""
    assert LeftOut(31).also(0, "by method!=closed-book") == LeftOut(31)


def test_every_filter_says_how_many_runs_it_left_out() -> None:
    left_out = LeftOut(31).also(7, "by settings.M!=0").also(0, "by n>3").also(2, "by method!=closed-book")
    assert left_out.sentence == "Left out: 7 of 31 runs by settings.M!=0, 2 by method!=closed-book"
    assert LeftOut(1).also(1, "unfinished").sentence == "Left out: 1 of 1 run unfinished"
