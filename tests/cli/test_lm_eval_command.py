from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from contextlab.cli.main import main

HEAVY = {"torch", "transformers", "lm_eval", "numpy"}
TINY = ("--model", "contextlab", "--tasks", "hellaswag", "--model_args")


def test_help_names_the_harness_without_importing_it() -> None:
    code = f"""
import sys
from contextlab.cli.main import main
code = main(["lm_eval", "--help"])
assert not {HEAVY!r} & set(sys.modules), set(sys.modules)
sys.exit(code)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "contextlab lm_eval run --help" in " ".join(answer.stdout.split())


def test_everything_behind_the_first_word_is_the_harness_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["lm_eval", "run", "--help"])
    assert end.value.code == 0
    assert "--include_path" in capsys.readouterr().out


def test_an_empty_argument_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlab.integrations import lm_eval as harness

    passed: list[Any] = []
    monkeypatch.setattr(harness, "main", lambda words: passed.extend(words))
    words = ["--gen_kwargs", "until=", "", "--model_args", "a=1,b=2", "--x=", "ls", "-h"]
    assert main(["lm_eval", *words]) == 0
    assert passed == words


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("method=windo,backbone=tiny-llama", "There is no method 'windo': did you mean 'window'?"),
        ("method=window,backbone=tiny-llam", "There is no backbone 'tiny-llam': did you mean 'tiny-llama'?"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm_eval", *TINY, arguments]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"contextlab: {sentence}"


def test_without_the_harness_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "contextlab.integrations.lm_eval", None)
    monkeypatch.delattr("contextlab.integrations.lm_eval", raising=False)
    assert main(["lm_eval", *TINY, "method=full"]) == 2
    assert "pip install 'contextlab[lm-eval]'" in capsys.readouterr().err
