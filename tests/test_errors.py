from __future__ import annotations

from contextlab.errors import unknown


def test_the_nearest_name_is_suggested() -> None:
    assert (
        str(unknown("method", "longmen", ["window", "longmem"]))
        == "There is no method 'longmen': did you mean 'longmem'?"
    )


def test_a_name_in_other_letters_is_suggested() -> None:
    assert str(unknown("setting", "k", ["K", "M"])) == "There is no setting 'k': did you mean 'K'?"


def test_without_a_near_name_all_are_listed() -> None:
    assert str(unknown("task", "zzz", ["pg22", "chapterbreak"])).endswith("choose one of chapterbreak, pg22.")
