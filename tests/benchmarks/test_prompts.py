from __future__ import annotations

import pytest

from contextlab.benchmarks.prompts import prompt
from contextlab.errors import UserError


def test_a_prompt_is_a_file_by_its_name_or_a_text_with_a_placeholder() -> None:
    assert prompt("bare-question") == "{text}"
    assert prompt("Q: {text}\nA:") == "Q: {text}\nA:"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="There is no prompt 'recall-qestion': did you mean 'recall-question'"):
        prompt("recall-qestion")
