"""`contextlab check` of a method that some models are refused by."""

from __future__ import annotations

import pytest

from contextlab.cli.main import main
from contextlab.testing import laws


def test_laws_are_checked_on_the_models_that_a_method_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(make: laws.Make, families: tuple[str, ...]) -> list[laws.LawResult]:
        return [laws.LawResult("causality", family, True, "", 0.0) for family in families]

    monkeypatch.setattr(laws, "check", check)
    assert main(["check", "selfextend"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 of 1 hold" in printed
    assert "Not checked on tiny-gpt2: tiny-gpt2 has no rotary positions" in printed
    assert main(["check", "window"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 hold" in printed
    assert "Not checked" not in printed
